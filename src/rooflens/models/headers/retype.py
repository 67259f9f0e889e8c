"""A ModelSpec with the formats and element types that its files have, not those that its config suggests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.rewrite import Matrix, rewrite
from rooflens.models.headers.slots import Slot
from rooflens.models.spec import (
    DenseMlp,
    Layer,
    Mixer,
    MixtureOfExperts,
    Mlp,
    ModelSpec,
    Norm,
    Parameter,
    layer_tensors,
)

_Tensor = TypeVar("_Tensor", Norm, Parameter)


def vector_types(held: Iterable[tuple[Slot, str]], *, default: str) -> tuple[str, dict[str, str]]:
    """(the element type of most vectors, the types of those that differ) from slots and their types.

    Biases have no type of their own in a ModelSpec, so it is theirs where there are any.
    """
    vectors = list(held)
    counts = Counter(dtype for slot, dtype in vectors if slot.kind == "bias" and slot.use != "norms")
    counts = counts or Counter(dtype for _, dtype in vectors)
    common = counts.most_common(1)[0][0] if counts else default
    other = {slot.source: dtype for slot, dtype in vectors if dtype != common or slot.kind == "tensor"}
    return common, other


def with_stored_types(
    spec: ModelSpec, *, formats: Mapping[str, WeightFormat], dtypes: Mapping[str, str]
) -> ModelSpec:
    """The spec with each matrix in its format and each other tensor in its element type.

    ``formats`` by module, whole names as in `Slot.source`; a matrix that is not named keeps its own.
    ``dtypes`` by a norm's module or a tensor's name; one that is not named has the spec's.
    """

    def choose(matrix: Matrix) -> WeightFormat | None:
        return formats.get(matrix.module, matrix.own)

    made = rewrite(spec, choose, per_layer=True, keep_own=False)
    return _with_dtypes(made, dtypes) if dtypes else made


def _with_dtypes(spec: ModelSpec, dtypes: Mapping[str, str]) -> ModelSpec:
    def typed(tensor: _Tensor) -> _Tensor:
        return replace(tensor, dtype=dtypes.get(tensor.source, tensor.dtype))

    done: dict[tuple[int, tuple[str | None, ...]], Layer] = {}
    layers = []
    for index, layer in enumerate(spec.layers):
        prefix = spec.layer_prefix.replace("{i}", str(index))
        own = tuple(dtypes.get(prefix + tensor.source, tensor.dtype) for _, tensor, _ in layer_tensors(layer))
        key = (id(layer), own)
        if key not in done:
            done[key] = _typed_layer(layer, iter(own))
        layers.append(done[key])
    return replace(
        spec,
        layers=tuple(layers),
        norms=tuple(typed(norm) for norm in spec.norms),
        final_norm=spec.final_norm and typed(spec.final_norm),
        parameters_extra=tuple(typed(parameter) for parameter in spec.parameters_extra),
    )


def _typed_layer(layer: Layer, dtypes: Iterator[str | None]) -> Layer:
    """The layer with types in the order of `layer_tensors`; keyword arguments are evaluated in that order."""

    def each(tensors: tuple[_Tensor, ...]) -> tuple[_Tensor, ...]:
        return tuple(replace(tensor, dtype=next(dtypes)) for tensor in tensors)

    def mixer(item: Mixer) -> Mixer:
        return replace(item, norms=each(item.norms), parameters=each(item.parameters))

    def mlp(item: Mlp | None) -> Mlp | None:
        if isinstance(item, MixtureOfExperts):
            parameters = each(item.parameters)
            return replace(
                item, parameters=parameters, expert=replace(item.expert, norms=each(item.expert.norms))
            )
        return replace(item, norms=each(item.norms)) if isinstance(item, DenseMlp) else None

    return replace(
        layer,
        norms=each(layer.norms),
        parameters=each(layer.parameters),
        mixers=tuple(mixer(item) for item in layer.mixers),
        mlp=mlp(layer.mlp),
        extra_mlp=mlp(layer.extra_mlp),
    )
