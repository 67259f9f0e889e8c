"""GPT-NeoX (Pythia) and StableLM, StarCoder 2, Persimmon, OPT: LayerNorms and mostly biases."""

from __future__ import annotations

from typing import Any

from rooflens.models.families.common import (
    INTERMEDIATE,
    activation,
    linear,
    norm,
    plain_mlp,
    rotary,
)
from rooflens.models.families.config import Config
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import DenseMlp, Linear, ModelSpec, Norm, Parameter

_FUSED_NAMES = ("dense_h_to_4h", "dense_4h_to_h")


def _plain(cfg: Config, sizes: Sizes, default: str, **fields: Any) -> DenseMlp:
    return plain_mlp(
        hidden=sizes.hidden,
        intermediate=cfg.size(*INTERMEDIATE, default=4 * sizes.hidden),
        activation=activation(cfg, default=default),
        **fields,
    )


def gpt_neox(cfg: Config, name: str) -> ModelSpec:
    """GPT-NeoX: a norm each for attention and feed-forward, side by side where the config says so."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=True)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, partial=0.25),
        prefix="attention",
        fused="query_key_value",
        layout="grouped",
        names=("", "", "", "dense"),
        qkv_bias=bias,
        o_bias=bias,
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=_plain(cfg, sizes, "gelu", names=_FUSED_NAMES),
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "gpt_neox.final_layer_norm", eps=eps, kind="layer"),
        parallel=cfg.flag("use_parallel_residual", default=True),
        embedding_source="gpt_neox.embed_in",
        head_source="embed_out",
        layer_prefix="gpt_neox.layers.{i}.",
    )


def stablelm(cfg: Config, name: str) -> ModelSpec:
    """StableLM: LayerNorms, a quarter of each head rotated, a norm per head of q and k in the larger ones."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_eps", "norm_eps", default=1e-5)
    parallel = cfg.flag("use_parallel_residual", default=False)
    query_key: tuple[Norm, ...] = ()
    if cfg.flag("qk_layernorm", default=False):
        query_key = tuple(
            norm(
                f"{x}_norm",
                sizes.head_dim,
                f"self_attn.{x}_layernorm.norms.{{h}}",
                eps=eps,
                kind="layer",
                bias=False,
                groups=heads,
            )
            for x, heads in (("q", sizes.heads), ("k", sizes.kv_heads))
        )
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, partial=0.25),
        qkv_bias=cfg.flag("use_qkv_bias", default=False),
        norms=query_key,
    )
    norms = pre_norms(sizes.hidden, eps=eps, kind="layer")
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=sizes.gated(cfg),
        layer_norms=norms[:1] if parallel else norms,
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, kind="layer"),
        parallel=parallel,
    )


def starcoder2(cfg: Config, name: str) -> ModelSpec:
    """StarCoder 2: grouped queries, biases everywhere, an optional window, tied."""
    sizes = read_sizes(cfg)
    eps = cfg.number("norm_epsilon", default=1e-5)
    bias = cfg.flag("use_bias", default=True)
    position = rotary(cfg, sizes.head_dim)
    in_force = windows(cfg, sizes.layers)
    mixers = {
        window: sizes.attention(position, qkv_bias=bias, o_bias=bias, window=window)
        for window in set(in_force)
    }
    return stack(
        cfg,
        name,
        attentions=[mixers[window] for window in in_force],
        mlp=_plain(cfg, sizes, "gelu_tanh", bias=bias, names=("c_fc", "c_proj")),
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, kind="layer"),
        tied_default=True,
    )


def persimmon(cfg: Config, name: str) -> ModelSpec:
    """Persimmon: squared ReLU, half of each head rotated, LayerNorms on q and k."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_eps", default=1e-5)
    query_key: tuple[Norm, ...] = ()
    if cfg.flag("qk_layernorm", default=True):
        names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
        query_key = query_key_norms(sizes, eps=eps, kind="layer", sources=names)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, partial=0.5),
        fused="query_key_value",
        layout="grouped",
        names=("", "", "", "dense"),
        qkv_bias=True,
        o_bias=True,
        norms=query_key,
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=_plain(cfg, sizes, "relu2", names=_FUSED_NAMES),
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "model.final_layernorm", eps=eps, kind="layer"),
    )


# OPT's position table has two rows before the first position.
_OPT_POSITION_OFFSET = 2


def opt(cfg: Config, name: str) -> ModelSpec:
    """OPT, Galactica: learned positions; 350M norms after the residual and embeds into a narrower space."""
    sizes = read_sizes(cfg)
    width = cfg.size("word_embed_proj_dim", default=sizes.hidden)
    bias = cfg.flag("enable_bias", default=True)
    affine = cfg.flag("layer_norm_elementwise_affine", default=True)
    before = cfg.flag("do_layer_norm_before", default=True)
    root = "model.decoder."

    def layer_norm(x: str, source: str) -> Norm:
        return norm(x, sizes.hidden, source, eps=1e-5, kind="layer", affine=affine, bias=affine)

    names = ("attention_norm", "mlp_norm") if before else ("attention_residual_norm", "mlp_residual_norm")
    mixer = sizes.attention(
        None, names=("q_proj", "k_proj", "v_proj", "out_proj"), qkv_bias=bias, o_bias=bias
    )
    projections: tuple[Linear, ...] = ()
    if width != sizes.hidden:
        projections = (
            linear("project_in", width, sizes.hidden, f"{root}project_in", shard="replicated"),
            linear("project_out", sizes.hidden, width, f"{root}project_out", shard="replicated"),
        )
    final = before and not cfg.flag("_remove_final_layer_norm", default=False)
    rows = cfg.size("max_position_embeddings", default=2048) + _OPT_POSITION_OFFSET
    position = Parameter("position_embedding", (rows, sizes.hidden), f"{root}embed_positions.weight")
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=plain_mlp(
            hidden=sizes.hidden,
            intermediate=cfg.size("ffn_dim"),
            activation=activation(cfg, "activation_function", default="relu"),
            bias=bias,
            prefix="",
            names=("fc1", "fc2"),
        ),
        layer_norms=(layer_norm(names[0], "self_attn_layer_norm"), layer_norm(names[1], "final_layer_norm")),
        final_norm=layer_norm("final_norm", f"{root}final_layer_norm") if final else None,
        tied_default=True,
        embedding_source=f"{root}embed_tokens",
        embedding_dim=width,
        linears=projections,
        parameters_extra=(position,),
        layer_prefix=f"{root}layers.{{i}}.",
    )


ADAPTERS = {
    "gpt_neox": gpt_neox,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "persimmon": persimmon,
    "opt": opt,
}
