"""Ling and Ring 1 and 2 (Bailing) and Sarvam 30B: one matrix for q, k, v, experts after dense layers.

Source: Sarvam's code in Hugging Face transformers, which reads the same tensors; Ling's published configs.
"""

from __future__ import annotations

from rooflens.models.families.common import decoder, mixture, norm, rotary, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import EXPERTS, SHARED_EXPERTS, mtp_component, sparse_layers
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import pre_norms, query_key_norms, read_sizes
from rooflens.models.spec import Layer, Mlp, ModelSpec, Parameter

_HEAD_NORMS = ("attention.query_layernorm", "attention.key_layernorm")


def bailing(cfg: Config, name: str, *, head_norms: bool, corrected: bool) -> ModelSpec:
    """``head_norms``: q and k are normalised; ``corrected``: a stored bias steers the choice of experts."""
    sizes = read_sizes(cfg)
    hidden, eps = sizes.hidden, cfg.number("rms_norm_eps", default=1e-6)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim),
        qkv_bias=cfg.flag("use_qkv_bias", "attention_bias", default=False),
        o_bias=cfg.flag("use_bias", default=False),
        norms=query_key_norms(sizes, eps=eps, sources=_HEAD_NORMS) if head_norms else (),
        prefix="attention",
        names=("", "", "", "dense"),
        fused="query_key_value",
    )
    width, count, shared = cfg.size("moe_intermediate_size"), cfg.size(*EXPERTS), cfg.count(*SHARED_EXPERTS)
    together = cfg.size("moe_shared_expert_intermediate_size", default=width) * shared
    bias = Parameter("correction_bias", (count,), "mlp.gate.expert_bias", dtype="fp32", buffer=True)
    experts = mixture(
        hidden=hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, intermediate=width, prefix="mlp.experts.{e}"),
        shared=sizes.gated(cfg, intermediate=together, prefix="mlp.shared_experts") if shared else None,
        parameters=(bias,) if corrected else (),
    )
    dense: Mlp = sizes.gated(cfg)
    norms = pre_norms(hidden, eps=eps)
    layers = [
        Layer((mixer,), experts if is_sparse else dense, norms)
        for is_sparse in sparse_layers(cfg, sizes.layers)
    ]
    predicted = cfg.count("num_nextn_predict_layers", "num_mtp_layers")
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
        embedding_source="model.word_embeddings",
        components=mtp_component(layers[-1], hidden=hidden, count=predicted),
    )
    return with_notes(spec, cfg)


def bailing_moe(cfg: Config, name: str) -> ModelSpec:
    """Ling and Ring, the first generation."""
    return bailing(cfg, name, head_norms=False, corrected=False)


def bailing_moe_v2(cfg: Config, name: str) -> ModelSpec:
    """Ling and Ring 2.0: norms on the heads of q and k, half of each head rotated."""
    return bailing(
        cfg,
        name,
        head_norms=cfg.flag("use_qk_norm", default=True),
        corrected=cfg.flag("moe_router_enable_expert_bias", default=True),
    )


def sarvam_moe(cfg: Config, name: str) -> ModelSpec:
    """Sarvam 30B."""
    plain = {} if cfg.get(*SHARED_EXPERTS) is not None else {SHARED_EXPERTS[0]: 1}
    cfg = with_defaults(cfg, head_dim=64, first_k_dense_replace=1, **plain)
    return bailing(cfg, name, head_norms=cfg.flag("use_qk_norm", default=True), corrected=True)


ADAPTERS = {"bailing_moe": bailing_moe, "bailing_moe_v2": bailing_moe_v2, "sarvam_moe": sarvam_moe}
