"""What the runtime can run: everything else in a spec is refused by name before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.spec import Attention, DenseMlp, Layer, Linear, ModelSpec, Norm, layer_linears
from rooflens.runtime.blocks.rotary import SCALINGS
from rooflens.runtime.kernels.eager import ACTIVATIONS

#: Types whose logits are compared with Hugging Face transformers in the tests.
CHECKED_TYPES = (
    "arcee",
    "cohere",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "granite",
    "helium",
    "llama",
    "mistral",
    "nemotron",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)

_LAYER_NORMS = ("attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm")


def check_supported(spec: ModelSpec, *, model_types: Sequence[str] | None = None) -> None:
    """Raise UnsupportedError naming the first part of ``spec`` that the runtime has no code for.

    ``model_types``: refuse every other type. Raises InputError where a projection's rows are not its heads.
    """
    if model_types is not None and spec.model_type not in model_types:
        raise UnsupportedError(
            f"{spec.name} is not of the type asked for", value=spec.model_type, allowed=", ".join(model_types)
        )
    parts = {
        "no token table": spec.embedding is None,
        "no output head (it does not generate text)": spec.head is None or not spec.generates,
        "no final norm": spec.final_norm is None,
        "norms after the embedding": bool(spec.norms),
        "projections outside the layers": bool(spec.linears),
        "further tables (positions, per-layer inputs)": bool(spec.parameters_extra or spec.tables),
        "no layers": not spec.layers,
    }
    for part, present in parts.items():
        if present:
            raise _refused(spec, part)
    if spec.head is not None:
        _check_linear(spec, spec.head, where="head")
    if spec.embedding is not None and spec.embedding.dim != spec.hidden_size:
        raise _refused(spec, f"a token table of another width ({spec.embedding.dim})")
    for group in spec.groups:
        _check_layer(spec, group.layer, where=f"layer {group.indices[0]}")


def check_weights_known(spec: ModelSpec) -> None:
    """Raise UnsupportedError unless this type's numbers have been compared with its reference."""
    if spec.model_type not in CHECKED_TYPES:
        raise UnsupportedError(
            f"the runtime has not been checked against the reference of '{spec.model_type}'",
            allowed=", ".join(CHECKED_TYPES),
            next="random weights run any shape, for performance work",
        )
    if spec.quantization is not None:
        raise UnsupportedError(
            f"{spec.name} is quantised by a method that the runtime does not read",
            value=spec.quantization,
            next="use the model's plain or GGUF weights",
        )


def _check_layer(spec: ModelSpec, layer: Layer, *, where: str) -> None:
    if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], Attention):
        kinds = " beside ".join(mixer.kind.value for mixer in layer.mixers)
        raise _refused(spec, f"{where}: {kinds} instead of plain attention")
    if not isinstance(layer.mlp, DenseMlp) or layer.extra_mlp is not None:
        raise _refused(spec, f"{where}: a mixture of experts" if layer.mlp else f"{where}: no feed-forward")
    if layer.linears or layer.parameters:
        raise _refused(spec, f"{where}: tensors beside attention and feed-forward")
    for norm in layer.norms:
        if norm.name not in _LAYER_NORMS:
            raise _refused(spec, f"{where}: a norm in another place ({norm.name})")
        _check_norm(spec, norm, where=where)
    _check_attention(spec, layer.mixers[0], where=where)
    _check_mlp(spec, layer.mlp, where=where)
    for _, linear, _ in layer_linears(layer):
        _check_linear(spec, linear, where=where)


def _check_norm(spec: ModelSpec, norm: Norm, *, where: str) -> None:
    if norm.groups != 1 or norm.borrowed:
        raise _refused(spec, f"{where}: {norm.name} with a weight for every head, or another layer's")


def _check_linear(spec: ModelSpec, linear: Linear, *, where: str) -> None:
    if linear.borrowed:
        raise _refused(spec, f"{where}: {linear.name} with another layer's weights")
    if linear.transposed or linear.bare or any(part.layout != "stacked" for part in linear.parts):
        raise _refused(spec, f"{where}: {linear.name} stored in an order of its own")


def _check_attention(spec: ModelSpec, mixer: Attention, *, where: str) -> None:
    parts = {
        "encoder attention (not causal, nothing cached)": not mixer.causal or not mixer.cached,
        "aligned attention chunks": mixer.chunked,
        "cross-attention": mixer.cross_tokens is not None,
        "a cache shared between layers": mixer.shares_kv,
        "values made from keys": mixer.value_is_key,
        "attention sinks": mixer.sinks,
        "ALiBi positions": mixer.alibi,
        "clamped q, k and v": mixer.qkv_clip is not None,
        "norms of q and k after their rotation": mixer.norm_after_rotary,
        "a sparse-attention indexer": bool(mixer.indexer_key_dim),
        "values of another size than keys": mixer.value_dim != mixer.head_dim,
        "tensors beside its projections": bool(mixer.parameters),
        "projections other than qkv_proj and o_proj": [linear.name for linear in mixer.linears]
        != ["qkv_proj", "o_proj"],
    }
    for part, present in parts.items():
        if present:
            raise _refused(spec, f"{where}: {part}")
    whole = {"q_norm": mixer.heads * mixer.head_dim, "k_norm": mixer.kv_heads * mixer.head_dim}
    known = all(norm.size in (mixer.head_dim, whole.get(norm.name)) for norm in mixer.norms)
    if not known or sorted(norm.name for norm in mixer.norms) not in ([], ["k_norm", "q_norm"]):
        raise _refused(spec, f"{where}: norms of q and k other than over a head or all of them")
    for norm in mixer.norms:
        _check_norm(spec, norm, where=where)
    # A head size read wrong would let every later offset be wrong without an error.
    qkv, output = mixer.linears
    rows = (mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
    if qkv.out_features != rows or output.in_features != mixer.heads * mixer.head_dim:
        raise InputError(
            f"{spec.name} {where}: the projections do not match the heads",
            value=f"qkv_proj {qkv.out_features} rows, o_proj {output.in_features} columns",
            allowed=f"{rows} and {mixer.heads * mixer.head_dim} for {mixer.heads} heads, "
            f"{mixer.kv_heads} KV heads of {mixer.head_dim}",
        )
    if mixer.rotary is not None:
        rule = dict(mixer.rotary.scaling).get("rope_type")
        if rule is not None and rule not in SCALINGS:
            raise _refused(spec, f"{where}: rotary scaling '{rule}'")
        if mixer.rotary.dim % 2 or not 0 < mixer.rotary.dim <= mixer.head_dim:
            raise _refused(
                spec, f"{where}: rotary positions on {mixer.rotary.dim} of {mixer.head_dim} features"
            )


def _check_mlp(spec: ModelSpec, mlp: DenseMlp, *, where: str) -> None:
    if mlp.norms:
        raise _refused(spec, f"{where}: norms inside the feed-forward")
    if mlp.activation not in ACTIVATIONS:
        raise _refused(spec, f"{where}: the activation '{mlp.activation}'")
    names = [linear.name for linear in mlp.linears]
    expected = ["gate_up_proj", "down_proj"] if mlp.gated else ["up_proj", "down_proj"]
    if names != expected:
        raise _refused(spec, f"{where}: feed-forward projections {', '.join(names)}")


def _refused(spec: ModelSpec, part: str) -> UnsupportedError:
    return UnsupportedError(f"the runtime cannot run {spec.name} ({spec.model_type}): {part}")
