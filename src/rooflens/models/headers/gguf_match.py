"""The tensors of a GGUF file as the slots of its model; each matrix's format is its tensors' types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from rooflens.errors import InputError
from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.file_input import quoted, some
from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.gguf import mixed
from rooflens.models.formats.layouts import ggml
from rooflens.models.headers.gguf_names import BESIDE, TABLES, stored_ways
from rooflens.models.headers.match import Holding, Match
from rooflens.models.headers.slots import Slot, model_slots
from rooflens.models.spec import ModelSpec
from rooflens.units import BITS_PER_BYTE

_LAYER = re.compile(r"blk\.(\d+)\.")
_PLAIN = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def match_gguf(spec: ModelSpec, checkpoint: Checkpoint) -> Match:
    """Find every slot of ``spec`` in the file.

    Raises InputError where a tensor does not have the size that the metadata give it, or matrices are
    missing: the file is damaged, or its architecture has other tensors than this description.
    """
    match, held = Match(), checkpoint.by_name
    by_way: dict[tuple[str, ...], Holding] = {}
    taken: set[str] = set()
    for slot in model_slots(spec):
        if not slot.owned:
            continue
        ways = list(stored_ways(slot, limit=len(held)))
        way = _chosen(slot, ways, held, taken)
        if way is None:
            if ways:
                match.missing.append(slot)
            continue
        taken.update(way)
        if way in by_way:
            by_way[way].slots.append(slot)
        else:
            by_way[way] = Holding([slot], tuple(held[name] for name in way))
    match.holdings = list(by_way.values())
    for tensor in checkpoint.tensors:
        if tensor.name not in taken:
            _sort_out(tensor, match, by_way, layers=len(spec.layers))
    _check(match, checkpoint)
    return match


def _chosen(
    slot: Slot, ways: Sequence[tuple[str, ...]], held: Mapping[str, TensorInfo], taken: set[str]
) -> tuple[str, ...] | None:
    """The way that the file takes: the one of the slot's own size, else the first that is there."""
    there = [way for way in ways if all(name in held for name in way)]
    if slot.use == "norms":
        there = [way for way in there if taken.isdisjoint(way)]
    fits = [way for way in there if sum(held[name].elements for name in way) == slot.elements]
    return next(iter(fits or there), None)


def _sort_out(
    tensor: TensorInfo, match: Match, by_way: Mapping[tuple[str, ...], Holding], *, layers: int
) -> None:
    layer = _LAYER.match(tensor.name)
    owner = next((tensor.name.removesuffix(end) for end in BESIDE if tensor.name.endswith(end)), None)
    holding = by_way.get((f"{owner}.weight",)) if owner else None
    if holding is not None:
        holding.beside.append(tensor)
    elif tensor.name in TABLES:
        match.tables.append(tensor)
    elif ".nextn." in tensor.name or (layer is not None and int(layer[1]) >= layers):
        match.predictors.append(tensor)
    else:
        match.unknown.append(tensor)


def _check(match: Match, checkpoint: Checkpoint) -> None:
    for holding in match.holdings:
        stored = sum(tensor.elements for tensor in holding.main)
        if stored == holding.elements:
            continue
        shapes = " and ".join(str(list(tensor.shape)) for tensor in holding.main[:2])
        expected = " and ".join(str(list(slot.shape)) for slot in holding.slots[:2])
        raise InputError(
            f"tensor {quoted(holding.main[0].name)} has {stored:,} weights in {shapes}, but the file's own "
            f"metadata make it {holding.elements:,}, {expected}",
            next="the file is damaged, or its metadata were changed",
        )
    absent = [slot for slot in match.missing if slot.kind == "matrix"]
    if absent:
        names = [next(stored_ways(slot, limit=0))[0] for slot in absent]
        hint = f"; it holds others that are not known: {some([x.name for x in match.unknown])}"
        raise InputError(
            f"{checkpoint.files[0].name} lacks {len(absent):,} matrices of its architecture: {some(names)}"
            + (hint if match.unknown else "")
        )


def tensor_format(type_name: str) -> WeightFormat:
    """The weight format of a GGML type."""
    type_ = GGML_TYPES_BY_NAME[type_name]
    if type_.block_elements == 1 and type_name not in _PLAIN:
        return WeightFormat(type_name.lower(), type_.block_bytes * BITS_PER_BYTE)
    return ggml(type_name) if type_name != "F64" else WeightFormat("fp64", type_.block_bytes * BITS_PER_BYTE)


def holding_format(holding: Holding) -> WeightFormat:
    """How the slots of a holding are stored: their tensors' type, or types by their share of the weights."""
    layout = mixed((tensor.elements, tensor_format(tensor.dtype)) for tensor in holding.main)
    bits = holding.bytes * BITS_PER_BYTE
    exact = all(
        layout.matrix_bytes(*slot.shape) * slot.copies * BITS_PER_BYTE * holding.elements
        == bits * slot.elements
        for slot in holding.slots
    )
    # Rows stored across those of the slot, or a scale beside them: the same bytes, spread over the weights.
    return layout if exact else WeightFormat(layout.name, Fraction(bits, holding.elements))


def plain_dtype(type_name: str) -> str | None:
    """The element type of a tensor that is not quantised."""
    return _PLAIN.get(type_name)
