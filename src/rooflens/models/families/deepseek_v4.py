"""DeepSeek V4: compressed attention, hyper-connections, experts chosen by routing or by hashing the token.

A layer keeps the last ``sliding_window`` tokens as they are and everything before in compressed entries:
one for every 4 tokens with an indexer (compressed sparse attention) or one for every 128
(heavily compressed attention). Source: the model's code in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import replace

from rooflens.errors import InputError
from rooflens.models.families.common import activation, decoder, gated_mlp, linear, mixture, norm, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import CORRECTION_BIAS, mtp_component
from rooflens.models.families.nested import with_defaults
from rooflens.models.formats.base import plain_format
from rooflens.models.spec import (
    CompressedAttention,
    DenseMlp,
    Layer,
    Linear,
    MixtureOfExperts,
    ModelSpec,
    Norm,
    Parameter,
    Part,
    Rotary,
)

SPARSE, HEAVY, SLIDING = (
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "sliding_attention",
)
DEFAULT_RATES = {SPARSE: 4, HEAVY: 128, SLIDING: 0}


def compression_ratios(cfg: Config, layers: int) -> list[int]:
    """Tokens per compressed entry of every layer (0: window only), from either spelling.

    The published ``compress_ratios`` carries one more value, for the next-token prediction layer.
    """
    ratios = cfg.numbers("compress_ratios")
    if ratios is not None:
        if len(ratios) < layers:
            raise InputError(f"{cfg.where}: compress_ratios has {len(ratios)} entries for {layers} layers")
        return ratios[:layers]
    rates = cfg.section("compress_rates")
    types = cfg.kinds("layer_types", known=DEFAULT_RATES, length=layers)
    if types is None:
        raise InputError(f"{cfg.where} has neither compress_ratios nor layer_types")
    known = {
        kind: rates.size(kind, default=rate) if rates and rate else rate
        for kind, rate in DEFAULT_RATES.items()
    }
    return [known[kind] for kind in types]


def _rotary(cfg: Config, dim: int, *, compressed: bool) -> Rotary:
    scaling = cfg.section("rope_parameters", "rope_scaling")
    if scaling is not None and (nested := scaling.section("compress" if compressed else "main")) is not None:
        scaling = nested
    theta = cfg.number("compress_rope_theta" if compressed else "rope_theta", default=10000.0)
    if scaling is None or not compressed:
        return Rotary(dim, theta, interleaved=True)
    entries = {"rope_type" if key == "type" else key: value for key, value in scaling.fields.items()}
    entries = {key: value for key, value in entries.items() if isinstance(value, (int, float, str))}
    return Rotary(
        dim, scaling.number("rope_theta", default=theta), tuple(sorted(entries.items())), interleaved=True
    )


def _compressor(
    hidden: int, dim: int, *, ratio: int, source: str, name: str, eps: float
) -> tuple[list[Linear], Norm, Parameter, int]:
    """Projections, norm, position table and running state of one compressor.

    With the fine ratio neighbouring entries overlap, which doubles the projections and the tokens kept.
    The state holds values and gates of the tokens that the next entry pools (DeepSeek's reference keeps
    both in float32).
    """
    overlap = 2 if ratio == DEFAULT_RATES[SPARSE] else 1
    width = overlap * dim
    linears = [
        linear(f"{name}.kv_proj", hidden, width, f"{source}.wkv", shard="replicated"),
        linear(f"{name}.gate_proj", hidden, width, f"{source}.wgate", shard="replicated"),
    ]
    table = Parameter(f"{name}.position_bias", (ratio, width), f"{source}.ape", dtype="fp32")
    return linears, norm(f"{name}.norm", dim, f"{source}.norm", eps=eps), table, 2 * overlap * ratio * width


def _attention(cfg: Config, *, hidden: int, eps: float, ratio: int) -> CompressedAttention:
    heads, dim = cfg.size("num_attention_heads"), cfg.size("head_dim")
    rank, groups, out_rank = cfg.size("q_lora_rank"), cfg.size("o_groups"), cfg.size("o_lora_rank")
    if (heads * dim) % groups:
        raise InputError(f"{cfg.where}: o_groups does not divide the attention width", value=groups)
    rope = cfg.optional_size("qk_rope_head_dim") or int(
        dim * cfg.number("partial_rotary_factor", default=0.125)
    )
    linears = [
        linear("q_a_proj", hidden, rank, "attn.wq_a", shard="replicated"),
        linear("q_b_proj", rank, heads * dim, "attn.wq_b"),
        linear("kv_proj", hidden, dim, "attn.wkv", shard="replicated"),
        # Block-diagonal: each group of heads has its own [o_lora_rank, heads * dim / groups] matrix.
        linear("o_a_proj", heads * dim // groups, groups * out_rank, "attn.wo_a"),
        linear("o_b_proj", groups * out_rank, hidden, "attn.wo_b", shard="row"),
    ]
    norms = [
        norm("q_a_norm", rank, "attn.q_norm", eps=eps),
        norm("kv_norm", dim, "attn.kv_norm", eps=eps),
    ]
    parameters = [Parameter("sinks", (heads,), "attn.attn_sink", "column", dtype="fp32")]
    state = index_heads = index_dim = 0
    if ratio:
        more, own_norm, table, state = _compressor(
            hidden, dim, ratio=ratio, source="attn.compressor", name="compressor", eps=eps
        )
        linears += more
        norms.append(own_norm)
        parameters.append(table)
    if ratio == DEFAULT_RATES[SPARSE]:
        index_heads, index_dim = cfg.size("index_n_heads"), cfg.size("index_head_dim")
        more, own_norm, table, index_state = _compressor(
            hidden,
            index_dim,
            ratio=ratio,
            source="attn.indexer.compressor",
            name="indexer.compressor",
            eps=eps,
        )
        linears += more
        linears += [
            linear("indexer.q_proj", rank, index_heads * index_dim, "attn.indexer.wq_b", shard="replicated"),
            linear(
                "indexer.weights_proj", hidden, index_heads, "attn.indexer.weights_proj", shard="replicated"
            ),
        ]
        norms.append(own_norm)
        parameters.append(table)
        state += index_state
    return CompressedAttention(
        heads=heads,
        head_dim=dim,
        rope_dim=rope,
        window=cfg.size("sliding_window"),
        ratio=ratio,
        linears=tuple(linears),
        norms=tuple(norms),
        parameters=tuple(parameters),
        rotary=_rotary(cfg, rope, compressed=bool(ratio)),
        sinks=True,
        indexer_heads=index_heads,
        indexer_key_dim=index_dim,
        indexer_top_k=cfg.size("index_topk") if index_heads else 0,
        state_elements=state,
    )


def hyper_connection(
    hidden: int, streams: int, *, outputs: int, scales: int, name: str, source: str
) -> tuple[Linear, tuple[Parameter, ...]]:
    """The mixing of ``streams`` residual streams: one small float32 projection of all of them."""
    mix = Linear(
        f"{name}.mix",
        streams * hidden,
        (Part(f"{source}_fn", outputs, plain_format("fp32")),),
        shard="replicated",
        bare=True,
    )
    base = Parameter(f"{name}.base", (outputs,), f"{source}_base", dtype="fp32")
    return mix, (base, Parameter(f"{name}.scale", (scales,), f"{source}_scale", dtype="fp32"))


def _experts(cfg: Config, *, hidden: int, hashed: bool) -> MixtureOfExperts:
    size = cfg.size("moe_intermediate_size", "intermediate_size")
    experts, top_k = cfg.size("n_routed_experts", "num_local_experts"), cfg.size("num_experts_per_tok")
    names = ("w1", "w3", "w2")
    act = activation(cfg)

    def feed_forward(prefix: str, features: int) -> DenseMlp:
        return gated_mlp(hidden=hidden, intermediate=features, activation=act, prefix=prefix, names=names)

    choice = Parameter(CORRECTION_BIAS, (experts,), "ffn.gate.bias", dtype="fp32", buffer=True)
    if hashed:
        table = (cfg.size("vocab_size"), top_k)
        choice = Parameter("token_experts", table, "ffn.gate.tid2eid", dtype="int32", buffer=True)
    shared = cfg.count("n_shared_experts")
    return mixture(
        hidden=hidden,
        experts=experts,
        top_k=top_k,
        expert=feed_forward("ffn.experts.{e}", size),
        router_source="ffn.gate",
        shared=feed_forward("ffn.shared_experts", size * shared) if shared else None,
        parameters=(choice,),
    )


def deepseek_v4(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek V4 Flash and Pro."""
    cfg = with_defaults(cfg, n_shared_experts=1, hc_mult=4, num_hash_layers=3, tie_word_embeddings=False)
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps, streams = cfg.number("rms_norm_eps", default=1e-6), cfg.size("hc_mult")
    ratios = compression_ratios(cfg, count)
    attentions = {r: _attention(cfg, hidden=hidden, eps=eps, ratio=r) for r in dict.fromkeys(ratios)}
    types = cfg.kinds("mlp_layer_types", known=("hash_moe", "moe"), length=count)
    hashed_layers = cfg.count("num_hash_layers")
    hashed = [kind == "hash_moe" for kind in types] if types else [i < hashed_layers for i in range(count)]
    experts = {kind: _experts(cfg, hidden=hidden, hashed=kind) for kind in set(hashed)}
    # Per residual stream: weights in and out, and the streams' mixing matrix.
    mixes = (2 + streams) * streams
    attn_mix, attn_rest = hyper_connection(
        hidden, streams, outputs=mixes, scales=3, name="attention_hc", source="hc_attn"
    )
    mlp_mix, mlp_rest = hyper_connection(
        hidden, streams, outputs=mixes, scales=3, name="mlp_hc", source="hc_ffn"
    )
    norms = (
        norm("attention_norm", hidden, "attn_norm", eps=eps),
        norm("mlp_norm", hidden, "ffn_norm", eps=eps),
    )
    layers = [
        Layer(
            (attentions[ratio],),
            experts[is_hashed],
            norms,
            linears=(attn_mix, mlp_mix),
            parameters=(*attn_rest, *mlp_rest),
        )
        for ratio, is_hashed in zip(ratios, hashed, strict=True)
    ]
    head_mix, head_rest = hyper_connection(
        hidden, streams, outputs=streams, scales=1, name="head_hc", source="hc_head"
    )
    window_only = _attention(cfg, hidden=hidden, eps=eps, ratio=0)
    predictor = replace(
        layers[-1],
        mixers=(window_only,),
        linears=(*layers[-1].linears, head_mix),
        parameters=(*layers[-1].parameters, *head_rest),
    )
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "norm", eps=eps),
        embedding_source="embed",
        head_source="head",
        layer_prefix="layers.{i}.",
        linears=(head_mix,),
        parameters_extra=head_rest,
        components=mtp_component(predictor, hidden=hidden, count=cfg.count("num_nextn_predict_layers")),
    )
    return with_notes(spec, cfg)


ADAPTERS = {"deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4}
