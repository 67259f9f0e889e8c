"""Llama and the families that differ from it in biases, head sizes, windows and the feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflens.models.families.common import INTERMEDIATE, activation, norm, plain_mlp, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.registry import adapter_for
from rooflens.models.families.stack import (
    Sizes,
    pre_norms,
    query_key_norms,
    read_sizes,
    stack,
    windows,
)
from rooflens.models.spec import Mlp, ModelSpec, Norm, Rotary


def llama_like(
    cfg: Config,
    name: str,
    *,
    sizes: Sizes | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    query_key: tuple[Norm, ...] = (),
    layer_windows: Sequence[int | None] | None = None,
    position: Rotary | None = None,
    rotated: Sequence[bool] | None = None,
    mlp: Mlp | Sequence[Mlp] | None = None,
    eps: float = 1e-6,
    attention: dict[str, Any] | None = None,
    layer_norms: tuple[Norm, ...] | None = None,
    final_norm: Norm | None = None,
    **frame: Any,
) -> ModelSpec:
    """Pre-norm decoder layers with grouped-query attention and a gated MLP, under Llama's tensor names.

    ``rotated`` says which layers use rotary positions (all by default), ``attention`` holds further
    fields of every attention, ``frame`` those of `stack`.
    """
    sizes = sizes or read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=eps)
    position = position or rotary(cfg, sizes.head_dim)
    kinds = list(zip(layer_windows or [None] * sizes.layers, rotated or [True] * sizes.layers, strict=True))
    mixers = {
        (window, turns): sizes.attention(
            position if turns else None,
            window=window,
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            norms=query_key,
            **(attention or {}),
        )
        for window, turns in set(kinds)
    }
    return stack(
        cfg,
        name,
        attentions=[mixers[kind] for kind in kinds],
        mlp=mlp or sizes.gated(cfg, bias=mlp_bias),
        layer_norms=layer_norms or pre_norms(sizes.hidden, eps=eps),
        final_norm=final_norm or norm("final_norm", sizes.hidden, "model.norm", eps=eps),
        **frame,
    )


def llama(cfg: Config, name: str) -> ModelSpec:
    """Llama 1 to 3 and the many models published in its form."""
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(cfg, name, qkv_bias=bias, o_bias=bias, mlp_bias=cfg.flag("mlp_bias", default=False))


def mistral(cfg: Config, name: str) -> ModelSpec:
    """Mistral, Ministral: Llama with an optional window on every layer, or on those of ``layer_types``."""
    sizes = read_sizes(cfg)
    return llama_like(cfg, name, sizes=sizes, layer_windows=windows(cfg, sizes.layers, assumed=4096))


def ministral3(cfg: Config, name: str) -> ModelSpec:
    """Ministral 3: heads of 128 features unless told otherwise."""
    if cfg.get("text_config") is not None:
        cfg.note("model_type ministral3 names the language model, but the config is that of mistral3")
        return adapter_for("mistral3")(cfg, name)
    sizes = read_sizes(cfg, default_head_dim=128)
    position = rotary(cfg, sizes.head_dim, theta=1e6)
    return llama_like(
        cfg, name, sizes=sizes, layer_windows=windows(cfg, sizes.layers), position=position, eps=1e-5
    )


def internlm(cfg: Config, name: str) -> ModelSpec:
    """InternLM 1: Llama with biases on all four attention projections where ``bias`` says so."""
    bias = cfg.flag("bias", default=True)
    return llama_like(cfg, name, qkv_bias=bias, o_bias=bias)


def internlm3(cfg: Config, name: str) -> ModelSpec:
    """InternLM 3: biases of q, k, v and of the rest set apart."""
    sizes = read_sizes(cfg, default_head_dim=128)
    bias = cfg.flag("attention_bias", "qkv_bias", default=False)
    other = cfg.flag("mlp_bias", "bias", default=False)
    return llama_like(cfg, name, sizes=sizes, qkv_bias=bias, o_bias=other, mlp_bias=other)


def smollm3(cfg: Config, name: str) -> ModelSpec:
    """SmolLM3: Llama whose every fourth layer has no positions (``no_rope_layers``: 1 rotates, 0 not)."""
    sizes = read_sizes(cfg)
    interval = cfg.size("no_rope_layer_interval", default=4)
    marks = cfg.items("no_rope_layers", length=sizes.layers)
    rotated = [
        bool(marks[index]) if marks is not None else (index + 1) % interval != 0
        for index in range(sizes.layers)
    ]
    enabled = cfg.flag("use_sliding_window", default=False)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=cfg.flag("mlp_bias", default=False),
        rotated=rotated,
        layer_windows=windows(cfg, sizes.layers, default=lambda index: not rotated[index], enabled=enabled),
        position=rotary(cfg, sizes.head_dim, theta=2e6),
        tied_default=True,
    )


def seed_oss(cfg: Config, name: str) -> ModelSpec:
    """Seed-OSS: biases on q, k, v and apart from them on the output projection."""
    return llama_like(
        cfg,
        name,
        sizes=read_sizes(cfg, default_head_dim=128),
        qkv_bias=cfg.flag("attention_bias", default=True),
        o_bias=cfg.flag("attention_out_bias", default=False),
        mlp_bias=cfg.flag("mlp_bias", default=False),
    )


def helium(cfg: Config, name: str) -> ModelSpec:
    """Helium: Llama with neighbouring features rotated together and no bias on the output projection."""
    sizes = read_sizes(cfg, default_head_dim=128)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=cfg.flag("attention_bias", default=False),
        mlp_bias=cfg.flag("mlp_bias", default=False),
        position=rotary(cfg, sizes.head_dim, theta=1e5, interleaved=True),
        eps=1e-8,
    )


def arcee(cfg: Config, name: str) -> ModelSpec:
    """Arcee AFM: Llama with a feed-forward without a gate."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    mlp = plain_mlp(
        hidden=sizes.hidden,
        intermediate=cfg.size(*INTERMEDIATE),
        activation=activation(cfg, default="relu2"),
        bias=cfg.flag("mlp_bias", default=False),
    )
    return llama_like(cfg, name, sizes=sizes, qkv_bias=bias, o_bias=bias, mlp=mlp, eps=1e-5)


def hunyuan_v1_dense(cfg: Config, name: str) -> ModelSpec:
    """Hunyuan dense: norms on the heads of q and k, after the rotation."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    names = ("self_attn.query_layernorm", "self_attn.key_layernorm")
    query_key = query_key_norms(sizes, eps=eps, sources=names)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key,
        eps=1e-5,
        attention={"norm_after_rotary": True},
    )


def ernie4_5(cfg: Config, name: str) -> ModelSpec:
    """ERNIE 4.5 dense: neighbouring features rotated together, tied by default."""
    sizes = read_sizes(cfg, default_head_dim=128)
    bias = cfg.flag("use_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        position=rotary(cfg, sizes.head_dim, theta=5e5, interleaved=True),
        eps=1e-5,
        tied_default=True,
    )


def cwm(cfg: Config, name: str) -> ModelSpec:
    """Code World Model: Llama whose every fourth layer, from the first, attends to everything."""
    sizes = read_sizes(cfg, default_head_dim=128)
    layer_windows = windows(cfg, sizes.layers, default=lambda index: index % 4 != 0, assumed=8192)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        layer_windows=layer_windows,
        position=rotary(cfg, sizes.head_dim, theta=1e6),
        eps=1e-5,
    )


ADAPTERS = {
    "llama": llama,
    "code_llama": llama,
    "aquila": llama,
    "Yi": llama,
    "xverse": llama,
    "mistral": mistral,
    "ministral": mistral,
    "ministral3": ministral3,
    "internlm": internlm,
    "internlm3": internlm3,
    "smollm3": smollm3,
    "seed_oss": seed_oss,
    "helium": helium,
    "arcee": arcee,
    "hunyuan_v1_dense": hunyuan_v1_dense,
    "ernie4_5": ernie4_5,
    "cwm": cwm,
}
