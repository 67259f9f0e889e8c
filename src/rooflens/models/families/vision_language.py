"""Language models of other families behind an image tower: LLaVA, Pixtral, InternVL, SmolVLM and kin.

The language model is read by its own family's adapter, the tower by its model_type; the projector
between them is each wrapper's own. Source: the wrappers' code in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflens.models.families import vision
from rooflens.models.families.config import Config
from rooflens.models.families.nested import language_model, text_config, with_defaults, wrapped
from rooflens.models.families.vision import layer_norm, matrix
from rooflens.models.spec import Component, ModelSpec

# What the families' own code takes for sizes that a nested config leaves out.
TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "gemma": {
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
    },
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
    },
}
# Names that a nested config may give to a family's language model.
TEXT_ALIASES = {
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "idefics3_text": "llama",
    "smolvlm_text": "llama",
}

# (outer config, tower's config, language model's hidden size) -> parameters of the projector
Projector = Callable[[Config, Config, int], int]


def _feature_layers(cfg: Config) -> int:
    chosen = cfg.get("vision_feature_layer")
    return len(chosen) if isinstance(chosen, list) else 1


def _two_layers(cfg: Config, tower: Config, text: int) -> int:
    """LLaVA: the tower's features, from one layer or several, through two matrices."""
    bias = cfg.flag("multimodal_projector_bias", default=True)
    features = tower.size("hidden_size") * _feature_layers(cfg)
    return matrix(features, text, bias=bias) + matrix(text, text, bias=bias)


def _two_layers_newline(cfg: Config, tower: Config, text: int) -> int:
    """LLaVA-NeXT and OneVision: as LLaVA, and a learnt vector at the end of a row of patches."""
    return _two_layers(cfg, tower, text) + text


def _merged_patches(cfg: Config, tower: Config, text: int) -> int:
    """Mistral 3: a norm, neighbouring patches merged, then two matrices without biases."""
    hidden, merge = tower.size("hidden_size"), cfg.size("spatial_merge_size", default=2)
    bias = cfg.flag("multimodal_projector_bias", default=False)
    two = matrix(hidden * _feature_layers(cfg), text, bias=bias) + matrix(text, text, bias=bias)
    return hidden + matrix(hidden * merge * merge, hidden, bias=False) + two


def _one_layer(cfg: Config, tower: Config, text: int) -> int:
    """PaliGemma."""
    return matrix(tower.size("hidden_size"), cfg.size("projection_dim", default=text))


def _shuffled(cfg: Config, tower: Config, text: int) -> int:
    """Idefics 3 and SmolVLM: ``scale_factor`` squared patches in one vector, one matrix."""
    return matrix(tower.size("hidden_size") * cfg.size("scale_factor", default=2) ** 2, text, bias=False)


def _normed_shuffled(cfg: Config, tower: Config, text: int) -> int:
    """InternVL: 2 x 2 patches in one vector (``downsample_ratio``), a norm, two matrices."""
    merge = round(1 / cfg.number("downsample_ratio", default=0.5))
    wide = tower.size("hidden_size") * merge * merge
    return layer_norm(wide) + matrix(wide, text) + matrix(text, text)


def _lfm2(cfg: Config, tower: Config, text: int) -> int:
    wide = tower.size("hidden_size") * cfg.size("downsample_factor", default=2) ** 2
    middle, bias = cfg.size("projector_hidden_size", default=2560), cfg.flag("projector_bias", default=True)
    normed = cfg.flag("projector_use_layernorm", default=True)
    return (
        (layer_norm(wide) if normed else 0)
        + matrix(wide, middle, bias=bias)
        + matrix(middle, text, bias=bias)
    )


def _gated(cfg: Config, tower: Config, text: int) -> int:
    """Cohere's: a wide matrix whose halves are multiplied, then one to the language model."""
    wide = tower.size("hidden_size") * cfg.size("downsample_factor", default=2) ** 2
    middle = cfg.size("alignment_intermediate_size", default=36864)
    return matrix(wide, middle) + matrix(middle // 2, text)


def _normed_gated(cfg: Config, tower: Config, text: int) -> int:
    wide = tower.size("hidden_size") * cfg.size("downsample_factor", default=2) ** 2
    middle = cfg.size("alignment_intermediate_size", default=text)
    return layer_norm(wide) + matrix(wide, middle) + matrix(middle // 2, text)


def _pooled(cfg: Config, tower: Config, text: int) -> int:
    """Gemma 3: averaged patches, a norm, one matrix."""
    return tower.size("hidden_size") * (1 + text)


def _adapter(
    projector: Projector,
    *,
    text: str,
    tower: str,
    prefix: str = "language_model.model.",
    head: str = "language_model.lm_head",
    names: tuple[str, str] = ("vision_tower", "multi_modal_projector"),
) -> Callable[[Config, str], ModelSpec]:
    """The adapter of a wrapper; ``text`` and ``tower`` are what its sections are where they do not say."""

    def read(cfg: Config, name: str) -> ModelSpec:
        section = text_config(cfg)
        kind = section.text("model_type", default=text)
        kind = TEXT_ALIASES.get(kind, kind)
        spec = language_model(with_defaults(section, **TEXT_DEFAULTS.get(kind, {})), name, kind)
        images = cfg.section("vision_config")
        if images is None:
            cfg.note("no vision_config: the language model alone is counted")
            return wrapped(spec, cfg, components=(), model=prefix, head=head)
        count = vision.tower(images, default=tower)
        sized = with_defaults(images, hidden_size=1152 if "idefics3" in tower else 768)
        components = (
            Component(names[0], "vision", count),
            Component(names[1], "projector", projector(cfg, sized, spec.hidden_size)),
        )
        return wrapped(spec, cfg, components=components, model=prefix, head=head)

    return read


_CLIP, _SIGLIP, _INNER = "clip_vision_model", "siglip_vision_model", "model.language_model."
_IDEFICS3 = _adapter(
    _shuffled,
    text="llama",
    tower="idefics3_vision",
    prefix="model.text_model.",
    head="lm_head",
    names=("vision_model", "connector"),
)

ADAPTERS = {
    "llava": _adapter(_two_layers, text="llama", tower=_CLIP),
    "vipllava": _adapter(_two_layers, text="llama", tower=_CLIP),
    "llava_next": _adapter(_two_layers_newline, text="llama", tower=_CLIP),
    "llava_onevision": _adapter(_two_layers_newline, text="qwen2", tower=_SIGLIP),
    "mistral3": _adapter(_merged_patches, text="mistral", tower="pixtral"),
    "paligemma": _adapter(_one_layer, text="gemma", tower=_SIGLIP),
    "gemma3": _adapter(_pooled, text="gemma3_text", tower=_SIGLIP),
    "shieldgemma2": _adapter(_pooled, text="gemma3_text", tower=_SIGLIP),
    "aya_vision": _adapter(_normed_gated, text="cohere2", tower=_SIGLIP),
    "cohere2_vision": _adapter(_gated, text="cohere2", tower=_SIGLIP, prefix=_INNER, head="lm_head"),
    "idefics3": _IDEFICS3,
    "smolvlm": _IDEFICS3,
    "internvl": _adapter(_normed_shuffled, text="qwen2", tower="internvl_vision"),
    "internvl_chat": _adapter(
        _normed_shuffled, text="internlm2", tower="intern_vit_6b", names=("vision_model", "mlp1")
    ),
    "deepseek_vl": _adapter(
        _two_layers,
        text="llama",
        tower=_SIGLIP,
        prefix=_INNER,
        head="lm_head",
        names=("vision_model", "aligner"),
    ),
    "lfm2_vl": _adapter(_lfm2, text="lfm2", tower="siglip2_vision_model", prefix=_INNER, head="lm_head"),
}
