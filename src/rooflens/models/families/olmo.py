"""OLMo 1 to 3, OLMoE and FlexOlmo."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import mixture, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import Sizes, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import MixtureOfExperts, ModelSpec, Norm


def olmo(cfg: Config, name: str) -> ModelSpec:
    """OLMo 1: LayerNorms without weights, optionally clamped q, k, v."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)

    def bare(x: str) -> Norm:
        return norm(x, sizes.hidden, "", eps=1e-5, kind="layer", bias=False, affine=False)

    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim),
        qkv_bias=bias,
        o_bias=bias,
        qkv_clip=cfg.number("clip_qkv", default=0.0) or None,
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=sizes.gated(cfg),
        layer_norms=(bare("attention_norm"), bare("mlp_norm")),
        final_norm=bare("final_norm"),
    )


def post_norms(hidden: int, *, eps: float) -> tuple[Norm, Norm]:
    """The norms of OLMo 2: on the outputs of mixer and feed-forward, none on their inputs."""
    return (
        norm("post_attention_norm", hidden, "post_attention_layernorm", eps=eps),
        norm("post_mlp_norm", hidden, "post_feedforward_layernorm", eps=eps),
    )


def olmo2(cfg: Config, name: str) -> ModelSpec:
    """OLMo 2: norms after the blocks, and over all of q and of k."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=eps, whole=True),
        layer_norms=post_norms(sizes.hidden, eps=eps),
        eps=1e-5,
    )


def olmo3(cfg: Config, name: str) -> ModelSpec:
    """OLMo 3: OLMo 2 with three layers with a window for each without; only the latter scale positions."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    everywhere = sizes.attention(
        rotary(cfg, sizes.head_dim, layer_type="full_attention", theta=5e5),
        qkv_bias=bias,
        o_bias=bias,
        norms=query_key_norms(sizes, eps=eps, whole=True),
    )
    position = rotary(cfg, sizes.head_dim, layer_type="sliding_attention", theta=5e5)
    local = replace(everywhere, rotary=replace(position, scaling=()))
    in_force = windows(cfg, sizes.layers, default=lambda index: (index + 1) % 4 != 0, assumed=4096)
    sliding = {window: replace(local, window=window) for window in set(in_force) if window}
    return stack(
        cfg,
        name,
        attentions=[sliding[window] if window else everywhere for window in in_force],
        mlp=sizes.gated(cfg),
        layer_norms=post_norms(sizes.hidden, eps=eps),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
    )


def _experts(cfg: Config, sizes: Sizes) -> MixtureOfExperts:
    return mixture(
        hidden=sizes.hidden,
        experts=cfg.size("num_experts", "num_local_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, prefix="mlp.experts.{e}"),
    )


def olmoe(cfg: Config, name: str) -> ModelSpec:
    """OLMoE: norms before the blocks and over all of q and of k; every layer has experts."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=eps, whole=True),
        mlp=_experts(cfg, sizes),
        eps=1e-5,
        attention={"qkv_clip": cfg.number("clip_qkv", default=0.0) or None},
    )


def flex_olmo(cfg: Config, name: str) -> ModelSpec:
    """FlexOlmo: OLMo 2 with experts."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=eps, whole=True),
        mlp=_experts(cfg, sizes),
        position=rotary(cfg, sizes.head_dim, theta=5e5),
        layer_norms=post_norms(sizes.hidden, eps=eps),
    )


ADAPTERS = {"olmo": olmo, "olmo2": olmo2, "olmo3": olmo3, "olmoe": olmoe, "flex_olmo": flex_olmo}
