"""GLM: ChatGLM 2 to GLM-4 in their own form and in that of transformers, and GLM-4.5 with experts."""

from __future__ import annotations

from typing import Literal

from rooflens.models.families.common import INTERMEDIATE, linear, norm, refuse, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.moe import deepseek_style_mlps, note_mtp
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, stack
from rooflens.models.spec import DenseMlp, Linear, ModelSpec, Norm, Part, Rotary

_EPS = 1.5625e-07


def _half(cfg: Config, sizes: Sizes) -> Rotary:
    """Half of each head rotated, neighbours together."""
    return rotary(cfg, sizes.head_dim, partial=0.5, interleaved=True)


def _glm(cfg: Config, name: str, sizes: Sizes, *, layer_norms: tuple[Norm, ...] | None = None) -> ModelSpec:
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=cfg.flag("attention_bias", default=True),
        position=_half(cfg, sizes),
        mlp=sizes.gated(cfg, fused="gate_up_proj"),
        eps=_EPS,
        layer_norms=layer_norms,
    )


def glm(cfg: Config, name: str) -> ModelSpec:
    """GLM-4 9B in the form of transformers; some GLM-4.5 copies carry this type, too."""
    if cfg.get("architectures") == ["Glm4MoeForCausalLM"]:
        cfg.note("model_type glm contradicts the class Glm4MoeForCausalLM: read as glm4_moe")
        return glm4_moe(cfg, name)
    return _glm(cfg, name, read_sizes(cfg, default_head_dim=128))


def glm4(cfg: Config, name: str) -> ModelSpec:
    """GLM-4-0414: GLM-4 with norms on the outputs of attention and feed-forward as well."""
    sizes = read_sizes(cfg, default_head_dim=128)
    eps = cfg.number("rms_norm_eps", default=_EPS)
    norms = (
        *pre_norms(sizes.hidden, eps=eps),
        norm("post_attention_norm", sizes.hidden, "post_self_attn_layernorm", eps=eps),
        norm("post_mlp_norm", sizes.hidden, "post_mlp_layernorm", eps=eps),
    )
    return _glm(cfg, name, sizes, layer_norms=norms)


def glm4_moe(cfg: Config, name: str) -> ModelSpec:
    """GLM-4.5, 4.6, 4.7: experts after the first dense layers, half of each head rotated."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    query_key: tuple[Norm, ...] = ()
    if cfg.flag("use_qk_norm", default=False):
        query_key = query_key_norms(sizes, eps=eps)
    note_mtp(cfg, "num_nextn_predict_layers")
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=cfg.flag("attention_bias", default=False),
        query_key=query_key,
        position=rotary(cfg, sizes.head_dim, partial=0.5),
        mlp=deepseek_style_mlps(cfg, sizes, first_dense=cfg.count("first_k_dense_replace", default=1)),
        eps=1e-5,
    )


def _chatglm_sizes(cfg: Config) -> Sizes:
    hidden, heads = cfg.size("hidden_size"), cfg.size("num_attention_heads")
    kv_heads = heads
    if cfg.flag("multi_query_attention", default=False):
        kv_heads = cfg.size("multi_query_group_num", default=1)
    checked = Config(
        {
            "hidden_size": hidden,
            "num_layers": cfg.layers("num_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": cfg.optional_size("kv_channels"),
        },
        where=cfg.where,
    )
    return read_sizes(checked)


def chatglm(cfg: Config, name: str) -> ModelSpec:
    """ChatGLM2, ChatGLM3 and GLM-4 as first published: fused q, k, v with a bias, fused gate and up."""
    if cfg.get("position_encoding_2d") is not None or cfg.get("inner_hidden_size") is not None:
        raise refuse(cfg, "inner_hidden_size", why="marks the first ChatGLM, which is not covered")
    if cfg.flag("apply_residual_connection_post_layernorm", default=False):
        raise refuse(cfg, "apply_residual_connection_post_layernorm", why="is not covered")
    sizes = _chatglm_sizes(cfg)
    bias = cfg.flag("add_bias_linear", default=False)
    eps = cfg.number("layernorm_epsilon", default=1e-5)
    kind: Literal["rms", "layer"] = "rms" if cfg.flag("rmsnorm", default=True) else "layer"
    theta = 10000.0 * cfg.number("rope_ratio", default=1.0)
    mixer = sizes.attention(
        Rotary(sizes.head_dim // 2, theta, interleaved=True),
        prefix="self_attention",
        fused="query_key_value",
        names=("", "", "", "dense"),
        qkv_bias=bias or cfg.flag("add_qkv_bias", default=False),
        o_bias=bias,
    )
    width = cfg.size(*INTERMEDIATE)
    mlp = DenseMlp(
        intermediate_size=width,
        linears=(
            Linear("gate_up_proj", sizes.hidden, (Part("mlp.dense_h_to_4h", 2 * width),), bias),
            linear("down_proj", width, sizes.hidden, "mlp.dense_4h_to_h", bias=bias, shard="row"),
        ),
    )
    final = None
    if cfg.flag("post_layer_norm", default=True):
        final = norm("final_norm", sizes.hidden, "transformer.encoder.final_layernorm", eps=eps, kind=kind)
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=mlp,
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind=kind),
        final_norm=final,
        vocabulary=cfg.size("padded_vocab_size", "vocab_size"),
        embedding_source="transformer.embedding.word_embeddings",
        head_source="transformer.output_layer",
        layer_prefix="transformer.encoder.layers.{i}.",
    )


ADAPTERS = {"glm": glm, "glm4": glm4, "glm4_moe": glm4_moe, "chatglm": chatglm}
