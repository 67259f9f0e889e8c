"""Phi 1 to 4, dense and with experts."""

from __future__ import annotations

from rooflens.models.families.common import (
    HIDDEN,
    INTERMEDIATE,
    activation,
    mixture,
    norm,
    plain_mlp,
    refuse,
    rotary,
)
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import pre_norms, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import ModelSpec, Norm


def phi(cfg: Config, name: str) -> ModelSpec:
    """Phi 1, 1.5 and 2: attention and feed-forward from one LayerNorm, biases everywhere."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_eps", "layer_norm_epsilon", default=1e-5)
    query_key: tuple[Norm, ...] = ()
    if cfg.flag("qk_layernorm", default=False):
        names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
        query_key = query_key_norms(sizes, eps=eps, kind="layer", sources=names)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, partial=0.5, dim=cfg.optional_size("rotary_dim")),
        names=("q_proj", "k_proj", "v_proj", "dense"),
        qkv_bias=True,
        o_bias=True,
        norms=query_key,
    )
    mlp = plain_mlp(
        hidden=sizes.hidden,
        intermediate=cfg.size(*INTERMEDIATE, default=4 * sizes.hidden),
        activation=activation(cfg, "hidden_act", "activation_function", default="gelu_tanh"),
        names=("fc1", "fc2"),
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=mlp,
        layer_norms=(norm("attention_norm", sizes.hidden, "input_layernorm", eps=eps, kind="layer"),),
        final_norm=norm("final_norm", sizes.hidden, "model.final_layernorm", eps=eps, kind="layer"),
        parallel=True,
        head_bias=True,
    )


def phi3(cfg: Config, name: str) -> ModelSpec:
    """Phi-3, Phi-3.5, Phi-4: fused q, k, v and gate, up; the window is usually longer than the context."""
    sizes = read_sizes(cfg)
    limit = cfg.size("max_position_embeddings", default=4096)
    layer_windows = windows(cfg, sizes.layers)
    if any(window is not None and window >= limit for window in layer_windows):
        cfg.note(f"sliding_window reaches over the whole context of {limit} tokens: no layer has a window")
        layer_windows = [None] * sizes.layers
    for field in ("mlp_bias", "attention_bias"):
        if cfg.flag(field, default=False):
            raise refuse(cfg, field, why="is not part of Phi-3")
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        layer_windows=layer_windows,
        mlp=sizes.gated(cfg, fused="gate_up_proj"),
        eps=1e-5,
        attention={"fused": "qkv_proj"},
        head_bias=cfg.flag("lm_head_bias", default=False),
    )


def phimoe(cfg: Config, name: str) -> ModelSpec:
    """Phi-3.5-MoE and its smaller kin: LayerNorms with biases, experts under Mixtral's names."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    expert = sizes.gated(cfg, prefix="block_sparse_moe.experts.{e}", names=("w1", "w3", "w2"))
    experts = mixture(
        hidden=sizes.hidden,
        experts=cfg.size("num_local_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=expert,
        router_source="block_sparse_moe.gate",
    )
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        layer_windows=windows(cfg, sizes.layers),
        position=rotary(cfg, sizes.head_dim, theta=1e6),
        mlp=experts,
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, kind="layer"),
        head_bias=cfg.flag("lm_head_bias", default=False),
    )


def phi_msft(cfg: Config, name: str) -> ModelSpec:
    """Phi-2 under its first published form (``phi-msft``): the same layers, other tensor names."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_epsilon", default=1e-5)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, dim=cfg.size("rotary_dim", default=32)),
        prefix="mixer",
        fused="Wqkv",
        names=("", "", "", "out_proj"),
        qkv_bias=True,
        o_bias=True,
    )
    hidden = cfg.size(*HIDDEN)
    mlp = plain_mlp(
        hidden=hidden,
        intermediate=cfg.size(*INTERMEDIATE, default=4 * hidden),
        activation=activation(cfg, "activation_function", default="gelu_tanh"),
        names=("fc1", "fc2"),
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=mlp,
        layer_norms=(norm("attention_norm", hidden, "ln", eps=eps, kind="layer"),),
        final_norm=norm("final_norm", hidden, "lm_head.ln", eps=eps, kind="layer"),
        parallel=True,
        embedding_source="transformer.embd.wte",
        head_source="lm_head.linear",
        head_bias=True,
        layer_prefix="transformer.h.{i}.",
    )


ADAPTERS = {"phi": phi, "phi-msft": phi_msft, "phi3": phi3, "phimoe": phimoe}
