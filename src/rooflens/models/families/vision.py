"""Image towers and projectors, counted: how many parameters each kind has, from its own config section.

Nothing here is run for a text token, so a tower is one number. Source: the towers' code in Hugging Face
transformers, checked against it model by model in the tests.
"""

from __future__ import annotations

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults

COLOURS = 3


def matrix(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """A linear layer, or a convolution with ``inputs`` = channels x kernel."""
    return (inputs + int(bias)) * outputs


def layer_norm(size: int) -> int:
    """A LayerNorm with its bias."""
    return 2 * size


def side(cfg: Config, *names: str, default: int | None = None) -> int:
    """A size in pixels that may be given as one number or as [height, width] of equal numbers."""
    value = cfg.get(*names)
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1] or not isinstance(value[0], int):
            raise InputError(f"{cfg.where}: {names[0]} is not square", value=value)
        return int(value[0])
    return cfg.size(*names, default=default)


def encoder_layer(
    hidden: int,
    intermediate: int,
    *,
    bias: bool = True,
    gated: bool = False,
    norm: int | None = None,
    attention_width: int | None = None,
) -> int:
    """One transformer layer: two norms (LayerNorms unless ``norm`` says otherwise), attention, MLP."""
    width = attention_width or hidden
    attention = 3 * matrix(hidden, width, bias=bias) + matrix(width, hidden, bias=bias)
    up = (2 if gated else 1) * matrix(hidden, intermediate, bias=bias)
    norms = 2 * (layer_norm(hidden) if norm is None else norm)
    return attention + up + matrix(intermediate, hidden, bias=bias) + norms


def patches(cfg: Config, hidden: int, *, bias: bool, frames: int = 1) -> int:
    """The convolution that turns ``frames`` square patches of pixels into one vector."""
    pixels = side(cfg, "patch_size") ** 2 * frames
    return matrix(
        cfg.size("in_channels", "in_chans", "num_channels", default=COLOURS) * pixels, hidden, bias=bias
    )


def qwen_merger(hidden: int, merge: int, outputs: int, *, norm: int) -> int:
    """Qwen's projector: a norm, then two layers over ``merge`` x ``merge`` neighbouring patches."""
    wide = hidden * merge * merge
    return norm + matrix(wide, wide) + matrix(wide, outputs)


def qwen2_vl(cfg: Config) -> tuple[int, int]:
    """(tower, projector) of Qwen2-VL: LayerNorms, a plain MLP, rotary positions."""
    cfg = with_defaults(
        cfg, depth=32, embed_dim=1280, mlp_ratio=4, spatial_merge_size=2, temporal_patch_size=2
    )
    hidden = cfg.size("embed_dim")
    layer = encoder_layer(hidden, hidden * cfg.size("mlp_ratio"))
    frames = cfg.size("temporal_patch_size")
    tower = patches(cfg, hidden, bias=False, frames=frames) + cfg.layers("depth") * layer
    merge = cfg.size("spatial_merge_size")
    return tower, qwen_merger(hidden, merge, cfg.size("hidden_size"), norm=layer_norm(hidden))


def qwen2_5_vl(cfg: Config) -> tuple[int, int]:
    """(tower, projector) of Qwen2.5-VL: RMS norms, a gated MLP with biases."""
    cfg = with_defaults(cfg, depth=32, patch_size=14, spatial_merge_size=2, temporal_patch_size=2)
    hidden = cfg.size("hidden_size")
    layer = encoder_layer(hidden, cfg.size("intermediate_size"), gated=True, norm=hidden)
    frames = cfg.size("temporal_patch_size")
    tower = patches(cfg, hidden, bias=False, frames=frames) + cfg.layers("depth") * layer
    merge = cfg.size("spatial_merge_size")
    return tower, qwen_merger(hidden, merge, cfg.size("out_hidden_size"), norm=hidden)


def qwen3_vl(cfg: Config) -> tuple[int, int]:
    """(tower, projectors) of Qwen3-VL and Qwen3.5: a position table, one more projector per deep layer."""
    cfg = with_defaults(cfg, spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=2304)
    hidden = cfg.size("hidden_size")
    frames = cfg.size("temporal_patch_size")
    tower = patches(cfg, hidden, bias=True, frames=frames) + cfg.size("num_position_embeddings") * hidden
    tower += cfg.layers("depth") * encoder_layer(hidden, cfg.size("intermediate_size"))
    merge, outputs = cfg.size("spatial_merge_size"), cfg.size("out_hidden_size")
    projectors = qwen_merger(hidden, merge, outputs, norm=layer_norm(hidden))
    deep = len(cfg.items("deepstack_visual_indexes") or ())
    wide_norm = layer_norm(hidden * merge * merge)
    return tower, projectors + deep * qwen_merger(hidden, merge, outputs, norm=wide_norm)


def siglip(cfg: Config) -> int:
    """SigLIP: a position per patch, and unless ``vision_use_head`` is false a pooling head."""
    cfg = with_defaults(cfg, hidden_size=768, intermediate_size=3072, image_size=224, patch_size=16)
    cfg = with_defaults(cfg, num_hidden_layers=12, vision_use_head=True)
    hidden, wide = cfg.size("hidden_size"), cfg.size("intermediate_size")
    positions = (side(cfg, "image_size") // side(cfg, "patch_size")) ** 2
    tower = patches(cfg, hidden, bias=True) + positions * hidden + layer_norm(hidden)
    tower += cfg.layers("num_hidden_layers") * encoder_layer(hidden, wide)
    if cfg.flag("vision_use_head", default=True):
        # A learnt probe attends to all patches, then a norm and a feed-forward.
        tower += hidden + encoder_layer(hidden, wide) - layer_norm(hidden)
    return tower


def clip(cfg: Config) -> int:
    """CLIP's image tower: a class vector, a position per patch and for it, norms before and after."""
    cfg = with_defaults(cfg, hidden_size=768, intermediate_size=3072, image_size=224, patch_size=32)
    cfg = with_defaults(cfg, num_hidden_layers=12)
    hidden = cfg.size("hidden_size")
    positions = (side(cfg, "image_size") // side(cfg, "patch_size")) ** 2 + 1
    tower = patches(cfg, hidden, bias=False) + (1 + positions) * hidden + 2 * layer_norm(hidden)
    return tower + cfg.layers("num_hidden_layers") * encoder_layer(hidden, cfg.size("intermediate_size"))


def gemma4(cfg: Config) -> int:
    """Gemma 4's image tower: positions by row and column, norms around both blocks and on q and k."""
    hidden, head_dim = cfg.size("hidden_size"), cfg.size("head_dim")
    heads, kv_heads = cfg.size("num_attention_heads"), cfg.size("num_key_value_heads")
    attention = 2 * hidden * head_dim * (heads + kv_heads) + 2 * head_dim
    layer = attention + 3 * hidden * cfg.size("intermediate_size") + 4 * hidden
    positions = 2 * cfg.size("position_embedding_size", default=10240) * hidden
    return patches(cfg, hidden, bias=False) + positions + cfg.layers("num_hidden_layers") * layer


def siglip2(cfg: Config) -> int:
    """SigLIP 2 for images of any shape: as SigLIP, with a table of ``num_patches`` positions."""
    cfg = with_defaults(cfg, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, patch_size=16)
    hidden, wide = cfg.size("hidden_size"), cfg.size("intermediate_size")
    tower = (
        patches(cfg, hidden, bias=True) + cfg.size("num_patches", default=256) * hidden + layer_norm(hidden)
    )
    tower += cfg.layers("num_hidden_layers") * encoder_layer(hidden, wide)
    if cfg.flag("vision_use_head", default=True):
        tower += hidden + encoder_layer(hidden, wide) - layer_norm(hidden)
    return tower


def idefics3(cfg: Config) -> int:
    """The SigLIP tower of Idefics 3 and SmolVLM, without a pooling head."""
    cfg = with_defaults(cfg, hidden_size=1152, intermediate_size=3072, num_hidden_layers=12, patch_size=32)
    return siglip(Config({**cfg.fields, "vision_use_head": False}, where=cfg.where))


def pixtral(cfg: Config) -> int:
    """Pixtral: RMS norms, a gated MLP, no biases, rotary positions."""
    cfg = with_defaults(cfg, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, patch_size=16)
    hidden = cfg.size("hidden_size")
    layer = encoder_layer(hidden, cfg.size("intermediate_size"), bias=False, gated=True, norm=hidden)
    return patches(cfg, hidden, bias=False) + hidden + cfg.layers("num_hidden_layers") * layer


def intern_vit(cfg: Config) -> int:
    """InternViT, in its own form and in that of transformers: a scale per feature after each block."""
    cfg = with_defaults(
        cfg, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, image_size=448, patch_size=14
    )
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    positions = (side(cfg, "image_size") // side(cfg, "patch_size")) ** 2 + 1
    one_norm = hidden if "rms" in cfg.text("norm_type", default="layer_norm") else layer_norm(hidden)
    layer = encoder_layer(hidden, cfg.size("intermediate_size"), norm=one_norm) + 2 * hidden
    if not cfg.flag("qkv_bias", "attention_bias", default=False):
        layer -= 3 * hidden
    if cfg.flag("qk_normalization", "use_qk_norm", default=False):
        layer += 2 * hidden
    tower = patches(cfg, hidden, bias=True) + hidden + positions * hidden + count * layer
    # The original has no norm behind the layers; that of transformers has one unless it pools.
    return tower + (0 if cfg.flag("use_mean_pooling", default=True) else layer_norm(hidden))


def glm4v(cfg: Config) -> tuple[int, int]:
    """(tower, projector) of GLM-4.1V and 4.5V: RMS norms, a gated MLP, a strided convolution behind."""
    cfg = with_defaults(
        cfg, depth=24, image_size=336, patch_size=14, spatial_merge_size=2, temporal_patch_size=2
    )
    hidden, out = cfg.size("hidden_size"), cfg.size("out_hidden_size")
    positions = (side(cfg, "image_size") // side(cfg, "patch_size")) ** 2
    layer = encoder_layer(hidden, out, bias=False, gated=True, norm=hidden)
    if cfg.flag("attention_bias", default=False):
        layer += 3 * hidden
    tower = patches(cfg, hidden, bias=True, frames=cfg.size("temporal_patch_size")) + positions * hidden
    tower += cfg.layers("depth") * layer + 2 * hidden
    projector = matrix(hidden * cfg.size("spatial_merge_size") ** 2, out) + out * out + layer_norm(out)
    return tower, projector + 3 * out * cfg.size("intermediate_size")


def glm_ocr(cfg: Config) -> tuple[int, int]:
    """(tower, projector) of GLM-OCR: GLM-4.1V's with norms on q and k and no table of positions."""
    cfg = with_defaults(
        cfg,
        depth=24,
        hidden_size=1024,
        intermediate_size=4096,
        out_hidden_size=1536,
        num_heads=16,
        spatial_merge_size=2,
        patch_size=14,
        temporal_patch_size=2,
        attention_bias=True,
    )
    hidden, out = cfg.size("hidden_size"), cfg.size("out_hidden_size")
    bias = cfg.flag("attention_bias", default=True)
    layer = encoder_layer(hidden, cfg.size("intermediate_size"), bias=bias, gated=True, norm=hidden)
    layer += 2 * (hidden // cfg.size("num_heads"))
    tower = patches(cfg, hidden, bias=True, frames=cfg.size("temporal_patch_size"))
    tower += cfg.layers("depth") * layer + hidden
    projector = matrix(hidden * cfg.size("spatial_merge_size") ** 2, out) + out * out + layer_norm(out)
    return tower, projector + 3 * out * out * cfg.size("in_channels", default=COLOURS)


TOWERS = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "pixtral": pixtral,
    "idefics3": idefics3,
    "idefics3_vision": idefics3,
    "smolvlm": idefics3,
    "smolvlm_vision": idefics3,
    "internvl_vision": intern_vit,
    "intern_vit_6b": intern_vit,
}


def tower(cfg: Config, *, default: str = "") -> int:
    """The parameters of an image tower by its ``model_type``; unknown ones are refused by name."""
    kind = cfg.text("model_type", default=default)
    if kind not in TOWERS:
        raise UnsupportedError(
            f"{cfg.where}: the image tower '{kind}' is not covered",
            allowed=", ".join(TOWERS),
            next="inspect the language model alone, from its own section of the config",
        )
    return TOWERS[kind](cfg)
