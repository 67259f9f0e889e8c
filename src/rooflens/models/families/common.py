"""The blocks that most decoder families are made of, and the frame that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats.base import dtype_name
from rooflens.models.spec import (
    Attention,
    DenseMlp,
    Embedding,
    Layer,
    Linear,
    MixtureOfExperts,
    ModelSpec,
    Norm,
    Part,
    Rotary,
    Shard,
)

# The spellings of the sizes that every decoder has.
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "feed_forward_size")
MAX_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "max_sequence_length",
)

DEFAULT_DTYPE = "bf16"

Layout = Literal["stacked", "grouped", "codegen", "flat"]


def linear(
    name: str,
    in_features: int,
    out_features: int,
    source: str,
    *,
    bias: bool = False,
    shard: Shard = "column",
    **fields: Any,
) -> Linear:
    """A linear layer that is one matrix of the checkpoint."""
    return Linear(name, in_features, (Part(source, out_features),), bias, shard, **fields)


def compute_dtype(cfg: Config) -> str:
    """The element type that the config declares; bf16, said as assumed, where it declares none."""
    value = cfg.get("dtype", "torch_dtype")
    if value is None:
        cfg.note(f"the config names no dtype: {DEFAULT_DTYPE} is assumed")
        return DEFAULT_DTYPE
    return dtype_name(str(value), field=f"{cfg.where}: dtype")


def head_sizes(cfg: Config, hidden: int, *, default_head_dim: int | None = None) -> tuple[int, int, int]:
    """(query heads, KV heads, head size) of the usual fields; a missing KV count means MHA.

    ``default_head_dim`` is the family's own where it does not divide the hidden size among the heads.
    """
    heads = cfg.size(*HEADS)
    kv_heads = cfg.size(*KV_HEADS, default=heads)
    if heads % kv_heads:
        raise InputError(
            f"{cfg.where}: {heads} attention heads cannot share {kv_heads} KV heads evenly",
            value=kv_heads,
            allowed=f"a divisor of {heads}",
        )
    head_dim = cfg.optional_size("head_dim") or default_head_dim
    if head_dim is None:
        if hidden % heads:
            raise InputError(
                f"{cfg.where} gives no head_dim, and hidden_size does not divide into {heads} heads",
                value=hidden,
                allowed=f"a multiple of {heads}, or head_dim given",
            )
        head_dim = hidden // heads
    return heads, kv_heads, head_dim


def freeze(value: Any) -> Any:
    """Lists as tuples and objects as sorted pairs, so that a spec stays hashable."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), freeze(item)) for key, item in value.items()))
    return tuple(freeze(item) for item in value) if isinstance(value, (list, tuple)) else value


def rotary(
    cfg: Config,
    head_dim: int,
    *,
    interleaved: bool = False,
    layer_type: str | None = None,
    theta: float = 10000.0,
    partial: float = 1.0,
    dim: int | None = None,
) -> Rotary:
    """Rotary settings from ``rope_theta``/``rope_scaling`` or the newer ``rope_parameters``.

    ``layer_type`` picks the entry where rope_parameters is nested per layer type. ``theta`` and
    ``partial`` are the family's defaults; ``dim`` is the rotated width where the config gives it outright.
    """
    parameters = cfg.section("rope_parameters", "rope_scaling")
    if parameters is not None and layer_type is not None and isinstance(parameters.get(layer_type), Mapping):
        parameters = parameters.section(layer_type)
    base = cfg.number("rope_theta", "rotary_emb_base", default=theta)
    share = cfg.number("partial_rotary_factor", "rotary_pct", "rope_pct", default=partial)
    scaling: tuple[tuple[str, Any], ...] = ()
    if parameters is not None:
        base = parameters.number("rope_theta", default=base)
        share = parameters.number("partial_rotary_factor", default=share)
        entries = {"rope_type" if key == "type" else key: value for key, value in parameters.fields.items()}
        if entries.get("rope_type", "default") != "default":
            # Phi-3 keeps the length before the extension beside the scaling, not in it.
            original = "original_max_position_embeddings"
            entries.setdefault(original, cfg.get(original))
            outside = ("rope_theta", "partial_rotary_factor")
            scaling = freeze({k: v for k, v in entries.items() if k not in outside and v is not None})
    width = int(head_dim * share) if dim is None else dim
    return Rotary(dim=width, theta=base, scaling=scaling, interleaved=interleaved)


def attention(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary: Rotary | None,
    v_head_dim: int = 0,
    qkv_bias: bool = False,
    o_bias: bool = False,
    window: int | None = None,
    norms: tuple[Norm, ...] = (),
    prefix: str = "self_attn",
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    fused: str | None = None,
    layout: Layout = "stacked",
    transposed: bool = False,
    query_gate: bool = False,
    **fields: Any,
) -> Attention:
    """Grouped-query attention with q, k, v fused into ``qkv_proj``, and ``o_proj``.

    ``fused`` names the checkpoint's own fused matrix where it has one, ``layout`` the order of its rows;
    ``query_gate`` doubles the query rows for an output gate. Remaining ``fields`` go to Attention.
    """
    value_dim = v_head_dim or head_dim
    q, k, v, o = (f"{prefix}.{name}" for name in names)
    query_rows = heads * head_dim * (2 if query_gate else 1)
    key_rows, value_rows = kv_heads * head_dim, kv_heads * value_dim
    if fused:
        rows = query_rows + key_rows + value_rows
        parts: tuple[Part, ...] = (Part(f"{prefix}.{fused}", rows, layout=layout),)
    elif fields.get("shares_kv"):
        parts = (Part(q, query_rows),)
    elif fields.get("value_is_key"):
        parts = (Part(q, query_rows), Part(k, key_rows))
    else:
        parts = (Part(q, query_rows), Part(k, key_rows), Part(v, value_rows))
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        linears=(
            Linear("qkv_proj", hidden, parts, qkv_bias, transposed=transposed),
            linear(
                "o_proj", heads * value_dim, hidden, o, bias=o_bias, shard="row", transposed=transposed
            ),
        ),
        norms=norms,
        rotary=rotary,
        window=window,
        **fields,
    )


def gated_mlp(
    *,
    hidden: int,
    intermediate: int,
    activation: str = "silu",
    bias: bool = False,
    prefix: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    fused: str | None = None,
) -> DenseMlp:
    """act(gate(x)) * up(x), then down; gate and up fused into ``gate_up_proj``."""
    gate, up, down = (f"{prefix}.{name}" for name in names)
    parts: tuple[Part, ...] = (Part(gate, intermediate), Part(up, intermediate))
    if fused:
        parts = (Part(f"{prefix}.{fused}", 2 * intermediate),)
    return DenseMlp(
        intermediate_size=intermediate,
        linears=(
            Linear("gate_up_proj", hidden, parts, bias),
            linear("down_proj", intermediate, hidden, down, bias=bias, shard="row"),
        ),
        activation=activation,
    )


def plain_mlp(
    *,
    hidden: int,
    intermediate: int,
    activation: str,
    bias: bool = True,
    prefix: str = "mlp",
    names: tuple[str, str] = ("up_proj", "down_proj"),
    transposed: bool = False,
) -> DenseMlp:
    """down(act(up(x))): the feed-forward without a gate."""
    up, down = (f"{prefix}.{name}" if prefix else name for name in names)
    return DenseMlp(
        intermediate_size=intermediate,
        linears=(
            linear("up_proj", hidden, intermediate, up, bias=bias, transposed=transposed),
            linear(
                "down_proj", intermediate, hidden, down, bias=bias, shard="row", transposed=transposed
            ),
        ),
        activation=activation,
        gated=False,
    )


def mixture(
    *,
    hidden: int,
    experts: int,
    top_k: int,
    expert: DenseMlp,
    router_source: str = "mlp.gate",
    router_bias: bool = False,
    shared: DenseMlp | None = None,
    shared_gate: Linear | None = None,
    **fields: Any,
) -> MixtureOfExperts:
    """A mixture of experts with one router; ``top_k`` above ``experts`` is refused."""
    if top_k > experts:
        raise InputError(
            "a token cannot visit more experts than there are", value=top_k, allowed=f"1 to {experts}"
        )
    return MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=expert,
        router=linear("router", hidden, experts, router_source, bias=router_bias, shard="replicated"),
        shared=shared,
        shared_gate=shared_gate,
        **fields,
    )


def norm(
    name: str,
    size: int,
    source: str,
    *,
    eps: float = 1e-6,
    kind: Literal["rms", "layer"] = "rms",
    bias: bool | None = None,
    **fields: Any,
) -> Norm:
    """A norm; a LayerNorm has a bias unless told otherwise."""
    return Norm(name, size, kind, eps, kind == "layer" if bias is None else bias, source=source, **fields)


def activation(cfg: Config, *names: str, default: str = "silu") -> str:
    """The activation in one spelling."""
    value = cfg.text(*(names or ("hidden_act", "hidden_activation", "activation_function")), default=default)
    known = {
        "swiglu": "silu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
    }
    return known.get(value, value)


# Endings of the class that a config names, by what stands on top of the decoder.
_GENERATES = ("CausalLM", "LMHeadModel", "ForConditionalGeneration", "ChatGLMModel")
_CLASSIFIES = "ForSequenceClassification"
_HEADLESS = "Model"


def _head_kind(cfg: Config) -> Literal["lm", "score", "none"]:
    """What stands on top: a language-model head, a score per label, or nothing (embedding models)."""
    classes = cfg.items("architectures")
    if not classes:
        return "lm"
    name = str(classes[0])
    if name.endswith(_GENERATES):
        return "lm"
    if name.endswith(_CLASSIFIES):
        return "score"
    if name.endswith(_HEADLESS) and not name.endswith("RewardModel"):
        return "none"
    raise UnsupportedError(
        f"{cfg.where}: the output head of this class is not covered",
        value=name,
        allowed=", ".join(f"...{ending}" for ending in (*_GENERATES, _CLASSIFIES, _HEADLESS)),
    )


def _labels(cfg: Config) -> int:
    names = cfg.get("id2label")
    return len(names) if isinstance(names, Mapping) and names else cfg.size("num_labels", default=2)


def decoder(
    cfg: Config,
    name: str,
    *,
    layers: Sequence[Layer],
    final_norm: Norm | None,
    tied_default: bool = False,
    embedding_source: str = "model.embed_tokens",
    head_source: str = "lm_head",
    head_bias: bool = False,
    embedding_dim: int | None = None,
    vocabulary: int | None = None,
    **fields: Any,
) -> ModelSpec:
    """The frame of a decoder: token table, layers, final norm, output head (tied, untied, a score, none)."""
    if not layers:
        raise InputError(f"{cfg.where}: the model has no layers", value=0, allowed="1 or more layers")
    hidden = cfg.size(*HIDDEN)
    vocabulary = vocabulary or cfg.size("vocab_size", "padded_vocab_size")
    width = embedding_dim or hidden
    tied = cfg.flag("tie_word_embeddings", default=tied_default)
    kind = _head_kind(cfg)
    head: Linear | None = linear("lm_head", width, vocabulary, head_source, bias=head_bias)
    if kind == "score":
        score = linear("score", width, _labels(cfg), "score", shard="replicated")
        fields["linears"] = (*fields.get("linears", ()), score)
    if kind == "score" or (kind == "none" and not tied):
        head, tied = None, False
        fields.setdefault("generates", False)
        cfg.note("the model has no language-model head: it scores or embeds text and does not generate")
    return ModelSpec(
        name=name,
        model_type=cfg.text("model_type", default=""),
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=tuple(layers),
        embedding=Embedding(vocabulary, width, embedding_source, fields.pop("embedding_scale", 1.0)),
        head=head,
        tied=tied,
        final_norm=final_norm,
        dtype=compute_dtype(cfg),
        max_context=cfg.optional_size(*MAX_CONTEXT),
        notes=tuple(cfg.notes),
        **fields,
    )


def refuse(cfg: Config, field: str, *, why: str) -> UnsupportedError:
    """The error for a variant of a known family that is not covered."""
    return UnsupportedError(f"{cfg.where}: {field} {why}", value=cfg.get(field))


def with_notes(spec: ModelSpec, cfg: Config) -> ModelSpec:
    """The spec with the notes gathered while it was read."""
    return replace(spec, notes=tuple(dict.fromkeys((*spec.notes, *cfg.notes))))
