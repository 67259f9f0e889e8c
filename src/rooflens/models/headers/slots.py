"""Everything that a ModelSpec needs stored, one slot each: what to look for in a checkpoint's header.

A slot is a matrix of a ``Linear`` (each of its parts by itself), a bias of one, or another tensor. All
copies of an expert's matrix are one slot. ``checkpoint_tensors`` lists the same things as names and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from rooflens.models.spec import (
    Embedding,
    Layer,
    Linear,
    ModelSpec,
    Norm,
    Parameter,
    layer_linears,
    layer_tensors,
)

Use = Literal["embedding", "attention", "recurrent", "mlp", "experts", "norms", "head", "other"]

_ATTENTION = ("attention", "cross_attention")


@dataclass(frozen=True, slots=True)
class Slot:
    """One stored thing.

    path: the runtime's name inside the layer, or the block's name outside the layers.
    source: the checkpoint's name, whole; ``{e}`` stands for the expert's number, ``{h}`` for the head's. A
        module's name for matrices and biases, unless ``complete``; a tensor's name for the rest.
    shape: [out, in] of a matrix, as stored; of one of the ``copies``.
    owned: False for the matrix of a tied head, which the token table holds.
    dtype: the element type that the family insists on, None for the model's own.
    groups: of the copies, how many are rows of one tensor or one tensor a head (norms).
    flat: whether the tensor that stacks all experts has two axes instead of three.
    """

    layer: int | None
    path: str
    kind: Literal["matrix", "bias", "weight", "tensor"]
    use: Use
    source: str
    shape: tuple[int, ...]
    part: int = 0
    parts: int = 1
    copies: int = 1
    complete: bool = False
    transposed: bool = False
    owned: bool = True
    dtype: str | None = None
    groups: int = 1
    flat: bool = False

    @property
    def elements(self) -> int:
        """Elements of all copies together."""
        return prod(self.shape) * self.copies


def model_slots(spec: ModelSpec) -> Iterator[Slot]:
    """Every slot of the text decoder, in the order of the checkpoint."""
    for table in (spec.embedding, *spec.tables):
        if table is not None:
            yield _table(table, "embedding" if table is spec.embedding else "per_layer_embedding")
    for parameter in spec.parameters_extra:
        use: Use = "embedding" if "embedding" in parameter.name else "other"
        yield Slot(None, parameter.name, "tensor", use, parameter.source, parameter.shape)
    for norm in (*spec.norms, *((spec.final_norm,) if spec.final_norm else ())):
        yield from _norm_slots(norm, path=norm.name, layer=None, prefix="")
    for linear in spec.linears:
        yield from _linear_slots(linear, path=linear.name, use="other", layer=None, prefix="")
    for index, layer in enumerate(spec.layers):
        yield from _layer_slots(layer, index, spec.layer_prefix.replace("{i}", str(index)))
    if spec.head is not None:
        for slot in _linear_slots(spec.head, path="head", use="head", layer=None, prefix=""):
            yield replace(slot, owned=slot.kind == "bias" or not spec.tied)


def _table(table: Embedding, path: str) -> Slot:
    return Slot(None, path, "matrix", "embedding", table.source, (table.rows, table.dim))


def _use(path: str) -> Use:
    block, _, rest = path.partition(".")
    if block in _ATTENTION:
        return "attention"
    if block in ("mlp", "extra_mlp"):
        return "experts" if rest.startswith("experts.") else "mlp"
    return "recurrent" if block in ("mamba", "linear_attention", "conv") else "other"


def _layer_slots(layer: Layer, index: int, prefix: str) -> Iterator[Slot]:
    for path, linear, copies in layer_linears(layer):
        yield from _linear_slots(linear, path=path, use=_use(path), layer=index, prefix=prefix, copies=copies)
    for path, tensor, copies in layer_tensors(layer):
        if isinstance(tensor, Norm):
            yield from _norm_slots(tensor, path=path, layer=index, prefix=prefix, copies=copies)
        else:
            yield _parameter_slot(tensor, path, index, prefix, copies)


def _parameter_slot(parameter: Parameter, path: str, layer: int, prefix: str, copies: int) -> Slot:
    source = prefix + parameter.source
    return Slot(
        layer, path, "tensor", _use(path), source, parameter.shape, copies=copies, dtype=parameter.dtype
    )


def _linear_slots(
    linear: Linear, *, path: str, use: Use, layer: int | None, prefix: str, copies: int = 1
) -> Iterator[Slot]:
    stacked = ".experts." in path
    for number, part in enumerate(() if linear.borrowed else linear.parts):
        shape = (part.out_features, linear.in_features)
        matrix = Slot(
            layer,
            path,
            "matrix",
            use,
            prefix + part.source,
            shape[::-1] if linear.transposed else shape,
            part=number,
            parts=len(linear.parts),
            copies=copies,
            complete=linear.bare or (stacked and "{e}" not in part.source),
            transposed=linear.transposed,
            flat=part.layout == "flat",
        )
        yield matrix
        if linear.bias:
            yield replace(matrix, kind="bias", shape=(part.out_features,))


def _norm_slots(norm: Norm, *, path: str, layer: int | None, prefix: str, copies: int = 1) -> Iterator[Slot]:
    if norm.borrowed:
        return
    weight = Slot(
        layer,
        path,
        "weight",
        "norms",
        prefix + norm.source,
        (norm.size,),
        copies=copies * norm.groups,
        groups=norm.groups,
    )
    if norm.affine:
        yield weight
    if norm.bias:
        yield replace(weight, kind="bias")
