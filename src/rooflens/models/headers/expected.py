"""The format that a ModelSpec gives to each of its matrices, by the checkpoint's module name."""

from __future__ import annotations

from rooflens.models.formats.base import WeightFormat
from rooflens.models.spec import ModelSpec, layer_linears


def expected_formats(spec: ModelSpec) -> dict[str, WeightFormat]:
    """The format that the config gives to each matrix, by module."""
    found: dict[str, WeightFormat] = {}
    for table in (spec.embedding, *spec.tables):
        if table is not None:
            found[table.source] = table.weight_format or spec.default_format
    outside = (*spec.linears, *((spec.head,) if spec.head is not None else ()))
    for linear in outside:
        found.update((part.source, part.weight_format or spec.default_format) for part in linear.parts)
    for index, layer in enumerate(spec.layers):
        prefix = spec.layer_prefix.replace("{i}", str(index))
        for _, linear, _ in layer_linears(layer):
            for part in linear.parts:
                found[prefix + part.source] = part.weight_format or spec.default_format
    return found
