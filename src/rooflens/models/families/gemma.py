"""Gemma 1 to 3 (text): scaled embeddings, norms that store their weight less one, soft caps, windows."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

from rooflens.models.families.common import activation, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import ModelSpec, Norm, Rotary

# Google's own default where a config leaves head_dim out; hidden_size / heads is smaller in most sizes.
HEAD_DIM = 256
OFFSET = 1.0


def sandwich_norms(sizes: Sizes, *, eps: float) -> tuple[Norm, ...]:
    """Norms before and after both the mixer and the feed-forward, under Gemma's names."""
    hidden = sizes.hidden
    return (
        *pre_norms(hidden, eps=eps, sources=("input_layernorm", "pre_feedforward_layernorm"), offset=OFFSET),
        norm("post_attention_norm", hidden, "post_attention_layernorm", eps=eps, offset=OFFSET),
        norm("post_mlp_norm", hidden, "post_feedforward_layernorm", eps=eps, offset=OFFSET),
    )


def _stack(cfg: Config, name: str, sizes: Sizes, *, eps: float, **fields: Any) -> ModelSpec:
    act = activation(cfg, "hidden_activation", "hidden_act", default="gelu_tanh")
    if act == "gelu":
        # The first releases say gelu and mean its tanh approximation, which is what they were trained with.
        act = "gelu_tanh"
        cfg.note("hidden_act gelu means the tanh approximation in Gemma")
    return stack(
        cfg,
        name,
        mlp=sizes.gated(cfg, activation=act),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, offset=OFFSET),
        tied_default=True,
        embedding_scale=sqrt(sizes.hidden),
        **fields,
    )


def gemma(cfg: Config, name: str) -> ModelSpec:
    """Gemma 1."""
    sizes = read_sizes(cfg, default_head_dim=HEAD_DIM)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    bias = cfg.flag("attention_bias", default=False)
    mixer = sizes.attention(rotary(cfg, sizes.head_dim), qkv_bias=bias, o_bias=bias)
    return _stack(
        cfg,
        name,
        sizes,
        eps=eps,
        attentions=[mixer] * sizes.layers,
        layer_norms=pre_norms(sizes.hidden, eps=eps, offset=OFFSET),
    )


def _optional_cap(cfg: Config, field: str, default: float | None) -> float | None:
    # null switches the cap off; only a config without the field means the family's default.
    if field in cfg.fields and cfg.fields[field] is None:
        return None
    cap = cfg.number(field, default=default or 0.0)
    return cap or None


def _windowed(
    cfg: Config,
    name: str,
    *,
    pattern: int,
    caps: tuple[float | None, float | None],
    positions: tuple[Rotary, Rotary],
    sizes: Sizes,
    eps: float,
    query_key: tuple[Norm, ...] = (),
    layer_norms: tuple[Norm, ...] | None = None,
    both_ways: bool = False,
) -> ModelSpec:
    bias = cfg.flag("attention_bias", default=False)
    local, everywhere = positions
    full = sizes.attention(
        everywhere,
        qkv_bias=bias,
        o_bias=bias,
        norms=query_key,
        scale=cfg.positive("query_pre_attn_scalar", default=256.0) ** -0.5,
        logit_softcap=_optional_cap(cfg, "attn_logit_softcapping", caps[0]),
        causal=not both_ways,
        cached=not both_ways,
    )
    in_force = windows(cfg, sizes.layers, default=lambda index: (index + 1) % pattern != 0, assumed=4096)
    sliding = {window: replace(full, window=window, rotary=local) for window in set(in_force) if window}
    return _stack(
        cfg,
        name,
        sizes,
        eps=eps,
        attentions=[sliding[window] if window else full for window in in_force],
        layer_norms=layer_norms or sandwich_norms(sizes, eps=eps),
        final_logit_softcap=_optional_cap(cfg, "final_logit_softcapping", caps[1]),
        generates=not both_ways,
    )


def gemma2(cfg: Config, name: str) -> ModelSpec:
    """Gemma 2: every other layer, from the first, has a window; soft caps on scores and logits.

    VaultGemma is the same without norms on the outputs of the blocks.
    """
    sizes = read_sizes(cfg, default_head_dim=HEAD_DIM)
    position = rotary(cfg, sizes.head_dim)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    norms = sandwich_norms(sizes, eps=eps)
    return _windowed(
        cfg,
        name,
        pattern=2,
        caps=(50.0, 30.0),
        positions=(position, position),
        sizes=sizes,
        eps=eps,
        layer_norms=norms[:2] if cfg.get("model_type") == "vaultgemma" else norms,
    )


def gemma3_text(cfg: Config, name: str) -> ModelSpec:
    """Gemma 3: five layers with a window for one without, each kind with its own rotary base."""
    both_ways = cfg.flag("use_bidirectional_attention", default=False)
    if both_ways:
        cfg.note("attention looks both ways: the model embeds text and does not generate")
    sizes = read_sizes(cfg, default_head_dim=HEAD_DIM)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    everywhere = rotary(cfg, sizes.head_dim, layer_type="full_attention", theta=1e6)
    nested = cfg.section("rope_parameters")
    if nested is not None and nested.section("sliding_attention") is not None:
        local = rotary(cfg, sizes.head_dim, layer_type="sliding_attention")
    else:
        # The scaling of the full layers does not apply to the local ones.
        local = Rotary(sizes.head_dim, cfg.number("rope_local_base_freq", default=10000.0))
    return _windowed(
        cfg,
        name,
        pattern=cfg.size("sliding_window_pattern", "_sliding_window_pattern", default=6),
        caps=(None, None),
        positions=(local, everywhere),
        sizes=sizes,
        eps=eps,
        query_key=query_key_norms(sizes, eps=eps, offset=OFFSET),
        both_ways=both_ways,
    )


ADAPTERS = {"gemma": gemma, "gemma2": gemma2, "vaultgemma": gemma2, "gemma3_text": gemma3_text}
