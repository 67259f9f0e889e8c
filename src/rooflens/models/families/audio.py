"""Audio towers, counted: how many parameters each kind has, from its own config section.

Source: the towers' code in Hugging Face transformers, checked against it in the tests.
"""

from __future__ import annotations

from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.vision import matrix

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
    first, second = cfg.items("sscp_conv_channel_size", length=2) or (128, 32)
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
    first, second = cfg.items("subsampling_conv_channels", length=2) or (128, 32)
    front = _CONV_3X3 * first * (1 + second) + first + second
    front += matrix(first // 4 * second, hidden, bias=False)
    layer = _conformer_layer(hidden, cfg.size("num_attention_heads"), cfg.size("conv_kernel_size"))
    return int(front) + cfg.layers("num_hidden_layers") * layer + matrix(hidden, cfg.size("output_proj_dims"))
