"""Mixtral-style models: grouped-query attention and experts in every layer, or in all but the first few."""

from __future__ import annotations

from rooflens.models.families.common import (
    INTERMEDIATE,
    activation,
    attention,
    head_sizes,
    mixture,
    norm,
    rotary,
)
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import DenseMlp, Linear, Mlp, ModelSpec, Parameter, Part


def note_mtp(cfg: Config, *names: str) -> None:
    """Say that layers for predicting further tokens are left out of the counts."""
    extra = cfg.count(*names, default=0)
    if extra:
        cfg.note(f"{extra} layer(s) for predicting further tokens are neither counted nor run")


def mixtral(cfg: Config, name: str) -> ModelSpec:
    """Mixtral: Mistral with eight experts a layer."""
    sizes = read_sizes(cfg)
    experts = mixture(
        hidden=sizes.hidden,
        experts=cfg.size("num_local_experts", "num_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, prefix="block_sparse_moe.experts.{e}", names=("w1", "w3", "w2")),
        router_source="block_sparse_moe.gate",
    )
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        layer_windows=windows(cfg, sizes.layers),
        position=rotary(cfg, sizes.head_dim, theta=1e6),
        mlp=experts,
        eps=1e-5,
    )


def minimax_m2(cfg: Config, name: str) -> ModelSpec:
    """MiniMax-M2: norms over all of q and of k, part of each head rotated, a correction per expert."""
    sizes = read_sizes(cfg, default_head_dim=128)
    eps = cfg.number("rms_norm_eps", default=1e-6)
    count = cfg.size("num_local_experts", "num_experts")
    bias = Parameter(
        "correction_bias", (count,), "block_sparse_moe.e_score_correction_bias", dtype="fp32", buffer=True
    )
    experts = mixture(
        hidden=sizes.hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, prefix="block_sparse_moe.experts.{e}", names=("w1", "w3", "w2")),
        router_source="block_sparse_moe.gate",
        parameters=(bias,),
    )
    if cfg.flag("use_mtp", default=False):
        note_mtp(cfg, "num_mtp_modules")
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        query_key=query_key_norms(sizes, eps=eps, whole=True),
        position=rotary(cfg, sizes.head_dim, theta=5e6, dim=cfg.optional_size("rotary_dim")),
        mlp=experts,
    )


def dbrx(cfg: Config, name: str) -> ModelSpec:
    """DBRX: fused q, k, v, LayerNorms without bias, the experts' rows stacked in one matrix."""
    hidden, layers = cfg.size("d_model"), cfg.layers("n_layers")
    options = cfg.section("attn_config") or Config({}, where=f"{cfg.where}: attn_config")
    ffn = cfg.section("ffn_config") or Config({}, where=f"{cfg.where}: ffn_config")
    heads, kv_heads, head_dim = head_sizes(
        Config({"n_heads": cfg.size("n_heads"), "num_kv_heads": options.size("kv_n_heads")}, where=cfg.where),
        hidden,
    )
    mixer = attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=rotary(options, head_dim),
        prefix="norm_attn_norm.attn",
        fused="Wqkv",
        names=("", "", "", "out_proj"),
        qkv_clip=options.number("clip_qkv", default=0.0) or None,
    )
    width = ffn.size("ffn_hidden_size")
    act = ffn.get("ffn_act_fn")
    kind = Config(act if isinstance(act, dict) else {"name": act}, where=ffn.where)
    expert = DenseMlp(
        intermediate_size=width,
        linears=(
            Linear(
                "gate_up_proj",
                hidden,
                tuple(Part(f"ffn.experts.mlp.{x}", width, layout="flat") for x in ("w1", "v1")),
            ),
            Linear(
                "down_proj",
                width,
                (Part("ffn.experts.mlp.w2", hidden, layout="flat"),),
                shard="row",
                transposed=True,
            ),
        ),
        activation=activation(kind, "name"),
    )
    experts = mixture(
        hidden=hidden,
        experts=ffn.size("moe_num_experts"),
        top_k=ffn.size("moe_top_k"),
        expert=expert,
        router_source="ffn.router.layer",
    )
    sources = ("norm_attn_norm.norm_1", "norm_attn_norm.norm_2")
    return stack(
        cfg,
        name,
        attentions=[mixer] * layers,
        mlp=experts,
        layer_norms=pre_norms(hidden, eps=1e-5, kind="layer", bias=False, sources=sources),
        final_norm=norm("final_norm", hidden, "transformer.norm_f", eps=1e-5, kind="layer", bias=False),
        embedding_source="transformer.wte",
        layer_prefix="transformer.blocks.{i}.",
    )


def deepseek_style_mlps(
    cfg: Config,
    sizes: Sizes,
    *,
    first_dense: int,
    correction: str | None = "mlp.gate.e_score_correction_bias",
) -> list[Mlp]:
    """Dense in the first layers, then routed experts beside shared ones (GLM-4.5, dots, Solar).

    ``correction`` names the stored bias that steers the choice of experts.
    """
    width = cfg.size("moe_intermediate_size")
    count = cfg.size("n_routed_experts", "num_experts")
    shared = cfg.count("n_shared_experts", "num_shared_experts", default=0)
    experts = mixture(
        hidden=sizes.hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, intermediate=width, prefix="mlp.experts.{e}"),
        shared=sizes.gated(cfg, intermediate=width * shared, prefix="mlp.shared_experts") if shared else None,
        parameters=(Parameter("correction_bias", (count,), correction, dtype="fp32", buffer=True),)
        if correction
        else (),
    )
    dense: Mlp = sizes.gated(cfg) if first_dense else experts
    return [dense if index < first_dense else experts for index in range(sizes.layers)]


def dots1(cfg: Config, name: str) -> ModelSpec:
    """dots.llm1: norms on the heads of q and k, experts after the first dense layers."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    first = cfg.count("max_window_layers", default=62)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=cfg.number("rms_norm_eps", default=1e-6)),
        layer_windows=windows(cfg, sizes.layers, default=lambda index: index >= first),
        mlp=deepseek_style_mlps(cfg, sizes, first_dense=cfg.count("first_k_dense_replace", default=0)),
    )


def solar_open(cfg: Config, name: str) -> ModelSpec:
    """Solar Open: routed and shared experts in every layer."""
    sizes = read_sizes(cfg, default_head_dim=128)
    bias = cfg.flag("attention_bias", default=False)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        position=rotary(cfg, sizes.head_dim, theta=1e6),
        mlp=deepseek_style_mlps(cfg, sizes, first_dense=0),
        eps=1e-5,
    )


def ernie4_5_moe(cfg: Config, name: str) -> ModelSpec:
    """ERNIE 4.5 with experts: every ``moe_layer_interval``-th layer from a first to a last one."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("use_bias", default=False)
    count = cfg.size("moe_num_experts", "num_experts")
    width = cfg.size("moe_intermediate_size")
    shared = cfg.count("moe_num_shared_experts", default=2)
    experts = mixture(
        hidden=sizes.hidden,
        experts=count,
        top_k=cfg.size("moe_k", "num_experts_per_tok"),
        expert=sizes.gated(cfg, intermediate=width, bias=bias, prefix="mlp.experts.{e}"),
        shared=sizes.gated(cfg, intermediate=width * shared, bias=bias, prefix="mlp.shared_experts")
        if shared
        else None,
        parameters=(
            Parameter("correction_bias", (1, count), "mlp.moe_statics.e_score_correction_bias", dtype="fp32"),
        ),
    )
    interval = cfg.size("moe_layer_interval", default=1)
    start = cfg.count("moe_layer_start_index", default=1)
    end = cfg.get("moe_layer_end_index")
    last = sizes.layers - 1 if end in (None, -1) else cfg.count("moe_layer_end_index")
    dense = sizes.gated(cfg, bias=bias)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        position=rotary(cfg, sizes.head_dim, theta=5e5, interleaved=True),
        mlp=[
            experts if (index + 1) % interval == 0 and start <= index <= last else dense
            for index in range(sizes.layers)
        ],
        eps=1e-5,
        tied_default=True,
    )


def _one_for_all(cfg: Config, field: str) -> int:
    """A size given once or as a list with the same value for every layer (Hunyuan)."""
    value = cfg.get(field)
    if isinstance(value, list) and value and all(entry == value[0] for entry in value):
        return Config({field: value[0]}, where=cfg.where).size(field)
    return cfg.size(field)


def hunyuan_v1_moe(cfg: Config, name: str) -> ModelSpec:
    """Hunyuan A13B: norms on the heads of q and k, one shared feed-forward beside the experts."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    names = ("self_attn.query_layernorm", "self_attn.key_layernorm")
    shared = _one_for_all(cfg, "num_shared_expert") if cfg.get("num_shared_expert") is not None else 1
    width = cfg.size(*INTERMEDIATE)
    moe_width = (
        _one_for_all(cfg, "moe_intermediate_size") if cfg.get("moe_intermediate_size") is not None else width
    )
    experts = mixture(
        hidden=sizes.hidden,
        experts=_one_for_all(cfg, "num_experts"),
        top_k=_one_for_all(cfg, "moe_topk"),
        expert=sizes.gated(cfg, intermediate=moe_width, prefix="mlp.experts.{e}"),
        router_source="mlp.gate.wg",
        shared=sizes.gated(cfg, intermediate=width * shared, prefix="mlp.shared_mlp"),
    )
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        qkv_bias=bias,
        o_bias=bias,
        query_key=query_key_norms(sizes, eps=cfg.number("rms_norm_eps", default=1e-5), sources=names),
        mlp=experts,
        eps=1e-5,
        attention={"norm_after_rotary": True},
    )


ADAPTERS = {
    "mixtral": mixtral,
    "minimax_m2": minimax_m2,
    "dbrx": dbrx,
    "dots1": dots1,
    "solar_open": solar_open,
    "ernie4_5_moe": ernie4_5_moe,
    "hunyuan_v1_moe": hunyuan_v1_moe,
}
