"""Parts beside the text decoder, counted as the files hold them: towers, projectors, prediction layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.formats.apply import HEAD_COPY
from rooflens.models.headers.match import Match
from rooflens.models.headers.packing import PLAIN
from rooflens.models.spec import Component, ModelSpec
from rooflens.models.stored import Finding, finding
from rooflens.units import format_bytes, format_count

PREDICTORS = "mtp"


def with_predictors(spec: ModelSpec, held: Sequence[TensorInfo], *, parameters: int) -> ModelSpec:
    """The spec with the layers for predicting further tokens that the files hold, not the config's."""
    others = tuple(component for component in spec.components if component.kind != PREDICTORS)
    if not held:
        return replace(spec, components=others)
    stored = sum(tensor.bytes for tensor in held)
    return replace(spec, components=(*others, Component(PREDICTORS, PREDICTORS, parameters, stored)))


def with_copy(spec: ModelSpec, held: Sequence[TensorInfo]) -> ModelSpec:
    """The spec with a second copy of its tied table, counted as it is stored: more bytes, no parameters."""
    copy = Component(HEAD_COPY, "other", 0, sum(tensor.bytes for tensor in held))
    return replace(spec, components=(*spec.components, copy))


def with_towers(spec: ModelSpec, match: Match) -> ModelSpec:
    """The spec with towers in the bytes that the files hold; those that they do not hold are left out."""
    made: list[Component] = []
    for component in spec.components:
        held = match.towers.get((component.kind, component.name), [])
        if not component.in_total:
            made.append(component)
        elif held:
            made.append(_measured(component, held))
    for (kind, name), held in match.towers.items():
        if not name:
            made.append(_measured(Component(kind, kind, 0), held))
    return replace(spec, components=tuple(made))


def _measured(component: Component, held: Sequence[TensorInfo]) -> Component:
    """The component with its stored bytes, and as many parameters as elements where nothing is packed."""
    stored = sum(tensor.bytes for tensor in held)
    if all(tensor.dtype in PLAIN for tensor in held):
        return replace(component, parameters=sum(tensor.elements for tensor in held), weight_bytes=stored)
    return replace(component, weight_bytes=stored)


def tower_findings(spec: ModelSpec, match: Match) -> Iterator[Finding]:
    """Towers that only one side knows, or of which they count differently; ``spec`` as the config has it."""
    for component in spec.components:
        if component.name == HEAD_COPY or (not component.in_total and match.predictors):
            continue
        held = match.towers.get((component.kind, component.name), [])
        if not held:
            text = f"the config describes {component.name} ({component.kind}), which the files do not hold"
            yield Finding("component", text)
            continue
        counted = _measured(component, held).parameters
        if counted != component.parameters:
            text = (
                f"{component.name} ({component.kind}) has {format_count(counted)} parameters in the files, "
                f"where the config makes it {format_count(component.parameters)}"
            )
            yield finding("component", text, held)
    for (kind, name), held in match.towers.items():
        if not name:
            size = format_bytes(sum(tensor.bytes for tensor in held))
            yield finding("component", f"{size} of {kind} tensors that the config does not describe", held)
