"""Giving every matrix of a ModelSpec a format: one walk, shared by all ways of choosing one.

A chooser maps a ``Matrix`` to its WeightFormat, None for the model's own element type. A matrix that its
family keeps in an element type of its own (DeepSeek-V4's float32 mixing) is not offered. Layers that were
equal and are given equal formats stay one object, so that a spec's groups stay few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from rooflens.models.accounting import layer_parameters, layer_weight_bytes
from rooflens.models.formats.base import DTYPE_BITS, WeightFormat, plain_format
from rooflens.models.spec import (
    Component,
    DenseMlp,
    Embedding,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Mlp,
    ModelSpec,
)


class Role(Enum):
    """What a matrix does, as far as quantisation tools tell matrices apart."""

    LINEAR = "linear"  # attention, dense feed-forward and whatever else is a linear of a layer
    EXPERT = "expert"
    SHARED_EXPERT = "shared_expert"
    ROUTER = "router"  # which experts, and how much of the shared one
    HEAD = "head"
    EMBEDDING = "embedding"
    OUTSIDE = "outside"  # a linear outside the layers


_ELEMENT_TYPES = frozenset(plain_format(dtype) for dtype in DTYPE_BITS)
BLOCK_ROLES = frozenset({Role.LINEAR, Role.EXPERT, Role.SHARED_EXPERT})


@dataclass(frozen=True)
class Matrix:
    """One stored matrix, ``out_features`` x ``in_features``, ``copies`` times (experts).

    ``source`` is the checkpoint's module name inside the layer, ``module`` the whole one; ``{e}`` stands
    for the expert. ``part`` of ``parts`` is its place in the fused ``linear`` of ``mixer``, where it has one.
    """

    role: Role
    source: str
    module: str
    out_features: int
    in_features: int
    copies: int = 1
    layer: int | None = None
    linear: str = ""
    part: int = 0
    parts: int = 1
    mixer: Mixer | None = None
    own: WeightFormat | None = None  # the element type that the family gives it, where it gives one

    @property
    def expert_modules(self) -> tuple[str, ...]:
        """The whole module names, one per expert where the checkpoint stores experts one by one."""
        if "{e}" not in self.module:
            return (self.module,)
        return tuple(self.module.replace("{e}", str(expert)) for expert in range(self.copies))


Chooser = Callable[[Matrix], WeightFormat | None]
_Linears = Iterator[tuple[Role, Linear, int, Mixer | None]]


def layer_roles(layer: Layer) -> _Linears:
    """(role, linear, copies, mixer) of every linear of a layer, in the order that rewriting follows."""
    for mixer in layer.mixers:
        for linear in mixer.linears:
            yield Role.LINEAR, linear, 1, mixer
    for mlp in (layer.mlp, layer.extra_mlp):
        if isinstance(mlp, DenseMlp):
            for linear in mlp.linears:
                yield Role.LINEAR, linear, 1, None
        elif mlp is not None:
            yield from _mixture_roles(mlp)
    for linear in layer.linears:
        yield Role.LINEAR, linear, 1, None


def _mixture_roles(mlp: MixtureOfExperts) -> _Linears:
    yield Role.ROUTER, mlp.router, 1, None
    for linear in mlp.linears:
        yield Role.LINEAR, linear, 1, None
    for linear in mlp.expert.linears:
        yield Role.EXPERT, linear, mlp.experts, None
    for linear in mlp.shared.linears if mlp.shared else ():
        yield Role.SHARED_EXPERT, linear, 1, None
    if mlp.shared_gate is not None:
        yield Role.ROUTER, mlp.shared_gate, 1, None


def _own_type(layout: WeightFormat | None, spec: ModelSpec) -> WeightFormat | None:
    """An element type wider than the model's own, which a family sets where its code insists on it."""
    wider = layout in _ELEMENT_TYPES and layout is not None and layout.bits > DTYPE_BITS[spec.dtype]
    return layout if wider else None


def _matrices(
    spec: ModelSpec,
    role: Role,
    linear: Linear,
    *,
    copies: int = 1,
    mixer: Mixer | None = None,
    prefix: str = "",
    layer: int | None = None,
) -> Iterator[Matrix]:
    for index, part in enumerate(linear.parts):
        yield Matrix(
            role=role,
            source=part.source,
            module=prefix + part.source,
            out_features=part.out_features,
            in_features=linear.in_features,
            copies=copies,
            layer=layer,
            linear=linear.name,
            part=index,
            parts=len(linear.parts),
            mixer=mixer,
            own=_own_type(part.weight_format, spec),
        )


def layer_matrices(spec: ModelSpec, layer: Layer, index: int) -> Iterator[Matrix]:
    """Every matrix of one layer, standing at ``index``."""
    prefix = spec.layer_prefix.replace("{i}", str(index))
    for role, linear, copies, mixer in layer_roles(layer):
        yield from _matrices(spec, role, linear, copies=copies, mixer=mixer, prefix=prefix, layer=index)


def table_matrix(table: Embedding) -> Matrix:
    """A token table as a matrix."""
    return Matrix(Role.EMBEDDING, table.source, table.source, table.rows, table.dim)


def _with_formats(linear: Linear, formats: Iterator[WeightFormat | None]) -> Linear:
    parts = tuple(replace(part, weight_format=next(formats)) for part in linear.parts)
    return replace(linear, parts=parts)


def _mlp_with_formats(mlp: Mlp | None, formats: Iterator[WeightFormat | None]) -> Mlp | None:
    def each(linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
        return tuple(_with_formats(linear, formats) for linear in linears)

    if mlp is None:
        return None
    if isinstance(mlp, DenseMlp):
        return replace(mlp, linears=each(mlp.linears))
    # Keyword arguments are evaluated in order: the order of ``_mixture_roles``.
    return replace(
        mlp,
        router=_with_formats(mlp.router, formats),
        linears=each(mlp.linears),
        expert=replace(mlp.expert, linears=each(mlp.expert.linears)),
        shared=mlp.shared and replace(mlp.shared, linears=each(mlp.shared.linears)),
        shared_gate=mlp.shared_gate and _with_formats(mlp.shared_gate, formats),
    )


def _layer_with_formats(layer: Layer, formats: Iterator[WeightFormat | None]) -> Layer:
    return replace(
        layer,
        mixers=tuple(
            replace(mixer, linears=tuple(_with_formats(linear, formats) for linear in mixer.linears))
            for mixer in layer.mixers
        ),
        mlp=_mlp_with_formats(layer.mlp, formats),
        extra_mlp=_mlp_with_formats(layer.extra_mlp, formats),
        linears=tuple(_with_formats(linear, formats) for linear in layer.linears),
    )


def _rewritten_layers(spec: ModelSpec, choose: Chooser, *, per_layer: bool) -> tuple[Layer, ...]:
    layers: list[Layer] = list(spec.layers)
    for group in spec.groups:
        made: dict[tuple[WeightFormat | None, ...], Layer] = {}
        formats: tuple[WeightFormat | None, ...] = ()
        for index in group.indices:
            if per_layer or not made:
                formats = tuple(choose(matrix) for matrix in layer_matrices(spec, group.layer, index))
                if formats not in made:
                    made[formats] = _layer_with_formats(group.layer, iter(formats))
            layers[index] = made[formats]
    return tuple(layers)


def rewrite(spec: ModelSpec, choose: Chooser, *, per_layer: bool, keep_own: bool = True) -> ModelSpec:
    """The spec with the format that ``choose`` gives to each matrix; parameters stay what they are.

    ``per_layer`` False promises that equal layers get equal formats wherever they stand; ``keep_own``
    False offers every matrix. A tied head gets its table's format.
    """

    def offer(matrix: Matrix) -> WeightFormat | None:
        return matrix.own if keep_own and matrix.own is not None else choose(matrix)

    embedding = spec.embedding and replace(spec.embedding, weight_format=offer(table_matrix(spec.embedding)))
    head = spec.head
    if head is not None and spec.tied and embedding is not None:
        head = _with_formats(head, iter([embedding.weight_format] * len(head.parts)))
    elif head is not None:
        head = _chosen(spec, head, Role.HEAD, offer)
    return replace(
        spec,
        layers=_rewritten_layers(spec, offer, per_layer=per_layer),
        embedding=embedding,
        tables=tuple(replace(x, weight_format=offer(table_matrix(x))) for x in spec.tables),
        head=head,
        linears=tuple(_chosen(spec, linear, Role.OUTSIDE, offer) for linear in spec.linears),
    )


def _chosen(spec: ModelSpec, linear: Linear, role: Role, choose: Chooser) -> Linear:
    return _with_formats(linear, (choose(x) for x in _matrices(spec, role, linear)))


def predictor_bytes(spec: ModelSpec, choose: Chooser, component: Component) -> int:
    """Bytes of next-token prediction layers, taken to be stored as the decoder's last layer would be.

    Checkpoints call them the layers after the last one, or ``mtp``: left alone under either name they
    are counted in the model's own type.
    """
    last = spec.layers[-1]

    def chosen(matrix: Matrix) -> WeightFormat | None:
        if matrix.own is not None:
            return matrix.own
        made = choose(matrix)
        other = replace(matrix, module=f"mtp.layers.0.{matrix.source}")
        return made if made is not None and choose(other) is not None else None

    formats = (chosen(matrix) for matrix in layer_matrices(spec, last, len(spec.layers)))
    layer = _layer_with_formats(last, formats)
    return -(-component.parameters * layer_weight_bytes(layer, spec) // layer_parameters(layer)[0])
