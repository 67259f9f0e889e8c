"""Applying a named format to a model, as its usual tool would: a new ModelSpec, the same parameters."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.formats.base import WeightFormat, plain_format
from rooflens.models.formats.catalogue import find_format
from rooflens.models.formats.gguf import GgufChooser
from rooflens.models.formats.layouts import ggml
from rooflens.models.formats.rewrite import Matrix, Role, rewrite
from rooflens.models.formats.scheme import FormatScheme
from rooflens.models.spec import Component, FreeForm, ModelSpec

HEAD_COPY = "head copy"
# A model known by its size alone is priced as if its weights were matrices of this side.
_TYPICAL_SIDE = 4096


def apply_format(spec: ModelSpec, scheme: FormatScheme | str) -> ModelSpec:
    """The spec with its weights stored in ``scheme``; parameter counts stay what they are.

    A checkpoint that is quantised already is taken by its logical shapes, which a note says. Vision and
    audio towers stay in the model's own type. Raises UnsupportedError for an unknown name.
    """
    if isinstance(scheme, str):
        scheme = find_format(scheme)
    spec = _unquantised(_described(spec), scheme)
    if spec.free_form is not None:
        return _free_form(spec, spec.free_form, scheme)
    recipe = scheme.recipe
    chooser = scheme.choose if recipe is None else GgufChooser(spec, recipe)
    made = rewrite(spec, chooser, per_layer=recipe is not None, keep_own=not scheme.ideal)
    if scheme.splits_tied_head:
        made = with_head_copy(made, scheme.formats.get(Role.HEAD))
    return _ideal_components(made, scheme.formats[Role.LINEAR]) if scheme.ideal else made


def _described(spec: ModelSpec) -> ModelSpec:
    """The spec without the types that its own files have, where they were read."""
    if spec.stored is None:
        return spec
    return replace(
        spec.stored.described, stored=spec.stored, quantization=spec.quantization, notes=spec.notes
    )


def _unquantised(spec: ModelSpec, scheme: FormatScheme) -> ModelSpec:
    """The spec with what is set for the model as a whole; matrices are rewritten next."""
    notes = [*spec.notes]
    if spec.quantization is not None:
        notes.append(
            f"the checkpoint is stored as {spec.quantization}; {scheme.name} is applied to its logical shapes"
        )
    if scheme.ideal:
        notes.append(f"{scheme.name} is {scheme.about}")
    if scheme.evidence == "assumed":
        notes.append(f"{scheme.name} sizes follow the rules of {scheme.source}; a given file can differ")
    components = tuple(
        replace(component, weight_bytes=None) for component in spec.components if component.name != HEAD_COPY
    )
    return replace(
        spec,
        dtype=scheme.dtype or spec.dtype,
        vector_dtype=scheme.vector_dtype,
        quantization=None if scheme.dtype else scheme.name,
        components=components,
        notes=tuple(dict.fromkeys(notes)),
        evidence={**spec.evidence, "weights": scheme.evidence},
    )


def with_head_copy(spec: ModelSpec, layout: WeightFormat | None) -> ModelSpec:
    """A tied model whose head is stored a second time in ``layout``: more bytes, no more parameters."""
    if not spec.tied or spec.head is None or layout is None:
        return spec
    head = spec.head
    copy = layout.matrix_bytes(head.out_features, head.in_features)
    parts = tuple(replace(part, weight_format=layout) for part in head.parts)
    return replace(
        spec,
        head=replace(head, parts=parts),
        components=(*spec.components, Component(HEAD_COPY, "other", 0, copy)),
        notes=(*spec.notes, "the tied head is stored a second time, quantised"),
    )


def _ideal_components(spec: ModelSpec, layout: WeightFormat) -> ModelSpec:
    """Idealised formats leave nothing out, towers included."""
    components = tuple(
        replace(component, weight_bytes=layout.matrix_bytes(1, component.parameters))
        for component in spec.components
    )
    return replace(spec, components=components)


def _free_form(spec: ModelSpec, free: FreeForm, scheme: FormatScheme) -> ModelSpec:
    square = Matrix(Role.LINEAR, "", "", _TYPICAL_SIDE, _TYPICAL_SIDE)
    if scheme.recipe is not None:
        layout = ggml(scheme.recipe.default)
    else:
        layout = scheme.choose(square) or plain_format(spec.dtype)
    bits = layout.bits_per_weight(_TYPICAL_SIDE, _TYPICAL_SIDE)
    weights = WeightFormat(layout.name, 1).matrix_bytes(1, round(free.parameters * bits))
    return replace(spec, free_form=replace(free, weights_bytes=weights))
