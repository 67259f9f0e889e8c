"""Fields of a config that the shapes of its checkpoint refute, and what they should have said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rooflens.models.families.fields import HEADS, INTERMEDIATE, KV_HEADS
from rooflens.models.families.nested import TEXT_SECTIONS
from rooflens.models.spec import Attention, ModelSpec

if TYPE_CHECKING:
    from rooflens.models.headers.safetensors_match import Misfit

_DTYPES = ("dtype", "torch_dtype")
_VOCABULARY, _HEAD_DIM = ("vocab_size", "padded_vocab_size"), ("head_dim",)


def _sections(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config and the sections in it that may hold the language model, the innermost first."""
    found = [value for name in TEXT_SECTIONS if isinstance(value := fields.get(name), Mapping)]
    thinker = fields.get("thinker_config")
    if isinstance(thinker, Mapping) and isinstance(thinker.get("text_config"), Mapping):
        found.append(thinker["text_config"])
    return [*found, fields]


def declared_dtype(fields: Mapping[str, Any]) -> Any:
    """The element type that a config declares, wherever it does."""
    values = (section.get(name) for section in _sections(fields) for name in _DTYPES)
    return next((value for value in values if value is not None), None)


def corrected(
    spec: ModelSpec, misfits: Iterable[Misfit], fields: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """(the fields as the shapes have them, a note for each that changed); the same fields where none does."""
    changes: dict[tuple[str, ...], int] = {}
    for misfit in misfits:
        shape = misfit.tensor.shape
        if misfit.slot.kind == "matrix" and len(shape) == 2 and misfit.tensor.dtype[:1] in "BF":
            changes |= _change(
                spec, misfit, rows=shape[1] if misfit.slot.transposed else shape[0], seen=changes
            )
    made, notes = dict(fields), []
    for names, size in changes.items():
        made, before, name = _replaced(made, names, size)
        shown = "none" if before is None else before
        notes.append(f"{name} {shown} is refuted by the shapes of the weights: {size} is what they have")
    return made, notes


def _change(
    spec: ModelSpec, misfit: Misfit, *, rows: int, seen: Mapping[tuple[str, ...], int]
) -> dict[tuple[str, ...], int]:
    slot = misfit.slot
    if slot.path in ("embedding", "head"):
        return {_VOCABULARY: rows}
    if slot.path in ("mlp.gate_up_proj", "mlp.up_proj"):
        return {INTERMEDIATE: rows if slot.parts > 1 or slot.path == "mlp.up_proj" else rows // 2}
    mixer = next((m for m in spec.layers[slot.layer or 0].mixers if isinstance(m, Attention)), None)
    if slot.path != "attention.qkv_proj" or slot.parts != 3 or mixer is None:
        return {}
    if slot.part == 0 and rows % mixer.heads == 0:
        return {_HEAD_DIM: rows // mixer.heads}
    size = seen.get(_HEAD_DIM, mixer.head_dim)
    if slot.part == 1 and rows % size == 0 and rows // size != mixer.kv_heads:
        return {KV_HEADS: rows // size}
    return {}


def _replaced(
    fields: Mapping[str, Any], names: tuple[str, ...], size: int
) -> tuple[dict[str, Any], Any, str]:
    """The config with one of its fields set, under the spelling and in the section that it uses."""
    for section in _sections(fields):
        spelt = next((name for name in names if section.get(name) is not None), None)
        if spelt is None and any(section.get(name) is not None for name in HEADS):
            spelt = names[0]
        if spelt is not None:
            return _with(fields, section, spelt, size), section.get(spelt), spelt
    return {**fields, names[0]: size}, None, names[0]


def _with(fields: Mapping[str, Any], section: Mapping[str, Any], name: str, size: int) -> dict[str, Any]:
    """The fields with ``name`` set in one of their sections, or in themselves."""
    if section is fields:
        return {**fields, name: size}
    return {
        key: _with(value, section, name, size) if isinstance(value, Mapping) else value
        for key, value in fields.items()
    }
