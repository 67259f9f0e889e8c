"""Nemotron, Jais 2, Apertus and BitNet: squared ReLU or its kin in the feed-forward, norms of their own."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import INTERMEDIATE, activation, decoder, norm, plain_mlp, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes
from rooflens.models.spec import DenseMlp, Layer, ModelSpec, Parameter


def _plain(cfg: Config, sizes: Sizes, *, default: str, bias: bool) -> DenseMlp:
    return plain_mlp(
        hidden=sizes.hidden,
        intermediate=cfg.size(*INTERMEDIATE),
        activation=activation(cfg, default=default),
        bias=bias,
    )


def nemotron(cfg: Config, name: str) -> ModelSpec:
    """Nemotron 3 8B, Nemotron-4, Minitron: LayerNorms that store their weight less one, no gate."""
    sizes = read_sizes(cfg)
    eps = cfg.number("norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        position=rotary(cfg, sizes.head_dim, partial=0.5),
        mlp=_plain(cfg, sizes, default="relu2", bias=cfg.flag("mlp_bias", default=False)),
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer", offset=1.0),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, kind="layer", offset=1.0),
    )


def jais2(cfg: Config, name: str) -> ModelSpec:
    """Jais 2: LayerNorms and biases everywhere, no gate."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=True)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        mlp=_plain(cfg, sizes, default="relu2", bias=cfg.flag("mlp_bias", default=True)),
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, kind="layer"),
    )


def bitnet(cfg: Config, name: str) -> ModelSpec:
    """BitNet b1.58: Llama with norms on the inputs of the output and of the down projection."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    mlp = sizes.gated(cfg, activation=activation(cfg, default="relu2"))
    inner = norm("down_proj_norm", mlp.intermediate_size, "mlp.ffn_sub_norm", eps=eps)
    outer = norm("o_proj_norm", sizes.heads * sizes.head_dim, "self_attn.attn_sub_norm", eps=eps)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=(outer,),
        position=rotary(cfg, sizes.head_dim, theta=5e5),
        mlp=replace(mlp, norms=(inner,)),
        eps=1e-5,
    )


def apertus(cfg: Config, name: str) -> ModelSpec:
    """Apertus: xIELU, an activation with two trained numbers a layer, and norms on the heads of q and k."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, theta=12e6),
        qkv_bias=bias,
        o_bias=bias,
        norms=query_key_norms(sizes, eps=eps),
    )
    # alpha is trained; beta and eps are constants that the checkpoint carries along.
    trained = tuple(Parameter(x, (1,), f"mlp.act_fn.{x}") for x in ("alpha_p", "alpha_n"))
    constants = tuple(Parameter(x, (), f"mlp.act_fn.{x}", buffer=True) for x in ("beta", "eps"))
    layer = Layer(
        mixers=(mixer,),
        mlp=_plain(cfg, sizes, default="xielu", bias=False),
        norms=pre_norms(sizes.hidden, eps=eps, sources=("attention_layernorm", "feedforward_layernorm")),
        parameters=trained + constants,
    )
    final = norm("final_norm", sizes.hidden, "model.norm", eps=eps)
    return decoder(cfg, name, layers=[layer] * sizes.layers, final_norm=final)


ADAPTERS = {"nemotron": nemotron, "jais2": jais2, "apertus": apertus, "bitnet": bitnet}
