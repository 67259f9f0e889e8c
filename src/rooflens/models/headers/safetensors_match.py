"""The tensors of a safetensors checkpoint as the slots of its model, quantised matrices included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.headers.match import Holding, Match, TowerKey
from rooflens.models.headers.packing import bits_per_weight
from rooflens.models.headers.safetensors_names import (
    Members,
    Names,
    is_adapter,
    is_table,
    layer_pattern,
    main_of,
    matrix_ways,
    predicts,
    tower_kind,
)
from rooflens.models.headers.slots import Slot, model_slots
from rooflens.models.spec import Component, ModelSpec


@dataclass(frozen=True, slots=True)
class Misfit:
    """A slot and a tensor of its name with another shape."""

    slot: Slot
    tensor: TensorInfo


@dataclass
class SafetensorsMatch(Match):
    """A match of a safetensors checkpoint.

    bits: bits per weight of each matrix's main tensors, by the slot's source. misfits: shapes that the
    config does not allow; their tensors are held all the same.
    """

    bits: dict[str, Fraction] = field(default_factory=dict)
    misfits: list[Misfit] = field(default_factory=list)


def match_safetensors(spec: ModelSpec, checkpoint: Checkpoint) -> SafetensorsMatch:
    """Find every slot of ``spec`` in the checkpoint and sort out the rest; what does not fit is data, too."""
    matcher = _Matcher(checkpoint)
    slots = list(model_slots(spec))
    for slot in slots:
        if slot.kind != "matrix":
            matcher.vector(slot)
    # After the vectors: what else has a matrix's name is a scale or a zero point of it.
    for slot in slots:
        if slot.kind == "matrix" and slot.owned:
            matcher.matrix(slot)
    for slot in slots:
        if not slot.owned:
            matcher.tied_head(slot)
    matcher.sort_out(spec)
    return matcher.match


class _Matcher:
    """One walk over the slots, then one over what is left."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.names = Names(checkpoint)
        self.match = SafetensorsMatch()
        self._taken: set[str] = set()
        self._shared: dict[tuple[str, ...], Holding] = {}

    def matrix(self, slot: Slot) -> None:
        """Claim the tensors of a matrix, with the scales and zero points of all its copies."""
        for complete, modules in matrix_ways(slot, limit=len(self.checkpoint.tensors)):
            look = self.names.complete if complete else self.names.members
            found = [look(module) for module in modules]
            mains = [main_of(members) for members in found]
            if mains and mains[0] is not None:
                break
        else:
            self.match.missing.append(slot)
            return
        if modules in self._shared:  # gate and up in one tensor
            self._shared[modules].slots.append(slot)
            self._check(self._shared[modules], slot.copies, "weight")
            return
        held = [main for main in mains if main is not None]
        if len(held) < len(modules):
            self.match.missing.append(slot)
        holding = Holding([slot], tuple(tensor for _, tensor in held))
        self._taken.update(tensor.name for tensor in holding.main)
        for members in found:
            holding.beside += self._beside(members)
        self._take(holding)
        self._shared[modules] = holding
        if len(modules) == 1:
            self._check(holding, slot.copies, held[0][0])
        else:
            self._check_each(slot, held, len(modules) // slot.copies)

    def _beside(self, members: Members) -> Iterator[TensorInfo]:
        for rest, tensor in members:
            if rest == "bias" or tensor.name in self._taken:
                continue
            if not (is_table(tensor.name) or is_adapter(tensor.name)):
                yield tensor

    def _take(self, holding: Holding) -> None:
        self.match.holdings.append(holding)
        self._taken.update(tensor.name for tensor in holding.tensors)

    def _check(self, holding: Holding, copies: int, ending: str) -> None:
        """Whether one tensor holds the matrices of all slots of the holding, stacked along their rows."""
        first, tensor = holding.slots[0], holding.main[0]
        rows = sum(slot.shape[0] for slot in holding.slots)
        shapes = {(rows, first.shape[1])}
        if first.copies > 1:
            shapes.add((first.shape[1], rows))  # stacked experts, [in, out] or [out, in]
        self._judge(holding.slots, tensor, shapes, copies, ending)

    def _check_each(self, slot: Slot, held: list[tuple[str, TensorInfo]], leaves: int) -> None:
        """Whether every expert has its matrix, or ``leaves`` matrices that make it up."""
        rows, columns = slot.shape
        shapes = {(rows // leaves, columns)}
        if slot.transposed:
            shapes = {(columns // leaves, rows)}
        for ending, dtype, shape in dict.fromkeys((end, x.dtype, x.shape) for end, x in held):
            tensor = next(x for _, x in held if (x.dtype, x.shape) == (dtype, shape))
            if not self._judge([slot], tensor, shapes, 1, ending):
                return

    def _judge(
        self, slots: list[Slot], tensor: TensorInfo, shapes: set[tuple[int, int]], copies: int, ending: str
    ) -> bool:
        for shape in shapes:
            bits = bits_per_weight(tensor, shape=shape, copies=copies, ending=ending)
            if bits is not None:
                self.match.bits.update((slot.source, bits) for slot in slots)
                self.match.misfits = [misfit for misfit in self.match.misfits if misfit.tensor is not tensor]
                return True
        if all(misfit.tensor is not tensor for misfit in self.match.misfits):
            self.match.misfits.append(Misfit(slots[-1], tensor))
        return False

    def vector(self, slot: Slot) -> None:
        """Claim the tensors of a bias, a norm or another tensor."""
        if slot.copies > len(self.checkpoint.tensors) and "{" in slot.source:
            self.match.missing.append(slot)
            return
        names = list(_vector_names(slot))
        held = [tensor for name in names if (tensor := self.names.tensor(name)) is not None]
        if len(held) < len(names):
            self.match.missing.append(slot)
        if not held:
            return
        self._take(Holding([slot], tuple(held)))
        elements = slot.elements // len(names)
        wrong = next((tensor for tensor in held if tensor.elements != elements), None)
        if wrong is not None:
            self.match.misfits.append(Misfit(slot, wrong))

    def tied_head(self, slot: Slot) -> None:
        """A tied head's own matrix: a copy of the token table, or the table itself where it is not there."""
        members = [item for item in self.names.members(slot.source) if item[0] != "bias"]
        if main_of(members) is None:
            return
        tensors = [tensor for _, tensor in members]
        table = next((s for s in self.match.missing if s.path == "embedding"), None)
        if table is not None:
            self.match.missing.remove(table)
            self._take(Holding([table], (tensors[0],), tensors[1:]))
        else:
            self.match.duplicates += tensors
            self._taken.update(tensor.name for tensor in tensors)

    def sort_out(self, spec: ModelSpec) -> None:
        """File what no slot claimed: tables, prediction layers, towers, adapters, the unknown."""
        layer, layers = layer_pattern(spec.layer_prefix), len(spec.layers)
        described = _described(spec.components)
        match = self.match
        for tensor in self.checkpoint.tensors:
            if tensor.name in self._taken:
                continue
            if is_table(tensor.name):
                match.tables.append(tensor)
            elif is_adapter(tensor.name):
                match.adapters.append(tensor)
            elif (key := _tower(tensor.name, described)) is not None:
                match.towers.setdefault(key, []).append(tensor)
            elif predicts(tensor.name, layer, layers):
                match.predictors.append(tensor)
            elif (kind := tower_kind(tensor.name)) is not None:
                match.towers.setdefault((kind, ""), []).append(tensor)
            else:
                match.unknown.append(tensor)


def _vector_names(slot: Slot) -> Iterator[str]:
    experts = range(slot.copies) if "{e}" in slot.source else (0,)
    for expert in experts:
        source = slot.source.replace("{e}", str(expert))
        if slot.kind == "tensor":
            yield source
        elif slot.complete and slot.kind == "bias":
            yield f"{source}_bias"
        elif "{h}" in source:
            yield from (f"{source.replace('{h}', str(head))}.{slot.kind}" for head in range(slot.copies))
        else:
            yield f"{source}.{slot.kind}"


def _described(components: Iterable[Component]) -> list[tuple[str, TowerKey]]:
    """What the names of the towers that the config describes contain, the longest first."""
    found = [
        (f".{x.name}" if x.name.endswith("_") else f".{x.name}.", (x.kind, x.name))
        for x in components
        if x.in_total and x.name
    ]
    return sorted(found, key=lambda item: -len(item[0]))


def _tower(name: str, described: list[tuple[str, TowerKey]]) -> TowerKey | None:
    dotted = f".{name}"
    return next((key for part, key in described if part in dotted), None)
