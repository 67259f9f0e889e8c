"""The spec of a model as the runtime holds it, so that its predictions count the bytes that are read."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.formats.apply import HEAD_COPY
from rooflens.models.formats.base import DTYPE_BITS, WeightFormat, plain_format
from rooflens.models.formats.rewrite import BLOCK_ROLES, Matrix, Role, rewrite
from rooflens.models.spec import Component, ModelSpec
from rooflens.runtime.kernels.base import WeightHolding
from rooflens.runtime.kernels.quantized import GROUP


def held_format(holding: WeightHolding, dtype: str) -> WeightFormat:
    """The format of a linear held so: scales in the compute type; int4 also keeps its levels a second time
    for calls with many rows, which are not read while decoding and not counted here."""
    scale_bits = DTYPE_BITS[dtype]
    if holding == "int8":
        return WeightFormat("int8", bits=8, row_bits=scale_bits)
    if holding == "int4":
        return WeightFormat("int4", bits=4, group_size=GROUP, scale_bits=2 * scale_bits)
    return plain_format(dtype)


def head_holding(holding: WeightHolding) -> WeightHolding:
    """The head of an int4 model stays in 8 bits: a few per cent of time for most of the quality."""
    return "int8" if holding == "int4" else holding


def held_spec(spec: ModelSpec, *, dtype: str, holding: WeightHolding, head_copied: bool) -> ModelSpec:
    """``spec`` with the formats its matrices are held in; ``head_copied``: a tied table is held twice."""
    block, head = held_format(holding, dtype), held_format(head_holding(holding), dtype)

    def choose(matrix: Matrix) -> WeightFormat | None:
        if matrix.role in BLOCK_ROLES:
            return block
        return head if matrix.role is Role.HEAD else None

    # Norms with an offset are held in fp32 (see the loader); such models have nothing else in vectors.
    offset = spec.final_norm is not None and spec.final_norm.offset != 0
    vectors = "fp32" if offset else None
    spec = replace(spec, dtype=dtype, vector_dtype=vectors, quantization=None, stored=None)
    made = rewrite(spec, choose, per_layer=False, keep_own=False)
    if spec.tied and spec.head is not None and head_copied:
        parts = tuple(replace(part, weight_format=head) for part in spec.head.parts)
        stored = head.matrix_bytes(spec.head.out_features, spec.head.in_features)
        made = replace(
            made,
            head=replace(spec.head, parts=parts),
            components=(*made.components, Component(HEAD_COPY, "other", 0, stored)),
            notes=(*made.notes, "the tied table is held twice: rows for the lookup, packed for the head"),
        )
    return made
