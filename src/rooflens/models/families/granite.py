"""IBM Granite, dense and with experts: Llama with scaled embeddings, scores, residuals and logits."""

from __future__ import annotations

from typing import Any

from rooflens.models.families.common import INTERMEDIATE, activation, linear, mixture, norm
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import Sizes, pre_norms, read_sizes
from rooflens.models.spec import DenseMlp, Linear, MixtureOfExperts, ModelSpec, Norm, Part


def scales(cfg: Config) -> dict[str, Any]:
    """Granite's four multipliers, as `llama_like` takes them; ``logits_scaling`` divides."""
    return {
        "attention": {"scale": cfg.number("attention_multiplier", default=1.0)},
        "residual_scale": cfg.number("residual_multiplier", default=1.0),
        "embedding_scale": cfg.number("embedding_multiplier", default=1.0),
        "head_scale": 1.0 / cfg.positive("logits_scaling", default=1.0),
    }


def granite(cfg: Config, name: str) -> ModelSpec:
    """Granite 3 dense."""
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=cfg.flag("mlp_bias", default=False),
        **scales(cfg),
    )


def hyperclovax(cfg: Config, name: str) -> ModelSpec:
    """HyperCLOVA X: Granite's multipliers (the one of the logits multiplies), norms on outputs as well."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    bias = cfg.flag("attention_bias", default=False)
    norms: tuple[Norm, ...] = pre_norms(sizes.hidden, eps=eps)
    if cfg.flag("use_post_norm", default=True):
        norms += (
            norm("post_attention_norm", sizes.hidden, "post_norm1", eps=eps),
            norm("post_mlp_norm", sizes.hidden, "post_norm2", eps=eps),
        )
    multipliers = scales(cfg)
    if cfg.get("attention_multiplier") is None:
        multipliers["attention"] = {}
    multipliers["head_scale"] = cfg.number("logits_scaling", default=1.0)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=cfg.flag("mlp_bias", default=False),
        layer_norms=norms,
        **multipliers,
    )


def fused_mlp(cfg: Config, sizes: Sizes, intermediate: int, sources: tuple[str, str]) -> DenseMlp:
    """A gated feed-forward whose gate and up are one matrix of the checkpoint; ``sources`` name both."""
    fused, down = sources
    return DenseMlp(
        intermediate_size=intermediate,
        linears=(
            Linear("gate_up_proj", sizes.hidden, (Part(fused, 2 * intermediate),)),
            linear("down_proj", intermediate, sizes.hidden, down, shard="row"),
        ),
        activation=activation(cfg),
    )


def granite_experts(cfg: Config, sizes: Sizes) -> MixtureOfExperts:
    """All experts in one tensor each way, and a shared feed-forward where its width is not 0."""
    shared = cfg.count("shared_intermediate_size", default=0)
    return mixture(
        hidden=sizes.hidden,
        experts=cfg.size("num_local_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=fused_mlp(
            cfg,
            sizes,
            cfg.size(*INTERMEDIATE),
            ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
        ),
        router_source="block_sparse_moe.router.layer",
        shared=fused_mlp(cfg, sizes, shared, ("shared_mlp.input_linear", "shared_mlp.output_linear"))
        if shared
        else None,
    )


def granitemoe(cfg: Config, name: str) -> ModelSpec:
    """Granite 3 MoE, with or without a shared expert."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        mlp=granite_experts(cfg, sizes),
        **scales(cfg),
    )


ADAPTERS = {
    "granite": granite,
    "granitemoe": granitemoe,
    "granitemoeshared": granitemoe,
    "hyperclovax": hyperclovax,
}
