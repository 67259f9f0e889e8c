"""The blocks that most decoder families are made of, and the frame that holds them.

An adapter needs these and the readers of `fields`, so both are imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.families.fields import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    MAX_CONTEXT,
    activation,
    compute_dtype,
    freeze,
    head_sizes,
    refuse,
    rotary,
)
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

__all__ = [
    "HEADS",
    "HIDDEN",
    "INTERMEDIATE",
    "KV_HEADS",
    "LAYERS",
    "MAX_CONTEXT",
    "Layout",
    "activation",
    "attention",
    "compute_dtype",
    "decoder",
    "freeze",
    "gated_mlp",
    "head_sizes",
    "linear",
    "mixture",
    "norm",
    "plain_mlp",
    "refuse",
    "rotary",
    "with_notes",
]

Layout = Literal["stacked", "grouped", "codegen", "flat"]

# Far above any published model; more would only be a damaged file.
MAX_EXPERTS = 2**16


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
    if heads % kv_heads:
        raise InputError(
            f"{heads} attention heads cannot share {kv_heads} KV heads evenly",
            value=kv_heads,
            allowed=f"a divisor of {heads}",
        )
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
            linear("o_proj", heads * value_dim, hidden, o, bias=o_bias, shard="row", transposed=transposed),
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
            linear("down_proj", intermediate, hidden, down, bias=bias, shard="row", transposed=transposed),
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
    """A mixture of experts with one router; ``top_k`` above ``experts`` is refused, so are absurd counts."""
    if experts > MAX_EXPERTS:
        raise InputError("there are too many experts", value=experts, allowed=f"1 to {MAX_EXPERTS}")
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
        max_context=fields.pop("max_context", None) or cfg.optional_size(*MAX_CONTEXT),
        notes=tuple(cfg.notes),
        **fields,
    )


def with_notes(spec: ModelSpec, cfg: Config) -> ModelSpec:
    """The spec with the notes gathered while it was read."""
    return replace(spec, notes=tuple(dict.fromkeys((*spec.notes, *cfg.notes))))
