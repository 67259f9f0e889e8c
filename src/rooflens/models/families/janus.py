"""Models with towers of timm: Janus (which also draws), DeepSeek-VL2, and Phi-3 Vision.

None of them is in transformers in its published form. Sizes of the towers are those of the named timm
models; totals were checked against the published parameter counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflens.errors import UnsupportedError
from rooflens.models.families import vision
from rooflens.models.families.config import Config
from rooflens.models.families.nested import language_model, text_config, with_defaults, wrapped
from rooflens.models.families.vision import matrix
from rooflens.models.families.vision_language import TEXT_DEFAULTS
from rooflens.models.spec import Component, ModelSpec

# The pooling head of SigLIP is in the checkpoints, though the models do not use it.
SIGLIP_SIZES: dict[str, dict[str, Any]] = {
    "siglip_large_patch16_384": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "image_size": 384,
        "patch_size": 16,
    },
    "siglip_so400m_patch14_384": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "image_size": 384,
        "patch_size": 14,
    },
}
CLIP_LARGE_336: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
# VQ-16 of LlamaGen, which turns pictures into 16,384 codes and back: encoder, decoder, code book and
# the two 1 x 1 convolutions around it, counted in the model that transformers builds.
VQ_16 = 29_298_176 + 42_449_795 + 131_072 + 2_056 + 2_304


def _siglip(cfg: Config, name: str) -> tuple[int, int]:
    """(parameters, features) of a SigLIP tower by timm's name."""
    if name not in SIGLIP_SIZES:
        raise UnsupportedError(
            f"{cfg.where}: the image tower is not covered", value=name, allowed=", ".join(SIGLIP_SIZES)
        )
    sizes = SIGLIP_SIZES[name]
    return vision.siglip(Config({**sizes, "vision_use_head": True}, where=cfg.where)), sizes["hidden_size"]


def _mlp(inputs: int, outputs: int, depth: int) -> int:
    return matrix(inputs, outputs) + (depth - 1) * matrix(outputs, outputs)


def janus(cfg: Config, name: str) -> ModelSpec:
    """Janus and Janus-Pro: a SigLIP tower to see, a code book and a head of its own to draw."""
    text = text_config(cfg)
    spec = language_model(with_defaults(text, **TEXT_DEFAULTS["llama"]), name, "llama")
    options = cfg.section("vision_config")
    options = options.section("params") if options is not None else None
    components: list[Component] = []
    hidden = spec.hidden_size
    if options is not None:
        images, features = _siglip(options, options.text("model_name", default="siglip_large_patch16_384"))
        aligner = cfg.section("aligner_config")
        aligner = aligner.section("params") if aligner is not None else None
        depth = aligner.size("depth", default=2) if aligner is not None else 2
        components += [
            Component("vision_model", "vision", images),
            Component("aligner", "projector", _mlp(features, hidden, depth)),
        ]
    drawing = cfg.section("gen_vision_config")
    if drawing is not None:
        codes = drawing.section("params") or drawing
        count, width = codes.size("image_token_size", default=16384), codes.size("n_embed", default=8)
        head = matrix(hidden, hidden) + matrix(hidden, count)
        own = VQ_16 + _mlp(width, hidden, 2) + head + count * width
        components.append(Component("gen_", "other", own))
        cfg.note("what draws pictures (code book, its aligner and head) is counted as other, not per token")
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


def deepseek_vl2(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek-VL2: DeepSeek-V2, in the tiny size without latent attention, behind a SigLIP tower."""
    text = text_config(cfg)
    latent = text.flag("use_mla", default=True)
    spec = language_model(text, name, "deepseek_v2" if latent else "deepseek")
    tower = cfg.section("vision_config")
    components: list[Component] = []
    if tower is not None:
        images, features = _siglip(tower, tower.text("model_name", default="siglip_so400m_patch14_384"))
        # 2 x 2 patches in one vector, two matrices, and learnt marks for new lines and views.
        projector = _mlp(4 * features, spec.hidden_size, 2) + 2 * spec.hidden_size
        components = [
            Component("vision", "vision", images),
            Component("projector", "projector", projector),
        ]
    return wrapped(spec, cfg, components=components, model="language.model.", head="language.lm_head")


def phi3_v(cfg: Config, name: str) -> ModelSpec:
    """Phi-3 and 3.5 Vision: Phi-3 with CLIP's large tower, 2 x 2 patches in one vector."""
    spec = language_model(cfg, name, "phi3")
    options = cfg.section("img_processor")
    if options is None or options.text("model_name", default="") != "openai/clip-vit-large-patch14-336":
        raise UnsupportedError(
            f"{cfg.where}: the image tower is not covered",
            value=options.fields.get("model_name") if options is not None else None,
            allowed="openai/clip-vit-large-patch14-336",
        )
    wide, hidden = 4 * CLIP_LARGE_336["hidden_size"], spec.hidden_size
    projector = _mlp(wide, hidden, 2) + 2 * wide
    components = (
        Component("img_processor", "vision", vision.clip(Config(CLIP_LARGE_336, where=cfg.where))),
        Component("img_projection", "projector", projector),
    )
    return replace(wrapped(spec, cfg, components=components, model="model."), model_type="phi3_v")


ADAPTERS = {"multi_modality": janus, "deepseek_vl_v2": deepseek_vl2, "phi3_v": phi3_v}
