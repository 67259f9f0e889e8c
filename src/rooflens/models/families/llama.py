"""Llama and the families that differ from it in biases, head sizes, windows and norms of q and k."""

from __future__ import annotations

from rooflens.models.families.common import (
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    activation,
    attention,
    decoder,
    gated_mlp,
    head_sizes,
    norm,
    rotary,
)
from rooflens.models.families.config import Config
from rooflens.models.spec import Layer, ModelSpec, Norm


def sliding_layers(cfg: Config, layers: int, *, enabled: bool) -> list[int | None]:
    """The window of each layer from ``sliding_window``, ``layer_types`` and ``max_window_layers``."""
    window = cfg.optional_size("sliding_window") if enabled else None
    types = cfg.items("layer_types", length=layers)
    if window is None:
        return [None] * layers
    if types is not None:
        return [window if kind == "sliding_attention" else None for kind in types]
    first = cfg.count("max_window_layers", default=0)
    return [window if index >= first else None for index in range(layers)]


def llama_like(
    cfg: Config,
    name: str,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: bool = False,
    windows: list[int | None] | None = None,
    tied_default: bool = False,
    eps: float = 1e-6,
) -> ModelSpec:
    """Pre-norm decoder layers with grouped-query attention and a gated MLP."""
    hidden, count = cfg.size(*HIDDEN), cfg.layers(*LAYERS)
    heads, kv_heads, head_dim = head_sizes(cfg, hidden)
    eps = cfg.number("rms_norm_eps", default=eps)
    qk_norms: tuple[Norm, ...] = ()
    if qk_norm:
        qk_norms = tuple(norm(x, head_dim, f"self_attn.{x}", eps=eps) for x in ("q_norm", "k_norm"))
    mlp = gated_mlp(
        hidden=hidden,
        intermediate=cfg.size(*INTERMEDIATE),
        activation=activation(cfg),
        bias=cfg.flag("mlp_bias", default=False),
    )
    norms = (
        norm("attention_norm", hidden, "input_layernorm", eps=eps),
        norm("mlp_norm", hidden, "post_attention_layernorm", eps=eps),
    )
    position = rotary(cfg, head_dim)
    layers = [
        Layer(
            mixers=(
                attention(
                    hidden=hidden,
                    heads=heads,
                    kv_heads=kv_heads,
                    head_dim=head_dim,
                    rotary=position,
                    qkv_bias=qkv_bias,
                    o_bias=o_bias,
                    window=window,
                    norms=qk_norms,
                ),
            ),
            mlp=mlp,
            norms=norms,
        )
        for window in (windows or [None] * count)
    ]
    final = norm("final_norm", hidden, "model.norm", eps=eps)
    return decoder(cfg, name, layers=layers, final_norm=final, tied_default=tied_default)


def llama(cfg: Config, name: str) -> ModelSpec:
    """Llama 1 to 3 and the many models published in its form."""
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(cfg, name, qkv_bias=bias, o_bias=bias)


def mistral(cfg: Config, name: str) -> ModelSpec:
    """Mistral: Llama with an optional window on every layer."""
    windows = sliding_layers(cfg, cfg.layers(*LAYERS), enabled=True)
    return llama_like(cfg, name, windows=windows)


def qwen2(cfg: Config, name: str) -> ModelSpec:
    """Qwen 1.5, 2 and 2.5: biases on q, k, v; a window only where ``use_sliding_window`` says so."""
    enabled = cfg.flag("use_sliding_window", default=False)
    return llama_like(
        cfg, name, qkv_bias=True, windows=sliding_layers(cfg, cfg.layers(*LAYERS), enabled=enabled)
    )


def qwen3(cfg: Config, name: str) -> ModelSpec:
    """Qwen 3: norms on the heads of q and k, no biases."""
    enabled = cfg.flag("use_sliding_window", default=False)
    bias = cfg.flag("attention_bias", default=False)
    windows = sliding_layers(cfg, cfg.layers(*LAYERS), enabled=enabled)
    return llama_like(cfg, name, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=windows)


ADAPTERS = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3}
