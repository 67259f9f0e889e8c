"""Language models with an image tower that is not of their own family: Gemma 3, LLaVA and kin."""

from __future__ import annotations

from rooflens.models.families import vision
from rooflens.models.families.config import Config
from rooflens.models.families.nested import language_model, text_config, with_defaults, wrapped
from rooflens.models.spec import Component, ModelSpec


def gemma3(cfg: Config, name: str) -> ModelSpec:
    """Gemma 3 with its SigLIP tower; configs leave out what equals the 4B model's sizes."""
    text = with_defaults(
        text_config(cfg),
        vocab_size=262208,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131072,
    )
    spec = language_model(text, name, "gemma3_text")
    section = cfg.section("vision_config")
    if section is None:
        cfg.note("no vision_config: the language model alone is counted")
        return wrapped(spec, cfg, components=(), model="language_model.model.", head="language_model.lm_head")
    width = section.size("hidden_size", default=768)
    components = (
        Component("vision_tower", "vision", vision.siglip(section)),
        Component("multi_modal_projector", "projector", width * spec.hidden_size + width),
    )
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


ADAPTERS = {"gemma3": gemma3}
