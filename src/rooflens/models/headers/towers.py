"""Parts beside the text decoder, counted as the files hold them: towers, projectors, prediction layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.spec import Component, ModelSpec

PREDICTORS = "mtp"


def with_predictors(spec: ModelSpec, held: Sequence[TensorInfo]) -> ModelSpec:
    """The spec with the layers for predicting further tokens that the files hold, not the config's."""
    others = tuple(component for component in spec.components if component.kind != PREDICTORS)
    if not held:
        return replace(spec, components=others)
    elements = sum(tensor.elements for tensor in held)
    stored = sum(tensor.bytes for tensor in held)
    return replace(spec, components=(*others, Component(PREDICTORS, PREDICTORS, elements, stored)))
