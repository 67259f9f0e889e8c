"""GPT-2 and the models in its tensor names: GPT-Neo, GPT-J, CodeGen, GPT-BigCode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflens.errors import InputError
from rooflens.models.families.common import (
    MAX_CONTEXT,
    Layout,
    activation,
    norm,
    plain_mlp,
    refuse,
    rotary,
)
from rooflens.models.families.config import Config
from rooflens.models.families.stack import Sizes, pre_norms, read_sizes, stack
from rooflens.models.spec import Attention, DenseMlp, ModelSpec, Parameter


def _mlp(
    cfg: Config, sizes: Sizes, names: tuple[str, str], *, width: str = "n_inner", **fields: Any
) -> DenseMlp:
    return plain_mlp(
        hidden=sizes.hidden,
        intermediate=cfg.size(width, default=4 * sizes.hidden),
        activation=activation(cfg, "activation_function", default="gelu_tanh"),
        names=names,
        **fields,
    )


def _gpt(
    cfg: Config,
    name: str,
    sizes: Sizes,
    *,
    attentions: list[Attention],
    mlp: DenseMlp,
    parallel: bool = False,
    **frame: Any,
) -> ModelSpec:
    eps = cfg.number("layer_norm_epsilon", default=1e-5)
    norms = pre_norms(sizes.hidden, eps=eps, kind="layer", sources=("ln_1", "ln_2"))
    return stack(
        cfg,
        name,
        attentions=attentions,
        mlp=mlp,
        layer_norms=norms[:1] if parallel else norms,
        final_norm=norm("final_norm", sizes.hidden, "transformer.ln_f", eps=eps, kind="layer"),
        parallel=parallel,
        embedding_source="transformer.wte",
        layer_prefix="transformer.h.{i}.",
        **frame,
    )


def _positions(cfg: Config, sizes: Sizes) -> tuple[Parameter, ...]:
    return (
        Parameter("position_embedding", (cfg.size(*MAX_CONTEXT), sizes.hidden), "transformer.wpe.weight"),
    )


def _plain_scale(cfg: Config) -> float | None:
    return None if cfg.flag("scale_attn_weights", default=True) else 1.0


def gpt2(cfg: Config, name: str) -> ModelSpec:
    """GPT-2: learned positions, matrices stored [in, out], tied."""
    if cfg.flag("add_cross_attention", default=False):
        raise refuse(cfg, "add_cross_attention", why="makes GPT-2 a decoder of another model's output")
    sizes = read_sizes(cfg)
    mixer = sizes.attention(
        None,
        prefix="attn",
        fused="c_attn",
        names=("", "", "", "c_proj"),
        qkv_bias=True,
        o_bias=True,
        transposed=True,
        scale=_plain_scale(cfg),
    )
    attentions = [mixer] * sizes.layers
    if cfg.flag("scale_attn_by_inverse_layer_idx", default=False):
        scale = mixer.scale or sizes.head_dim**-0.5
        attentions = [replace(mixer, scale=scale / (index + 1)) for index in range(sizes.layers)]
    return _gpt(
        cfg,
        name,
        sizes,
        attentions=attentions,
        mlp=_mlp(cfg, sizes, ("c_fc", "c_proj"), transposed=True),
        tied_default=True,
        parameters_extra=_positions(cfg, sizes),
    )


def gpt_bigcode(cfg: Config, name: str) -> ModelSpec:
    """SantaCoder, StarCoder: GPT-2 with one KV head where ``multi_query`` says so (the default)."""
    sizes = read_sizes(cfg)
    single = cfg.flag("multi_query", default=True)
    # With a KV head per query head the rows run head by head.
    layout: Layout = "stacked" if single else "grouped"
    sizes = replace(sizes, kv_heads=1 if single else sizes.heads)
    mixer = sizes.attention(
        None,
        prefix="attn",
        fused="c_attn",
        layout=layout,
        names=("", "", "", "c_proj"),
        qkv_bias=True,
        o_bias=True,
        scale=_plain_scale(cfg),
    )
    return _gpt(
        cfg,
        name,
        sizes,
        attentions=[mixer] * sizes.layers,
        mlp=_mlp(cfg, sizes, ("c_fc", "c_proj")),
        tied_default=True,
        parameters_extra=_positions(cfg, sizes),
    )


def _neo_pattern(cfg: Config, layers: int) -> list[str]:
    """[[["global", "local"], 12]] written out: one kind per layer."""
    pattern = cfg.items("attention_layers")
    if pattern is None:
        pattern = []
        for entry in cfg.items("attention_types") or [[["global", "local"], 12]]:
            if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
                raise InputError(
                    f"{cfg.where}: attention_types is not a list of [kinds, repeats]", value=entry
                )
            repeats = Config({"attention_types": entry[1]}, where=cfg.where).layers("attention_types")
            pattern += entry[0] * repeats
    if len(pattern) != layers or any(kind not in ("global", "local") for kind in pattern):
        raise InputError(
            f"{cfg.where}: attention_types names {len(pattern)} layers of {layers}", allowed="global, local"
        )
    return pattern


def gpt_neo(cfg: Config, name: str) -> ModelSpec:
    """GPT-Neo: scores that are not scaled, a window on the layers called local."""
    sizes = read_sizes(cfg)
    everywhere = sizes.attention(
        None,
        prefix="attn.attention",
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
        o_bias=True,
        scale=1.0,
    )
    local = replace(everywhere, window=cfg.size("window_size", default=256))
    pattern = _neo_pattern(cfg, sizes.layers)
    return _gpt(
        cfg,
        name,
        sizes,
        attentions=[local if kind == "local" else everywhere for kind in pattern],
        mlp=_mlp(cfg, sizes, ("c_fc", "c_proj"), width="intermediate_size"),
        tied_default=True,
        parameters_extra=_positions(cfg, sizes),
    )


def gptj(cfg: Config, name: str) -> ModelSpec:
    """GPT-J: attention and feed-forward side by side, rotary positions on pairs of neighbours."""
    sizes = read_sizes(cfg)
    position = rotary(cfg, sizes.head_dim, interleaved=True, dim=cfg.size("rotary_dim", default=64))
    mixer = sizes.attention(position, prefix="attn", names=("q_proj", "k_proj", "v_proj", "out_proj"))
    return _gpt(
        cfg,
        name,
        sizes,
        attentions=[mixer] * sizes.layers,
        mlp=_mlp(cfg, sizes, ("fc_in", "fc_out")),
        parallel=True,
        head_bias=True,
    )


def codegen(cfg: Config, name: str) -> ModelSpec:
    """CodeGen: GPT-J with q, v, k fused in four blocks."""
    sizes = read_sizes(cfg)
    position = rotary(cfg, sizes.head_dim, interleaved=True, dim=cfg.size("rotary_dim", default=64))
    mixer = sizes.attention(
        position, prefix="attn", fused="qkv_proj", layout="codegen", names=("", "", "", "out_proj")
    )
    return _gpt(
        cfg,
        name,
        sizes,
        attentions=[mixer] * sizes.layers,
        mlp=_mlp(cfg, sizes, ("fc_in", "fc_out")),
        parallel=True,
        head_bias=True,
    )


ADAPTERS = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gptj": gptj,
    "codegen": codegen,
}
