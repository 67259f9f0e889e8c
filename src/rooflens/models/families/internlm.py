"""InternLM 2, Baichuan, Orion and MiniCPM: Llama's layers under other names or with other scales."""

from __future__ import annotations

from math import sqrt

from rooflens.models.families.common import mixture, norm, refuse, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import pre_norms, read_sizes, stack
from rooflens.models.spec import Mlp, ModelSpec


def internlm2(cfg: Config, name: str) -> ModelSpec:
    """InternLM 2 and 2.5: q, k, v fused group by group, names of their own."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    bias = cfg.flag("bias", default=True)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim),
        prefix="attention",
        fused="wqkv",
        layout="grouped",
        names=("", "", "", "wo"),
        qkv_bias=bias,
        o_bias=bias,
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=sizes.gated(cfg, prefix="feed_forward", names=("w1", "w3", "w2")),
        layer_norms=pre_norms(sizes.hidden, eps=eps, sources=("attention_norm", "ffn_norm")),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
        embedding_source="model.tok_embeddings",
        head_source="output",
    )


# Baichuan's 13B models have ALiBi, its 7B models rotary positions; the config does not say which.
_ROTARY_HIDDEN, _ALIBI_HIDDEN = 4096, 5120


def baichuan(cfg: Config, name: str) -> ModelSpec:
    """Baichuan 1 and 2: fused q, k, v; positions by rotation in 7B and by ALiBi in 13B."""
    sizes = read_sizes(cfg)
    if sizes.hidden not in (_ROTARY_HIDDEN, _ALIBI_HIDDEN):
        raise refuse(
            cfg, "hidden_size", why="is neither the 7B's nor the 13B's: which positions it has is open"
        )
    alibi = sizes.hidden == _ALIBI_HIDDEN
    cfg.note(f"positions by {'ALiBi' if alibi else 'rotation'}, as the size tells: the config does not")
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        attention={"fused": "W_pack", "alibi": alibi},
        rotated=[not alibi] * sizes.layers,
    )


def orion(cfg: Config, name: str) -> ModelSpec:
    """Orion: Llama with LayerNorms that have biases."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        layer_norms=pre_norms(sizes.hidden, eps=eps, kind="layer"),
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps, kind="layer"),
    )


def minicpm(cfg: Config, name: str) -> ModelSpec:
    """MiniCPM 1 and 2: Llama with scaled embeddings, residuals and logits; some with experts, tied."""
    if cfg.get("sparse_config") is not None:
        raise refuse(cfg, "sparse_config", why="(block-sparse attention) is not covered")
    sizes = read_sizes(cfg)
    mlp: Mlp | None = None
    experts = cfg.count("num_experts", default=0)
    if experts:
        mlp = mixture(
            hidden=sizes.hidden,
            experts=experts,
            top_k=cfg.size("num_experts_per_tok"),
            expert=sizes.gated(cfg, prefix="mlp.experts.{e}", names=("w1", "w3", "w2")),
        )
    base = cfg.size("dim_model_base", default=1)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        mlp=mlp,
        residual_scale=cfg.number("scale_depth", default=1.0) / sqrt(sizes.layers),
        embedding_scale=cfg.number("scale_emb", default=1.0),
        head_scale=base / sizes.hidden,
        tied_default=True,
    )


ADAPTERS = {"internlm2": internlm2, "baichuan": baichuan, "orion": orion, "minicpm": minicpm}
