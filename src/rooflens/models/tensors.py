"""From a ModelSpec to the tensors of its checkpoint: every name with its shape.

A matrix is stored as ``<module>.weight`` and ``<module>.bias``, a ``Parameter`` under its own name. Experts
are stored one by one where the source has ``{e}``; a source without it is the complete name of one tensor
that stacks all of them ([experts, out, in]; its bias is ``<name>_bias``). Parts that ``components`` counts
(vision towers and the like) are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflens.errors import UnsupportedError
from rooflens.models.spec import (
    Layer,
    Linear,
    ModelSpec,
    Norm,
    Parameter,
    Part,
    layer_linears,
    layer_tensors,
)

NamedShape = tuple[str, tuple[int, ...]]


def _named(source: str, what: str) -> str:
    if not source:
        raise UnsupportedError(f"'{what}' names no tensor of the checkpoint")
    return source


def _stacked_shape(linear: Linear, part: Part, experts: int) -> tuple[int, ...]:
    rows, columns = part.out_features, linear.in_features
    if linear.transposed:
        rows, columns = columns, rows
    return (experts * rows, columns) if part.layout == "flat" else (experts, rows, columns)


def linear_tensors(linear: Linear, *, copies: int = 1, stacked: bool = False) -> Iterator[NamedShape]:
    """Tensors of one linear layer, names relative to its block; ``stacked`` for experts in one tensor."""
    for part in () if linear.borrowed else linear.parts:
        source = _named(part.source, linear.name)
        if stacked and "{e}" not in source:
            yield source, _stacked_shape(linear, part, copies)
            if linear.bias:
                yield f"{source}_bias", (copies, part.out_features)
            continue
        shape = (part.out_features, linear.in_features)
        for expert in range(copies):
            module = source.replace("{e}", str(expert))
            name = module if linear.bare else f"{module}.weight"
            yield name, shape[::-1] if linear.transposed else shape
            if linear.bias:
                yield f"{module}.bias", (part.out_features,)


def norm_tensors(norm: Norm, *, copies: int = 1) -> Iterator[NamedShape]:
    """Tensors of one norm: per head where the source has ``{h}``, per expert where it has ``{e}``."""
    if norm.borrowed or not (norm.affine or norm.bias):
        return
    source = _named(norm.source, norm.name)
    per_head = "{h}" in source
    shape = (norm.size,) if norm.groups == 1 or per_head else (norm.groups, norm.size)
    for expert in range(copies):
        for head in range(norm.groups if per_head else 1):
            module = source.replace("{e}", str(expert)).replace("{h}", str(head))
            if norm.affine:
                yield f"{module}.weight", shape
            if norm.bias:
                yield f"{module}.bias", shape


def parameter_tensors(parameter: Parameter, *, copies: int = 1) -> Iterator[NamedShape]:
    """The tensor of one parameter."""
    source = _named(parameter.source, parameter.name)
    for expert in range(copies):
        yield source.replace("{e}", str(expert)), parameter.shape


def layer_checkpoint_tensors(layer: Layer) -> Iterator[NamedShape]:
    """Tensors of one layer, names relative to the layer."""
    for path, linear, copies in layer_linears(layer):
        yield from linear_tensors(linear, copies=copies, stacked=".experts." in path)
    for _, tensor, copies in layer_tensors(layer):
        if isinstance(tensor, Norm):
            yield from norm_tensors(tensor, copies=copies)
        else:
            yield from parameter_tensors(tensor, copies=copies)


def checkpoint_tensors(spec: ModelSpec) -> Iterator[NamedShape]:
    """Every tensor of the text decoder's checkpoint as (name, shape); a tied head owns no matrix.

    Raises UnsupportedError for a model known by four numbers only, and for a block whose tensors the
    family's adapter does not name.
    """
    if spec.free_form is not None:
        raise UnsupportedError("a free-form model has no tensors", next="name a real model")
    for table in (spec.embedding, *spec.tables):
        if table is not None:
            yield f"{table.source}.weight", (table.rows, table.dim)
    for parameter in spec.parameters_extra:
        yield from parameter_tensors(parameter)
    for norm in (*spec.norms, *((spec.final_norm,) if spec.final_norm else ())):
        yield from norm_tensors(norm)
    for linear in spec.linears:
        yield from linear_tensors(linear)
    for index, layer in enumerate(spec.layers):
        prefix = spec.layer_prefix.replace("{i}", str(index))
        for name, shape in layer_checkpoint_tensors(layer):
            yield prefix + name, shape
    if spec.head is not None:
        for name, shape in linear_tensors(spec.head):
            if not (spec.tied and name.endswith(".weight")):
                yield name, shape
