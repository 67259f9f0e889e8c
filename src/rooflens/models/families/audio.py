"""Audio towers, counted: how many parameters each kind has, from its own config section.

Source: the towers' code in Hugging Face transformers, checked against it in the tests.
"""

from __future__ import annotations

from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.vision import encoder_layer, layer_norm, matrix

_CONV_3X3 = 9


def _conformer_layer(hidden: int, heads: int, kernel: int) -> int:
    """Google's conformer: two half feed-forwards around attention and a gated depthwise convolution."""
    feed_forward = 2 * hidden + 8 * hidden * hidden
    # q, k, v, relative positions and output, the scale of each feature of a head; norms around them.
    attention = 5 * hidden * hidden + hidden // heads + 2 * hidden
    convolution = 3 * hidden * hidden + kernel * hidden + 2 * hidden
    return 2 * feed_forward + attention + convolution + hidden


def gemma3n(cfg: Config) -> int:
    """Gemma 3n's conformer behind two strided convolutions over the spectrum."""
    cfg = with_defaults(
        cfg,
        hidden_size=1536,
        input_feat_size=128,
        conf_num_attention_heads=8,
        conf_num_hidden_layers=12,
        conf_conv_kernel_size=5,
    )
    hidden, features = cfg.size("hidden_size"), cfg.size("input_feat_size")
    first, second = cfg.numbers("sscp_conv_channel_size", length=2, least=1) or (128, 32)
    for _ in range(2):  # stride 2, a kernel of 3 and one bin of padding at both ends
        features = (features + 2 - 3) // 2 + 1
    front = _CONV_3X3 * first * (1 + second) + first + second + matrix(second * features, hidden, bias=False)
    layer = _conformer_layer(hidden, cfg.size("conf_num_attention_heads"), cfg.size("conf_conv_kernel_size"))
    return int(front) + cfg.layers("conf_num_hidden_layers") * layer


def gemma4(cfg: Config) -> int:
    """Gemma 4's conformer and the projection of its output."""
    cfg = with_defaults(
        cfg,
        hidden_size=1024,
        num_hidden_layers=12,
        num_attention_heads=8,
        conv_kernel_size=5,
        output_proj_dims=1536,
    )
    hidden = cfg.size("hidden_size")
    first, second = cfg.numbers("subsampling_conv_channels", length=2, least=1) or (128, 32)
    front = _CONV_3X3 * first * (1 + second) + first + second
    front += matrix(first // 4 * second, hidden, bias=False)
    layer = _conformer_layer(hidden, cfg.size("num_attention_heads"), cfg.size("conv_kernel_size"))
    return int(front) + cfg.layers("num_hidden_layers") * layer + matrix(hidden, cfg.size("output_proj_dims"))


def whisper_like(cfg: Config) -> int:
    """The encoder of Whisper without its position table: two convolutions, layers, a last norm."""
    hidden = cfg.size("d_model", default=1280)
    layers = cfg.layers("encoder_layers") if cfg.get("encoder_layers") is not None else 32
    wide, bins = cfg.size("encoder_ffn_dim", default=5120), cfg.size("num_mel_bins", default=128)
    # The key projection has no bias.
    layer = encoder_layer(hidden, wide) - hidden
    return matrix(3 * bins, hidden) + matrix(3 * hidden, hidden) + layers * layer + layer_norm(hidden)


def qwen2_audio(cfg: Config) -> int:
    """Qwen2-Audio's encoder: Whisper's, with its table of sinusoids counted as weights."""
    positions = cfg.size("max_source_positions", default=1500)
    return whisper_like(cfg) + positions * cfg.size("d_model", default=1280)


def qwen2_5_omni(cfg: Config) -> int:
    """Qwen2.5-Omni's encoder, with two marker embeddings and the projection to the language model."""
    hidden, out = cfg.size("d_model", default=1280), cfg.size("output_dim", default=3584)
    return whisper_like(cfg) + 2 * out + matrix(hidden, out)


def qwen3_omni(cfg: Config) -> int:
    """Qwen3-Omni's encoder: three strided convolutions over the spectrum, two projections behind."""
    hidden, out = cfg.size("d_model", default=1280), cfg.size("output_dim", default=3584)
    channels, bins = cfg.size("downsample_hidden_size", default=480), cfg.size("num_mel_bins", default=128)
    layers = cfg.layers("encoder_layers") if cfg.get("encoder_layers") is not None else 32
    for _ in range(3):
        bins = (bins + 1) // 2
    front = matrix(_CONV_3X3, channels) + 2 * matrix(_CONV_3X3 * channels, channels)
    front += matrix(channels * bins, hidden, bias=False)
    layer = encoder_layer(hidden, cfg.size("encoder_ffn_dim", default=5120))
    return front + layers * layer + layer_norm(hidden) + matrix(hidden, hidden) + matrix(hidden, out)
