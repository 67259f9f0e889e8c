"""BLOOM, Falcon and MPT: fused q, k, v; positions by a slope per head (ALiBi) in most of them."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from rooflens.models.families.common import activation, norm, plain_mlp, refuse, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.stack import pre_norms, read_sizes, stack
from rooflens.models.spec import Attention, ModelSpec, Norm

_MLP_NAMES = ("dense_h_to_4h", "dense_4h_to_h")


def _refuse_late_residual(cfg: Config) -> None:
    if cfg.flag("apply_residual_connection_post_layernorm", default=False):
        raise refuse(cfg, "apply_residual_connection_post_layernorm", why="is not covered")


def bloom(cfg: Config, name: str) -> ModelSpec:
    """BLOOM: a norm on the embeddings, ALiBi, biases everywhere, tied."""
    _refuse_late_residual(cfg)
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_epsilon", default=1e-5)
    mixer = sizes.attention(
        None,
        prefix="self_attention",
        fused="query_key_value",
        layout="grouped",
        names=("", "", "", "dense"),
        qkv_bias=True,
        o_bias=True,
        alibi=True,
    )
    embedding_norm = norm(
        "embedding_norm", sizes.hidden, "transformer.word_embeddings_layernorm", eps=eps, kind="layer"
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=plain_mlp(
            hidden=sizes.hidden, intermediate=4 * sizes.hidden, activation="gelu_tanh", names=_MLP_NAMES
        ),
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "transformer.ln_f", eps=eps, kind="layer"),
        tied_default=True,
        embedding_source="transformer.word_embeddings",
        layer_prefix="transformer.h.{i}.",
        norms=(embedding_norm,),
    )


def _falcon_attention(cfg: Config, *, new: bool) -> Attention:
    """KV heads as the code decides: ``num_kv_heads`` counts only in the new architecture."""
    sizes = read_sizes(cfg)
    given = cfg.optional_size("num_kv_heads", "n_head_kv")
    if new:
        kv_heads = given or sizes.heads
    elif cfg.flag("multi_query", default=True):
        kv_heads = 1
        if given not in (None, 1):
            cfg.note(f"num_kv_heads {given} does not count beside multi_query: there is one KV head")
    else:
        kv_heads = sizes.heads
    alibi = cfg.flag("alibi", default=False)
    bias = cfg.flag("bias", default=False)
    return replace(sizes, kv_heads=kv_heads).attention(
        None if alibi else rotary(cfg, sizes.head_dim),
        prefix="self_attention",
        fused="query_key_value",
        layout="grouped",
        names=("", "", "", "dense"),
        qkv_bias=bias,
        o_bias=bias,
        alibi=alibi,
    )


def falcon(cfg: Config, name: str) -> ModelSpec:
    """Falcon: side by side with one norm (7B) or two (40B, 180B), or one after the other (RW-1B)."""
    _refuse_late_residual(cfg)
    # The first releases tell the 40B's layers by their model_type alone.
    new = cfg.flag("new_decoder_architecture", default=cfg.get("model_type") == "RefinedWeb")
    parallel = new or cfg.flag("parallel_attn", default=True)
    mixer = _falcon_attention(cfg, new=new)
    hidden = mixer.linears[0].in_features
    eps = cfg.number("layer_norm_epsilon", default=1e-5)
    two = cfg.size("num_ln_in_parallel_attn", default=2 if new else 1) == 2
    norms: tuple[Norm, ...]
    if parallel and two:
        norms = pre_norms(hidden, eps=eps, kind="layer", sources=("ln_attn", "ln_mlp"))
    elif parallel:
        norms = pre_norms(hidden, eps=eps, kind="layer")[:1]
    else:
        norms = pre_norms(hidden, eps=eps, kind="layer")
    layers = read_sizes(cfg).layers
    return stack(
        cfg,
        name,
        attentions=[mixer] * layers,
        mlp=plain_mlp(
            hidden=hidden,
            intermediate=cfg.size("ffn_hidden_size", default=4 * hidden),
            activation=activation(cfg, "activation", default="gelu"),
            bias=cfg.flag("bias", default=False),
            names=_MLP_NAMES,
        ),
        layer_norms=norms,
        final_norm=norm("final_norm", hidden, "transformer.ln_f", eps=eps, kind="layer"),
        parallel=parallel,
        tied_default=True,
        embedding_source="transformer.word_embeddings",
        layer_prefix="transformer.h.{i}.",
    )


def _mpt_head_scale(cfg: Config, hidden: int) -> float:
    scale = cfg.get("logit_scale")
    return 1 / sqrt(hidden) if scale == "inv_sqrt_d_model" else cfg.number("logit_scale", default=1.0)


def mpt(cfg: Config, name: str) -> ModelSpec:
    """MPT: no biases, LayerNorms without one, ALiBi."""
    sizes = read_sizes(cfg)
    options = cfg.section("attn_config") or Config({}, where=f"{cfg.where}: attn_config")
    if not options.flag("alibi", default=True):
        raise refuse(options, "alibi", why="is off: learned positions are not covered")
    if options.text("attn_type", default="multihead_attention") != "multihead_attention":
        raise refuse(options, "attn_type", why="is not covered")
    if options.flag("qk_ln", default=False):
        raise refuse(options, "qk_ln", why="is not covered")
    if not cfg.flag("no_bias", default=True):
        raise refuse(cfg, "no_bias", why="is off: biases are not covered")
    clip = options.number("clip_qkv", default=0.0) or None
    scale = options.number("softmax_scale", default=0.0) or None
    mixer = sizes.attention(
        None,
        prefix="attn",
        fused="Wqkv",
        names=("", "", "", "out_proj"),
        alibi=True,
        qkv_clip=clip,
        scale=scale,
    )
    eps = cfg.number("layer_norm_epsilon", default=1e-5)
    norms = pre_norms(sizes.hidden, eps=eps, kind="layer", sources=("norm_1", "norm_2"), bias=False)
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=plain_mlp(
            hidden=sizes.hidden,
            intermediate=cfg.size("expansion_ratio", default=4) * sizes.hidden,
            activation="gelu",
            bias=False,
            prefix="ffn",
        ),
        layer_norms=norms,
        final_norm=norm("final_norm", sizes.hidden, "transformer.norm_f", eps=eps, kind="layer", bias=False),
        tied_default=True,
        embedding_source="transformer.wte",
        layer_prefix="transformer.blocks.{i}.",
        head_scale=_mpt_head_scale(cfg, sizes.hidden),
    )


ADAPTERS = {
    "bloom": bloom,
    "falcon": falcon,
    "RefinedWeb": falcon,
    "RefinedWebModel": falcon,
    "mpt": mpt,
}
