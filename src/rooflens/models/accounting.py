"""Counting a ModelSpec: parameters, weight bytes, cache elements. Exact integers, no estimates."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from typing import Any

from rooflens.errors import InputError
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.formats.kv import kv_element_bytes, kv_format
from rooflens.models.spec import (
    Attention,
    CompressedAttention,
    DenseMlp,
    Embedding,
    LatentAttention,
    Layer,
    Linear,
    Mixer,
    MixerKind,
    MixtureOfExperts,
    ModelSpec,
    Norm,
    Parameter,
    Recurrent,
    layer_linears,
    layer_tensors,
)


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by use. ``active`` leaves out the experts a token does not visit and keeps the rest,
    the embedding table included (the convention of model cards: Mixtral 8x7B is 12.9e9 active);
    ``embedding`` is the token table plus an untied output head.
    """

    total: int
    active: int
    embedding_table: int
    head: int
    experts: int
    layers: int
    components: dict[str, int]
    mtp: int = 0  # next-token prediction layers, not in ``total``

    @property
    def embedding(self) -> int:
        """Token table and untied head."""
        return self.embedding_table + self.head


def layer_parameters(layer: Layer) -> tuple[int, int, int]:
    """(all, active, routed experts) of one layer."""
    linears = sum(linear.parameters * copies for _, linear, copies in layer_linears(layer))
    tensors = sum(tensor.parameters * copies for _, tensor, copies in layer_tensors(layer))
    routed = unused = 0
    for mlp in (layer.mlp, layer.extra_mlp):
        if isinstance(mlp, MixtureOfExperts):
            one = expert_parameters(mlp.expert)
            routed += one * mlp.experts
            unused += one * (mlp.experts - mlp.top_k)
    total = linears + tensors
    return total, total - unused, routed


def expert_parameters(expert: DenseMlp) -> int:
    """Parameters of one feed-forward block."""
    return sum(x.parameters for x in expert.linears) + sum(x.parameters for x in expert.norms)


@lru_cache(maxsize=256)
def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Count every parameter of the checkpoint once (tied tensors once)."""
    if spec.free_form is not None:
        free = spec.free_form
        return ParameterCount(free.parameters, free.active_parameters, 0, 0, 0, free.parameters, {})
    table = spec.embedding.parameters if spec.embedding else 0
    # A tied head owns no matrix, but may own a bias (phi's does not tie; GPT-J style heads do).
    head = 0
    if spec.head is not None:
        head = spec.head.parameters
        if spec.tied:
            head -= spec.head.in_features * spec.head.out_features
    rest = sum(norm.parameters for norm in spec.norms) + sum(x.parameters for x in spec.linears)
    rest += sum(parameter.parameters for parameter in spec.parameters_extra)
    rest += spec.final_norm.parameters if spec.final_norm else 0
    rest += sum(table.parameters for table in spec.tables)
    components: dict[str, int] = {}
    for component in spec.components:
        if component.in_total:
            components[component.kind] = components.get(component.kind, 0) + component.parameters
    in_layers = active_layers = experts = 0
    for group in spec.groups:
        every, active, routed = layer_parameters(group.layer)
        in_layers += every * group.count
        active_layers += active * group.count
        experts += routed * group.count
    outside = table + head + rest + sum(components.values())
    return ParameterCount(
        total=outside + in_layers,
        active=outside + active_layers,
        embedding_table=table,
        head=head,
        experts=experts,
        layers=in_layers,
        components=components,
        mtp=sum(component.parameters for component in spec.components if not component.in_total),
    )


def linear_bytes(linear: Linear, spec: ModelSpec) -> int:
    """Bytes of a linear layer as stored: each part in its own format, and its bias.

    Borrowed weights are stored, and need be read, only once: where they belong.
    """
    if linear.borrowed:
        return 0
    total = sum(
        (part.weight_format or spec.default_format).matrix_bytes(part.out_features, linear.in_features)
        for part in linear.parts
    )
    return total + (bias_bytes(linear, spec) if linear.bias else 0)


def bias_bytes(linear: Linear, spec: ModelSpec) -> int:
    """Bytes of a linear layer's bias."""
    return ceil(linear.out_features * dtype_bytes(spec.vector_dtype or spec.dtype))


def tensor_bytes(tensor: Norm | Parameter, spec: ModelSpec) -> int:
    """Bytes of a tensor that is not a matrix multiply, buffers included."""
    dtype = tensor.dtype or spec.vector_dtype or spec.dtype
    stored = tensor.elements if isinstance(tensor, Parameter) else tensor.parameters
    return ceil(stored * dtype_bytes(dtype))


def embedding_bytes(embedding: Embedding, spec: ModelSpec) -> int:
    """Bytes of the token table as stored."""
    return (embedding.weight_format or spec.default_format).matrix_bytes(embedding.rows, embedding.dim)


def layer_weight_bytes(layer: Layer, spec: ModelSpec) -> int:
    """Bytes of one layer's weights as stored."""
    linears = sum(linear_bytes(linear, spec) * copies for _, linear, copies in layer_linears(layer))
    tensors = sum(tensor_bytes(tensor, spec) * copies for _, tensor, copies in layer_tensors(layer))
    return linears + tensors


@lru_cache(maxsize=256)
def weights_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights as held in memory, on one device: scales, zero points, towers included.

    Layers for next-token prediction are left out, as they are from ``count_parameters().total``.
    """
    if spec.free_form is not None:
        free = spec.free_form
        if free.weights_bytes is not None:
            return free.weights_bytes
        return spec.default_format.matrix_bytes(1, free.parameters)
    element = dtype_bytes(spec.dtype)
    total = embedding_bytes(spec.embedding, spec) if spec.embedding else 0
    if spec.head is not None:
        if not spec.tied:
            total += linear_bytes(spec.head, spec)
        elif spec.head.bias:
            total += bias_bytes(spec.head, spec)
    total += sum(tensor_bytes(norm, spec) for norm in spec.norms)
    total += sum(tensor_bytes(parameter, spec) for parameter in spec.parameters_extra)
    total += tensor_bytes(spec.final_norm, spec) if spec.final_norm else 0
    total += sum(embedding_bytes(table, spec) for table in spec.tables)
    total += sum(linear_bytes(linear, spec) for linear in spec.linears)
    for component in spec.components:
        if not component.in_total:
            continue
        stored = component.weight_bytes
        total += stored if stored is not None else int(component.parameters * element)
    return total + sum(layer_weight_bytes(group.layer, spec) * group.count for group in spec.groups)


@lru_cache(maxsize=256)
def kv_growth_elements(spec: ModelSpec) -> int | float:
    """Cache elements that one more token adds at long context (windowed layers no longer grow).

    A whole number except where a layer compresses its cache by a ratio that does not divide.
    """
    growth = Fraction(0)
    for group in spec.groups:
        for mixer in group.layer.mixers:
            if isinstance(mixer, CompressedAttention):
                growth += mixer.growth_elements_per_token * group.count
            elif mixer.window is None and mixer.kind is not MixerKind.CROSS:
                growth += mixer.kv_elements_per_token * group.count
    return int(growth) if growth.denominator == 1 else float(growth)


def cached_tokens(mixer: Attention | LatentAttention | CompressedAttention, context: Any) -> Any:
    """Tokens this layer keeps of ``context``: all, the window's, or the fixed ones of cross-attention.

    ``context`` may be a number or an array. Compressed entries come on top (``kv_elements``).
    """
    if isinstance(mixer, Attention) and mixer.cross_tokens is not None:
        return mixer.cross_tokens + 0 * context
    if mixer.window is None:
        return context
    window = mixer.window
    if isinstance(context, (int, float)):
        return min(context, window)
    import numpy as np

    return np.minimum(context, window)


def kv_elements(mixer: Mixer, context: Any) -> Any:
    """Elements of one layer's cache at ``context`` tokens of one sequence; ``context`` may be an array."""
    if isinstance(mixer, Recurrent) or not mixer.kv_elements_per_token:
        return 0 * context
    elements = cached_tokens(mixer, context) * mixer.kv_elements_per_token
    if isinstance(mixer, CompressedAttention) and mixer.ratio:
        elements = elements + context // mixer.ratio * mixer.entry_elements
    return elements


def cache_dtype(spec: ModelSpec, asked: str | None) -> str:
    """The element type of the KV cache: as asked for, else (also for ``auto``) the model's own.

    Raises InputError for an unknown type, and for another type of a cache whose bytes were given.
    """
    if asked in (None, "auto"):
        return spec.dtype
    name = kv_format(str(asked)).name
    if spec.free_form is not None and name != spec.dtype:
        raise InputError(
            "kv_dtype has no meaning for a model whose cache is given in bytes",
            value=asked,
            next="give kv_bytes_per_token in that type",
        )
    return name


def kv_sequence_bytes(spec: ModelSpec, *, context: Any, kv_dtype: str) -> Any:
    """Logical bytes of one sequence's cache at ``context`` tokens, fixed state apart.

    ``context`` may be an array; windowed layers keep min(context, window) tokens.
    """
    if spec.free_form is not None:
        return spec.free_form.kv_bytes_per_token * context
    element = kv_element_bytes(kv_dtype)
    total: Any = 0 * context
    for group in spec.groups:
        for mixer in group.layer.mixers:
            total = total + kv_elements(mixer, context) * (element * group.count)
    return total


@lru_cache(maxsize=256)
def state_sequence_bytes(spec: ModelSpec) -> int:
    """Bytes of fixed recurrent and convolution state of one sequence."""
    total = 0.0
    for group in spec.groups:
        for mixer in group.layer.mixers:
            if isinstance(mixer, (Recurrent, CompressedAttention)):
                total += mixer.state_elements * dtype_bytes(mixer.state_dtype) * group.count
            if isinstance(mixer, Recurrent):
                total += mixer.conv_elements * dtype_bytes(spec.dtype) * group.count
    return floor(total)


def layer_counts(spec: ModelSpec) -> dict[str, int]:
    """How many layers of each kind: mixers by MixerKind, feed-forwards as ``moe`` and ``dense``."""
    counts = {kind.value: 0 for kind in MixerKind} | {"moe": 0, "dense": 0}
    for group in spec.groups:
        for mixer in group.layer.mixers:
            counts[mixer.kind.value] += group.count
        for mlp in (group.layer.mlp, group.layer.extra_mlp):
            if mlp is not None:
                counts["moe" if isinstance(mlp, MixtureOfExperts) else "dense"] += group.count
    return counts
