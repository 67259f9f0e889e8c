"""The spec of a model as the runtime holds it, so that its predictions count the bytes that are read."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.formats.apply import HEAD_COPY
from rooflens.models.formats.base import WeightFormat, plain_format
from rooflens.models.formats.rewrite import Matrix, Role, rewrite
from rooflens.models.spec import Component, ModelSpec
from rooflens.runtime.blocks.basic import Linear
from rooflens.runtime.kernels.base import WeightHolding
from rooflens.runtime.model import DecoderModel

#: The component that matrices held a second time, as rows, are counted in.
ROW_COPIES = "row copies"


def head_holding(holding: WeightHolding) -> WeightHolding:
    """The head of an int4 model stays in 8 bits: a few per cent of time for most of the quality."""
    return "int8" if holding in ("int4", "int4-symmetric") else holding


def held_spec(spec: ModelSpec, model: DecoderModel, *, dtype: str, head_copied: bool) -> ModelSpec:
    """``spec`` with the formats in which ``model`` (or a rank's part of it) holds its matrices.

    ``head_copied``: a tied table is held twice.
    """
    head = _formats(model.lm_head)[0]
    shared = model.embedding.packed is not None

    def choose(matrix: Matrix) -> WeightFormat | None:
        if matrix.role is Role.HEAD:
            return head
        if matrix.role is Role.EMBEDDING:
            return head if shared else plain_format(dtype)
        assert matrix.layer is not None
        return _formats(_linear(model, matrix))[matrix.part]

    # Norms with an offset are held in fp32 (see the loader); such models have nothing else in vectors.
    offset = spec.final_norm is not None and spec.final_norm.offset != 0
    vectors = "fp32" if offset else None
    spec = replace(spec, dtype=dtype, vector_dtype=vectors, quantization=None, stored=None)
    made = rewrite(spec, choose, per_layer=True, keep_own=False)
    if spec.tied and spec.head is not None and head_copied:
        parts = tuple(replace(part, weight_format=head) for part in spec.head.parts)
        stored = head.matrix_bytes(spec.head.out_features, spec.head.in_features)
        made = replace(
            made,
            head=replace(spec.head, parts=parts),
            components=(*made.components, Component(HEAD_COPY, "other", 0, stored)),
            notes=(*made.notes, "the tied table is held twice: rows for the lookup, packed for the head"),
        )
    copied = sum(module.packed.copied_bytes for module in model.modules() if isinstance(module, Linear))
    if copied:
        made = replace(
            made,
            components=(*made.components, Component(ROW_COPIES, "other", 0, copied)),
            notes=(*made.notes, "matrices are held twice: packed, and as rows for one token at a time"),
        )
    return made


def _linear(model: DecoderModel, matrix: Matrix) -> Linear:
    layer = model.layers[matrix.layer or 0]
    found = getattr(layer.mlp if matrix.mixer is None else layer.attention, matrix.linear)
    assert isinstance(found, Linear)
    return found


def _formats(module: Linear) -> list[WeightFormat]:
    """The format of every part that the spec fuses; a packed part may cover several of them."""
    ends, row = [], 0
    for rows, form in module.packed.formats():
        row += rows
        ends.append((row, form))
    # A rank's matrix has fewer rows than the spec's parts, all in one format.
    if len(ends) == 1:
        return [ends[0][1]] * len(module.spec.parts)
    made, row = [], 0
    for part in module.spec.parts:
        row += part.out_features
        made.append(next(form for end, form in ends if row <= end))
    return made
