"""What ``rooflens inspect`` says of a model: parameters, bytes and cache, from its ModelSpec alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import floor
from typing import Any

from rooflens.display import Displayed
from rooflens.models.accounting import (
    ParameterCount,
    cache_dtype,
    count_parameters,
    kv_elements,
    kv_growth_elements,
    kv_sequence_bytes,
    layer_counts,
    state_sequence_bytes,
    weights_bytes,
)
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.formats.kv import kv_element_bytes
from rooflens.models.spec import CompressedAttention, Mixer, ModelSpec, Recurrent


@dataclass(frozen=True)
class CacheRow:
    """The cache of all layers of one kind and shape, per sequence.

    ``bytes_per_token`` is what one more token adds while the layer still grows; a window stops it at
    ``window`` tokens. ``state_bytes`` does not depend on the length. ``bytes`` is all of it at the
    inspected context, None without one.
    """

    kind: str
    layers: int
    elements_per_token: float
    bytes_per_token: float
    window: int | None
    state_bytes: int
    bytes: int | None


@dataclass(frozen=True)
class Inspection(Displayed):
    """The facts of one model; every figure is exact unless a note says otherwise."""

    spec: ModelSpec
    parameters: ParameterCount
    weights_bytes: int
    kv_dtype: str
    kv_bytes_per_token: float
    kv_bytes_per_sequence: int | None
    state_bytes_per_sequence: int
    context: int | None
    cache: tuple[CacheRow, ...]

    @property
    def weights_format(self) -> str:
        """The checkpoint's quantisation, or its element type."""
        return self.spec.quantization or self.spec.dtype

    def to_dict(self) -> dict[str, Any]:
        """The inspection as in the JSON contract."""
        spec, count = self.spec, self.parameters
        return {
            "schema": "rooflens.inspect/1",
            "name": spec.name,
            "model_type": spec.model_type,
            "parameters": count.total,
            "active_parameters": count.active,
            "embedding_parameters": count.embedding,
            "parameter_split": {
                "embedding_table": count.embedding_table,
                "head": count.head,
                "layers": count.layers,
                "experts": count.experts,
                "components": dict(count.components),
            },
            "weights_format": self.weights_format,
            "weights_bytes": self.weights_bytes,
            "kv_dtype": self.kv_dtype,
            "kv_scheme": spec.kv_scheme,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_sequence": self.kv_bytes_per_sequence,
            "state_bytes_per_sequence": self.state_bytes_per_sequence,
            "context": self.context,
            "cache": [asdict(row) for row in self.cache],
            "layers": {
                "total": len(spec.layers),
                **layer_counts(spec),
                "sliding_window": _window(spec),
            },
            "max_context": spec.max_context,
            "checkpoint": spec.stored.to_dict() if spec.stored is not None else None,
            "evidence": {"parameters": "exact", "weights": "exact", "kv_cache": "exact", **spec.evidence},
            "notes": list(spec.notes),
        }


def inspect_spec(spec: ModelSpec, *, context: int | None = None, kv_dtype: str | None = None) -> Inspection:
    """Count a model; ``context`` (tokens, default: the longest it allows) fills the cache figures.

    The cache is kept in the model's own element type unless ``kv_dtype`` asks for another.
    """
    kv = cache_dtype(spec, kv_dtype)
    context = spec.max_context if context is None else context
    growth = kv_growth_elements(spec) * kv_element_bytes(kv)
    if spec.free_form is not None:
        growth = spec.free_form.kv_bytes_per_token
    held = None
    if context is not None:
        held = floor(kv_sequence_bytes(spec, context=context, kv_dtype=kv))
    return Inspection(
        spec=spec,
        parameters=count_parameters(spec),
        weights_bytes=weights_bytes(spec),
        kv_dtype=kv,
        kv_bytes_per_token=int(growth) if growth == int(growth) else growth,
        kv_bytes_per_sequence=held,
        state_bytes_per_sequence=state_sequence_bytes(spec),
        context=context,
        cache=tuple(_cache_rows(spec, context, kv)),
    )


def _window(spec: ModelSpec) -> int | None:
    windows = {mixer.window for group in spec.groups for mixer in group.layer.mixers if mixer.window}
    return max(windows, default=None)


def _cache_rows(spec: ModelSpec, context: int | None, kv: str) -> Iterator[CacheRow]:
    """One row per distinct shape of cache, in the order of the layers."""
    counts: dict[tuple[str, float, int | None, int], int] = {}
    mixers: dict[tuple[str, float, int | None, int], Mixer] = {}
    for group in spec.groups:
        for mixer in group.layer.mixers:
            elements = float(
                mixer.growth_elements_per_token
                if isinstance(mixer, CompressedAttention)
                else mixer.kv_elements_per_token
            )
            key = (mixer.kind.value, elements, mixer.window, _state_bytes(mixer, spec))
            counts[key] = counts.get(key, 0) + group.count
            mixers[key] = mixer
    for key, layers in counts.items():
        kind, elements, window, state = key
        per_token = elements * kv_element_bytes(kv) * layers
        held = None
        if context is not None:
            held = floor(kv_elements(mixers[key], context) * kv_element_bytes(kv) + state) * layers
        yield CacheRow(kind, layers, elements, per_token, window, state * layers, held)


def _state_bytes(mixer: Mixer, spec: ModelSpec) -> int:
    if not isinstance(mixer, (Recurrent, CompressedAttention)):
        return 0
    state = mixer.state_elements * dtype_bytes(mixer.state_dtype)
    if isinstance(mixer, Recurrent):
        state += mixer.conv_elements * dtype_bytes(spec.dtype)
    return floor(state)
