"""Qwen 1 to 3, dense and with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflens.errors import InputError
from rooflens.models.families.common import INTERMEDIATE, gated_mlp, linear, mixture, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import DenseMlp, Mlp, ModelSpec

# What transformers assumes where a config leaves max_window_layers out.
MAX_WINDOW_LAYERS = 28


def qwen(cfg: Config, name: str) -> ModelSpec:
    """Qwen 1: one fused q, k, v matrix with a bias; ``intermediate_size`` counts gate and up together."""
    sizes = read_sizes(cfg, default_head_dim=cfg.optional_size("kv_channels"))
    both = cfg.size(*INTERMEDIATE)
    if both % 2:
        raise InputError(
            f"{cfg.where}: intermediate_size holds gate and up together", value=both, allowed="even"
        )
    cfg.note(f"intermediate_size {both} is gate and up together: the feed-forward is {both // 2} wide")
    trained = cfg.optional_size("seq_length")
    if trained and trained < cfg.size("max_position_embeddings", default=trained):
        cfg.note(f"trained on {trained} tokens; longer contexts rest on dynamic NTK scaling")
    bias = not cfg.flag("no_bias", default=True)
    eps = cfg.number("layer_norm_epsilon", default=1e-6)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim),
        prefix="attn",
        fused="c_attn",
        names=("", "", "", "c_proj"),
        qkv_bias=True,
        o_bias=bias,
    )
    mlp = gated_mlp(hidden=sizes.hidden, intermediate=both // 2, bias=bias, names=("w2", "w1", "c_proj"))
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=mlp,
        layer_norms=pre_norms(sizes.hidden, eps=eps, sources=("ln_1", "ln_2")),
        final_norm=norm("final_norm", sizes.hidden, "transformer.ln_f", eps=eps),
        embedding_source="transformer.wte",
        layer_prefix="transformer.h.{i}.",
    )


def qwen_windows(cfg: Config, layers: int) -> list[int | None]:
    """Windows on the layers from ``max_window_layers`` on, only where ``use_sliding_window`` says so."""
    first = cfg.count("max_window_layers", default=MAX_WINDOW_LAYERS)
    enabled = cfg.flag("use_sliding_window", default=False)
    return windows(cfg, layers, default=lambda index: index >= first, enabled=enabled)


def qwen2(cfg: Config, name: str) -> ModelSpec:
    """Qwen 1.5, 2 and 2.5: biases on q, k, v."""
    sizes = read_sizes(cfg)
    return llama_like(cfg, name, sizes=sizes, qkv_bias=True, layer_windows=qwen_windows(cfg, sizes.layers))


def qwen3(cfg: Config, name: str) -> ModelSpec:
    """Qwen 3: norms on the heads of q and k, heads of 128 features, no biases."""
    sizes = read_sizes(cfg, default_head_dim=128)
    bias = cfg.flag("attention_bias", default=False)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=eps),
        layer_windows=qwen_windows(cfg, sizes.layers),
    )


def sparse_layers(cfg: Config, layers: int) -> list[bool]:
    """Which layers have experts: every ``decoder_sparse_step``-th one not in ``mlp_only_layers``."""
    step = cfg.size("decoder_sparse_step", default=1)
    dense = cfg.items("mlp_only_layers") or []
    return [index not in dense and (index + 1) % step == 0 for index in range(layers)]


def routed_expert(cfg: Config, sizes: Sizes) -> DenseMlp:
    """One routed expert, stored one by one under ``mlp.experts``."""
    return sizes.gated(cfg, intermediate=cfg.size("moe_intermediate_size"), prefix="mlp.experts.{e}")


def _mlps(cfg: Config, sizes: Sizes, **shared: Any) -> Sequence[Mlp]:
    """Experts where the pattern says so, a dense feed-forward elsewhere; no experts at all mean dense."""
    pattern = sparse_layers(cfg, sizes.layers)
    count = cfg.count("num_experts", "num_local_experts", default=0)
    if not count or not any(pattern):
        return [sizes.gated(cfg)] * sizes.layers
    sparse = mixture(
        hidden=sizes.hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=routed_expert(cfg, sizes),
        **shared,
    )
    dense = sparse if all(pattern) else sizes.gated(cfg)
    return [sparse if has_experts else dense for has_experts in pattern]


def qwen2_moe(cfg: Config, name: str) -> ModelSpec:
    """Qwen 1.5 and 2 MoE: routed experts beside a shared one with its own gate."""
    sizes = read_sizes(cfg)
    shared = sizes.gated(
        cfg, intermediate=cfg.size("shared_expert_intermediate_size"), prefix="mlp.shared_expert"
    )
    shared_gate = linear("shared_gate", sizes.hidden, 1, "mlp.shared_expert_gate", shard="replicated")
    limit = cfg.count("max_window_layers", default=MAX_WINDOW_LAYERS)
    layer_windows = windows(
        cfg,
        sizes.layers,
        default=lambda index: index % 2 == 0 and index < limit,
        enabled=cfg.flag("use_sliding_window", default=False),
    )
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=cfg.flag("qkv_bias", default=True),
        layer_windows=layer_windows,
        mlp=_mlps(cfg, sizes, shared=shared, shared_gate=shared_gate),
    )


def qwen3_moe(cfg: Config, name: str) -> ModelSpec:
    """Qwen 3 MoE: norms on the heads of q and k, no shared expert."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    enabled = cfg.flag("use_sliding_window", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=cfg.number("rms_norm_eps", default=1e-6)),
        layer_windows=windows(cfg, sizes.layers, enabled=enabled),
        mlp=_mlps(cfg, sizes),
    )


ADAPTERS = {
    "qwen": qwen,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
}
