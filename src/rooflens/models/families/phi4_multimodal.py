"""Phi-4-multimodal: Phi-4-mini with a SigLIP tower, a conformer and, as published, an adapter for each.

Source: the model's code in Hugging Face transformers; adapters from the published config.
"""

from __future__ import annotations

from rooflens.models.families.config import Config
from rooflens.models.families.nested import language_model, with_defaults, wrapped
from rooflens.models.families.vision import layer_norm, matrix, siglip
from rooflens.models.spec import Component, ModelSpec, layer_linears

VISION_SIZES = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "image_size": 448,
    "patch_size": 14,
}
AUDIO_SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 1536,
    "num_blocks": 24,
    "num_attention_heads": 16,
    "kernel_size": 3,
    "input_size": 80,
    "time_reduction": 8,
    "nemo_conv_channels": 1024,
    "bias_max_distance": 1000,
}
_CONV_3X3 = 9


def _section(cfg: Config, name: str, sizes: dict[str, int]) -> Config:
    own = cfg.section(name) or Config({}, where=f"{cfg.where}: {name}")
    own.notes = cfg.notes
    return with_defaults(own, **sizes)


def conformer(cfg: Config) -> int:
    """Strided convolutions, a table of relative positions, layers of two gated MLPs around attention."""
    hidden, wide, kernel = cfg.size("hidden_size"), cfg.size("intermediate_size"), cfg.size("kernel_size")
    channels, bins = cfg.size("nemo_conv_channels"), cfg.size("input_size")
    halvings = cfg.size("time_reduction").bit_length() - 1
    for _ in range(halvings):
        bins = (bins + 1) // 2
    front = matrix(_CONV_3X3, channels)
    # Depthwise, then pointwise.
    front += (halvings - 1) * (matrix(_CONV_3X3, channels) + matrix(channels, channels))
    front += matrix(channels * bins, hidden)
    table = 2 * cfg.size("bias_max_distance") * cfg.size("num_attention_heads")
    mlp = layer_norm(hidden) + matrix(hidden, 2 * wide) + matrix(wide, hidden)
    convolution = layer_norm(hidden) + matrix(hidden, 2 * hidden) + 2 * hidden
    convolution += matrix(kernel, hidden) + matrix(hidden, hidden) + matrix(hidden, hidden)
    attention = 4 * matrix(hidden, hidden)
    layer = 2 * mlp + convolution + attention + 2 * layer_norm(hidden)
    return front + table + cfg.layers("num_blocks") * layer


def _adapters(cfg: Config, spec: ModelSpec) -> list[Component]:
    """Low-rank adapters on every matrix of the layers, one set for images and one for speech."""
    width = sum(
        linear.in_features + linear.out_features
        for layer in spec.layers
        for _, linear, _ in layer_linears(layer)
    )
    found = []
    for name in ("vision_lora", "speech_lora"):
        section = cfg.section(name)
        if section is not None:
            found.append(Component(name, "other", section.size("r") * width))
    if found:
        cfg.note("adapters for images and speech are counted as other: they run only with such input")
    return found


def phi4_multimodal(cfg: Config, name: str) -> ModelSpec:
    """Phi-4-multimodal, in the form of transformers and as published (``phi4mm``)."""
    spec = language_model(cfg, name, "phi3")
    hidden = spec.hidden_size
    images, sound = _section(cfg, "vision_config", VISION_SIZES), _section(cfg, "audio_config", AUDIO_SIZES)
    features, voice = images.size("hidden_size"), sound.size("hidden_size")
    # Images and speech are projected by two matrices each, speech by another pair when there is both.
    of_images = matrix(features, hidden) + matrix(hidden, hidden) + 2 * features
    of_sound = 2 * (matrix(voice, hidden) + matrix(hidden, hidden))
    prefix = "model.embed_tokens_extend"
    components = [
        Component(f"{prefix}.image_embed.img_processor", "vision", siglip(images)),
        Component(f"{prefix}.audio_embed.encoder", "audio", conformer(sound)),
        Component(prefix, "projector", of_images + of_sound),
        *_adapters(cfg, spec),
    ]
    return wrapped(spec, cfg, components=components, model="model.")


ADAPTERS = {"phi4_multimodal": phi4_multimodal, "phi4mm": phi4_multimodal}
