"""From a ModelSpec to the tensors of its checkpoint: every name with its shape.

What is stored is listed by ``headers.slots``, once for all; here each slot becomes the tensors that it is in.
A matrix is stored as ``<module>.weight`` and ``<module>.bias``, a ``Parameter`` under its own name. Experts
are stored one by one where the source has ``{e}``; a source without it is the whole name of one tensor that
stacks all of them ([experts, out, in]; its bias is ``<name>_bias``). Parts that ``components`` counts (vision
towers and the like) are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflens.errors import UnsupportedError
from rooflens.models.headers.slots import Slot, model_slots
from rooflens.models.spec import ModelSpec

NamedShape = tuple[str, tuple[int, ...]]


def checkpoint_tensors(spec: ModelSpec) -> Iterator[NamedShape]:
    """Every tensor of the text decoder's checkpoint as (name, shape); a tied head owns no matrix.

    Raises UnsupportedError for a model known by four numbers only, and for a block whose tensors the
    family's adapter does not name.
    """
    if spec.free_form is not None:
        raise UnsupportedError("a free-form model has no tensors", next="name a real model")
    for slot in model_slots(spec):
        if not slot.source or slot.source.endswith("."):
            raise UnsupportedError(f"'{slot.path}' names no tensor of the checkpoint")
        if slot.owned:
            yield from _tensors(slot)


def _tensors(slot: Slot) -> Iterator[NamedShape]:
    """The tensors that a slot's copies are in."""
    stacked = ".experts." in slot.path and "{e}" not in slot.source
    if stacked and slot.kind in ("matrix", "bias"):
        yield _stacked(slot)
        return
    per_head = "{h}" in slot.source
    shape = slot.shape if slot.groups == 1 or per_head else (slot.groups, *slot.shape)
    for expert in range(slot.copies // slot.groups):
        for head in range(slot.groups if per_head else 1):
            name = slot.source.replace("{e}", str(expert)).replace("{h}", str(head))
            yield name + _ending(slot), shape


def _stacked(slot: Slot) -> NamedShape:
    """One tensor of all experts' matrices, or of their biases."""
    if slot.kind == "bias":
        return f"{slot.source}_bias", (slot.copies, *slot.shape)
    rows, columns = slot.shape
    return slot.source, (slot.copies * rows, columns) if slot.flat else (slot.copies, rows, columns)


def _ending(slot: Slot) -> str:
    """What a module's name gets: nothing where the source is the tensor's own name."""
    if slot.kind == "tensor" or (slot.kind == "matrix" and slot.complete):
        return ""
    return ".bias" if slot.kind == "bias" else ".weight"
