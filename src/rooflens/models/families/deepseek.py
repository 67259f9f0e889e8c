"""DeepSeek V2, V3, R1 and V3.2, and the models published in their form (Kimi K2, GLM 5).

Multi-head latent attention, routed experts beside shared ones, next-token prediction layers. Source:
the DeepSeek-V2 and V3 papers and the models' code in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

from rooflens.errors import InputError
from rooflens.models.accounting import layer_parameters
from rooflens.models.families.common import (
    activation,
    decoder,
    gated_mlp,
    linear,
    mixture,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import pre_norms, read_sizes
from rooflens.models.spec import (
    Component,
    DenseMlp,
    LatentAttention,
    Layer,
    Linear,
    MixtureOfExperts,
    Mlp,
    ModelSpec,
    Norm,
    Parameter,
)

CORRECTION_BIAS = "e_score_correction_bias"
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "num_routed_experts")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")


def softmax_scale(cfg: Config, head_dim: int) -> float:
    """1/sqrt(head_dim), times the square of YaRN's mscale where ``mscale_all_dim`` asks for it."""
    scale = float(head_dim**-0.5)
    scaling = cfg.section("rope_parameters", "rope_scaling")
    if scaling is None or scaling.text("rope_type", "type", default="default") == "default":
        return scale
    factor = scaling.number("factor", default=1.0)
    all_dim = scaling.number("mscale_all_dim", default=0.0)
    if all_dim and factor > 1:
        scale *= (0.1 * all_dim * log(factor) + 1.0) ** 2
    return scale


def latent_attention(
    cfg: Config,
    *,
    hidden: int,
    eps: float,
    indexer: str | None = None,
    prefix: str = "self_attn",
) -> LatentAttention:
    """MLA with a compressed query or, where ``q_lora_rank`` is null, a plain one.

    ``indexer`` is ``full`` for a layer that has its own indexer, ``shared`` for one that reads the
    tokens that an earlier layer's indexer chose.
    """
    heads = cfg.size("num_attention_heads")
    rank, rope = cfg.size("kv_lora_rank"), cfg.size("qk_rope_head_dim")
    nope, value = cfg.size("qk_nope_head_dim"), cfg.size("v_head_dim")
    q_rank, bias = cfg.optional_size("q_lora_rank"), cfg.flag("attention_bias", default=False)
    linears: list[Linear] = []
    norms: list[Norm] = []
    if q_rank is None:
        linears.append(linear("q_proj", hidden, heads * (nope + rope), f"{prefix}.q_proj"))
    else:
        linears.append(
            linear("q_a_proj", hidden, q_rank, f"{prefix}.q_a_proj", bias=bias, shard="replicated")
        )
        linears.append(linear("q_b_proj", q_rank, heads * (nope + rope), f"{prefix}.q_b_proj"))
        norms.append(norm("q_a_norm", q_rank, f"{prefix}.q_a_layernorm", eps=eps))
    compressed = f"{prefix}.kv_a_proj_with_mqa"
    linears += [
        linear("kv_a_proj", hidden, rank + rope, compressed, bias=bias, shard="replicated"),
        linear("kv_b_proj", rank, heads * (nope + value), f"{prefix}.kv_b_proj"),
        linear("o_proj", heads * value, hidden, f"{prefix}.o_proj", bias=bias, shard="row"),
    ]
    norms.append(norm("kv_a_norm", rank, f"{prefix}.kv_a_layernorm", eps=eps))
    index_heads = index_dim = 0
    if indexer == "full":
        if q_rank is None:
            raise InputError(f"{cfg.where}: an indexer needs q_lora_rank", value=None)
        index_heads, index_dim = cfg.size("index_n_heads"), cfg.size("index_head_dim")
        own = f"{prefix}.indexer"
        linears += [
            linear("indexer.q_proj", q_rank, index_heads * index_dim, f"{own}.wq_b", shard="replicated"),
            linear("indexer.k_proj", hidden, index_dim, f"{own}.wk", shard="replicated"),
            linear("indexer.weights_proj", hidden, index_heads, f"{own}.weights_proj", shard="replicated"),
        ]
        norms.append(norm("indexer.k_norm", index_dim, f"{own}.k_norm", kind="layer"))
    return LatentAttention(
        heads=heads,
        kv_lora_rank=rank,
        rope_dim=rope,
        nope_dim=nope,
        v_head_dim=value,
        linears=tuple(linears),
        norms=tuple(norms),
        rotary=replace(rotary(cfg, rope, interleaved=cfg.flag("rope_interleave", default=True)), dim=rope),
        scale=softmax_scale(cfg, nope + rope),
        indexer_heads=index_heads,
        indexer_key_dim=index_dim,
        indexer_top_k=cfg.size("index_topk") if indexer else 0,
    )


def expert_mlp(cfg: Config, hidden: int, size: int, prefix: str = "mlp.experts.{e}") -> DenseMlp:
    """One gated feed-forward of ``size`` features under ``prefix``."""
    return gated_mlp(hidden=hidden, intermediate=size, activation=activation(cfg), prefix=prefix)


def routed_experts(
    cfg: Config, hidden: int, *, prefix: str = "mlp", stacked: bool = False
) -> MixtureOfExperts:
    """DeepSeek's experts: shared ones fused into one feed-forward, a correction bias for the routing.

    ``stacked`` names a checkpoint with all routed experts in one tensor.
    """
    size = cfg.size("moe_intermediate_size")
    experts, shared = cfg.size(*EXPERTS), cfg.count(*SHARED_EXPERTS)
    corrected = cfg.text("topk_method", default="noaux_tc") == "noaux_tc"
    bias = Parameter(
        CORRECTION_BIAS, (experts,), f"{prefix}.gate.{CORRECTION_BIAS}", dtype="fp32", buffer=True
    )
    expert = expert_mlp(cfg, hidden, size, f"{prefix}.experts.{{e}}")
    if stacked and cfg.get("quantization_config") is None:
        expert = gated_mlp(
            hidden=hidden,
            intermediate=size,
            activation=activation(cfg),
            prefix=f"{prefix}.experts",
            fused="gate_up_proj",
        )
    return mixture(
        hidden=hidden,
        experts=experts,
        top_k=cfg.size("num_experts_per_tok"),
        expert=expert,
        router_source=f"{prefix}.gate",
        shared=expert_mlp(cfg, hidden, size * shared, f"{prefix}.shared_experts") if shared else None,
        parameters=(bias,) if corrected else (),
    )


def sparse_layers(cfg: Config, layers: int) -> list[bool]:
    """Which layers hold experts: ``mlp_layer_types``, or ``first_k_dense_replace`` and ``moe_layer_freq``."""
    types = cfg.kinds("mlp_layer_types", known=("dense", "sparse"), length=layers)
    if types is not None:
        return [kind != "dense" for kind in types]
    frequencies = cfg.get("moe_layer_freq")
    if isinstance(frequencies, list):
        return [bool(value) for value in cfg.numbers("moe_layer_freq", length=layers) or ()]
    first, every = cfg.count("first_k_dense_replace"), cfg.size("moe_layer_freq", default=1)
    if not cfg.count(*EXPERTS, default=1):  # zero experts mean a dense model; absent is an error later
        return [False] * layers
    return [index >= first and index % every == 0 for index in range(layers)]


def mtp_component(layer: Layer, *, hidden: int, count: int) -> tuple[Component, ...]:
    """``count`` next-token prediction layers: a full layer, two input norms, their projection, a norm.

    Each takes the last hidden state and the next token's embedding, both normalised, through one
    2 x hidden to hidden projection (DeepSeek-V3 paper, section 2.2). Table and head are the model's.
    """
    if not count:
        return ()
    one = layer_parameters(layer)[0] + 2 * hidden * hidden + 3 * hidden
    return (Component("mtp", "mtp", one * count),)


def latent_decoder(
    cfg: Config,
    name: str,
    *,
    indexers: Sequence[str | None] | None = None,
    eps: float = 1e-6,
    stacked_experts: bool = False,
) -> ModelSpec:
    """Layers of latent attention with a dense feed-forward or experts."""
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("rms_norm_eps", default=eps)
    kinds = indexers or [None] * count
    attentions = {
        kind: latent_attention(cfg, hidden=hidden, eps=eps, indexer=kind) for kind in dict.fromkeys(kinds)
    }
    sparse = sparse_layers(cfg, count)
    dense: Mlp | None = None
    if not all(sparse):
        dense = gated_mlp(
            hidden=hidden,
            intermediate=cfg.size("intermediate_size"),
            activation=activation(cfg),
            bias=cfg.flag("mlp_bias", default=False),
        )
    moe = routed_experts(cfg, hidden, stacked=stacked_experts) if any(sparse) else None
    norms = pre_norms(hidden, eps=eps)
    layers = [
        Layer((attentions[kind],), moe if is_sparse else dense, norms)
        for kind, is_sparse in zip(kinds, sparse, strict=True)
    ]
    predictor = layers[-1]
    if "full" in attentions:  # the prediction layer always has an indexer of its own
        predictor = replace(predictor, mixers=(attentions["full"],))
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
        components=mtp_component(
            predictor, hidden=hidden, count=cfg.count("num_nextn_predict_layers", "num_mtp_layers")
        ),
    )
    return with_notes(spec, cfg)


def _shared(cfg: Config, count: int) -> dict[str, int]:
    """The default number of shared experts, for a config that names none under either spelling."""
    return {} if cfg.get(*SHARED_EXPERTS) is not None else {SHARED_EXPERTS[0]: count}


def deepseek_v2(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek V2 and V2-Lite; ``q_lora_rank`` null means an uncompressed query."""
    cfg = with_defaults(cfg, q_lora_rank=1536, topk_method="greedy", **_shared(cfg, 2))
    return latent_decoder(cfg, name)


def deepseek_v3(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek V3, V3.1, R1 and Kimi K2."""
    cfg = with_defaults(cfg, q_lora_rank=1536, **_shared(cfg, 1), first_k_dense_replace=3)
    return latent_decoder(cfg, name)


def deepseek_v32(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek V3.2: V3 with an indexer in every layer that chooses the tokens to attend to."""
    cfg = with_defaults(cfg, **_shared(cfg, 1), first_k_dense_replace=3)
    return latent_decoder(cfg, name, indexers=["full"] * cfg.layers("num_hidden_layers"))


def deepseek(cfg: Config, name: str) -> ModelSpec:
    """DeepSeekMoE, and the tiny DeepSeek-VL2's language model: V2's experts with multi-head attention."""
    cfg = with_defaults(cfg, topk_method="greedy")
    sizes = read_sizes(cfg)
    hidden, eps = sizes.hidden, cfg.number("rms_norm_eps", default=1e-6)
    bias = cfg.flag("attention_bias", default=False)
    mixer = sizes.attention(rotary(cfg, sizes.head_dim), qkv_bias=bias, o_bias=bias)
    sparse = sparse_layers(cfg, sizes.layers)
    dense, experts = sizes.gated(cfg), routed_experts(cfg, hidden) if any(sparse) else None
    norms = pre_norms(hidden, eps=eps)
    spec = decoder(
        cfg,
        name,
        layers=[Layer((mixer,), experts if is_sparse else dense, norms) for is_sparse in sparse],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
    )
    return with_notes(spec, cfg)


def mistral4(cfg: Config, name: str) -> ModelSpec:
    """Mistral 4: V3's layers with another routing, which has no correction."""
    cfg = with_defaults(cfg, q_lora_rank=1024, topk_method="greedy", **_shared(cfg, 1))
    return latent_decoder(cfg, name, stacked_experts=True)


def minicpm3(cfg: Config, name: str) -> ModelSpec:
    """MiniCPM3: latent attention in a dense model, with MiniCPM's scales."""
    hidden, layers = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    value = hidden // cfg.size("num_attention_heads")
    cfg = with_defaults(cfg, q_lora_rank=768, n_routed_experts=0, tie_word_embeddings=True)
    if cfg.optional_size("v_head_dim") is None:
        cfg = with_defaults(_without(cfg, "v_head_dim"), v_head_dim=value)
    spec = latent_decoder(cfg, name, eps=1e-5)
    residual = cfg.number("scale_depth", default=1.4) / layers**0.5
    table = spec.embedding and replace(spec.embedding, scale=cfg.number("scale_emb", default=12.0))
    return replace(
        spec,
        layers=tuple(replace(layer, residual_scale=residual) for layer in spec.layers),
        embedding=table,
        head_scale=cfg.number("dim_model_base", default=256.0) / hidden,
    )


def youtu(cfg: Config, name: str) -> ModelSpec:
    """Youtu: V3's attention in a dense model."""
    cfg = with_defaults(cfg, q_lora_rank=1536, n_routed_experts=0, tie_word_embeddings=True)
    return latent_decoder(cfg, name)


def sarvam_mla(cfg: Config, name: str) -> ModelSpec:
    """Sarvam: V3's layers with a plain query."""
    cfg = with_defaults(cfg, q_lora_rank=None, first_k_dense_replace=1, **_shared(cfg, 1))
    return latent_decoder(cfg, name)


def axk1(cfg: Config, name: str) -> ModelSpec:
    """A.X K1: V3's layers with a norm on the output of the experts."""
    cfg = with_defaults(cfg, q_lora_rank=1536, first_k_dense_replace=1, **_shared(cfg, 1))
    spec = latent_decoder(cfg, name)
    last = norm(
        "post_mlp_norm", spec.hidden_size, "post_mlp_layernorm", eps=cfg.number("rms_norm_eps", default=1e-6)
    )
    layers = tuple(
        replace(layer, norms=(*layer.norms, last)) if isinstance(layer.mlp, MixtureOfExperts) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def _without(cfg: Config, name: str) -> Config:
    """The config without a field whose null means that it is left out."""
    rest = Config({key: value for key, value in cfg.fields.items() if key != name}, where=cfg.where)
    rest.notes = cfg.notes
    return rest


ADAPTERS = {
    "youtu": youtu,
    "sarvam_mla": sarvam_mla,
    "axk1": axk1,
    "mistral4": mistral4,
    "minicpm3": minicpm3,
    "deepseek": deepseek,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "kimi_k2": deepseek_v3,
}
