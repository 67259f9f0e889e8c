"""A safetensors checkpoint as a model: its description from the config, every byte from the headers.

The config says what to expect; the headers say what is there. Where they differ the difference is a finding,
and the bytes are the headers'. A size that the shapes refute is corrected if one field of the config explains
all of it, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rooflens.errors import InputError
from rooflens.models.accounting import weights_bytes
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.models.file_input import quoted
from rooflens.models.formats.base import DTYPE_BITS, WeightFormat, plain_format
from rooflens.models.headers.corrections import corrected, declared_dtype
from rooflens.models.headers.expected import expected_formats
from rooflens.models.headers.match import Holding
from rooflens.models.headers.packing import PLAIN
from rooflens.models.headers.retype import vector_types, with_stored_types
from rooflens.models.headers.rows import report
from rooflens.models.headers.safetensors_findings import findings
from rooflens.models.headers.safetensors_match import Misfit, SafetensorsMatch, match_safetensors
from rooflens.models.headers.slots import Slot
from rooflens.models.headers.towers import with_copy, with_predictors, with_towers
from rooflens.models.spec import ModelSpec
from rooflens.units import BITS_PER_BYTE

#: Types that a config may name, by the storage type that prevails in a checkpoint.
_DECLARABLE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class ConfigSource:
    """A config.json: its fields, and how to read them with some of them changed."""

    fields: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], ModelSpec]


def safetensors_model(checkpoint: Checkpoint, config: ConfigSource) -> ModelSpec:
    """The model of a safetensors checkpoint and its config.

    Raises InputError for shapes that the config does not allow and no single field explains, and whatever
    reading the config raises.
    """
    fields, notes = dict(config.fields), []
    dtype = _prevailing_dtype(checkpoint)
    if declared_dtype(fields) is None and dtype is not None:
        fields["dtype"] = dtype
        notes.append(f"the config names no dtype: {dtype}, as most of the weights are stored")
    spec = config.read(fields)
    match = match_safetensors(spec, checkpoint)
    if match.misfits:
        spec, match, said = _corrected(spec, match, checkpoint, config, fields)
        notes += said
    made = _typed(spec, match)
    made = with_towers(made, match)
    if match.duplicates:
        made = with_copy(made, match.duplicates)
    made = with_predictors(made, match.predictors, parameters=_predictor_parameters(spec, match))
    config_bytes = weights_bytes(spec)
    return replace(
        made,
        stored=report(
            match,
            checkpoint,
            described=spec,
            config_bytes=config_bytes,
            findings=findings(spec, made, match, config_bytes=config_bytes),
        ),
        notes=tuple(dict.fromkeys((*made.notes, *notes))),
        evidence={**made.evidence, "weights": "exact"},
    )


def _prevailing_dtype(checkpoint: Checkpoint) -> str | None:
    """The floating-point type of most bytes, as a config would name it."""
    stored = checkpoint.bytes_by_dtype
    return next((_DECLARABLE[name] for name in stored if name in _DECLARABLE), None)


def _corrected(
    spec: ModelSpec,
    match: SafetensorsMatch,
    checkpoint: Checkpoint,
    config: ConfigSource,
    fields: Mapping[str, Any],
) -> tuple[ModelSpec, SafetensorsMatch, list[str]]:
    """Read the config again as the shapes have it. Raises InputError if that does not explain them all."""
    serious = [misfit for misfit in match.misfits if not _unreadable_packing(misfit)]
    if not serious:
        return spec, match, []
    changed, notes = corrected(spec, serious, fields)
    if notes:
        try:
            spec = config.read(changed)
        except InputError:
            raise _refuse(serious) from None
        match = match_safetensors(spec, checkpoint)
        serious = [misfit for misfit in match.misfits if not _unreadable_packing(misfit)]
    if serious:
        raise _refuse(serious)
    return spec, match, notes


def _unreadable_packing(misfit: Misfit) -> bool:
    """Whether the tensor is of integers laid out in some tool's own way: its bytes count all the same."""
    return misfit.slot.kind == "matrix" and misfit.tensor.dtype[:1] in "IU" and misfit.tensor.dtype != "I8"


def _refuse(misfits: list[Misfit]) -> InputError:
    first = misfits[0]
    others = f" ({len(misfits) - 1:,} more do not fit either)" if len(misfits) > 1 else ""
    return InputError(
        f"tensor {quoted(first.tensor.name)} is {list(first.tensor.shape)}, but the config makes it "
        f"{list(first.slot.shape)}{others}",
        next="the config is not that of this checkpoint, or was changed; name config.json to go by it alone",
    )


def _typed(spec: ModelSpec, match: SafetensorsMatch) -> ModelSpec:
    """The spec with the types of the files."""
    formats = expected_formats(spec)
    vectors: list[tuple[Slot, str]] = []
    for holding in match.holdings:
        if holding.slots[0].kind == "matrix":
            layout = _format(holding, formats[holding.slots[0].source], match.bits)
            formats.update((slot.source, layout) for slot in holding.slots)
        elif (dtype := PLAIN.get(holding.main[0].dtype)) is not None:
            vectors += ((slot, dtype) for slot in holding.slots)
    common, dtypes = vector_types(vectors, default=spec.dtype)
    made = with_stored_types(
        replace(spec, vector_dtype=None if common == spec.dtype else common), formats=formats, dtypes=dtypes
    )
    if spec.quantization is None:
        made = replace(made, quantization=_packed_label(match))
    return made


def _format(holding: Holding, expected: WeightFormat, bits: Mapping[str, Fraction]) -> WeightFormat:
    """How a matrix is stored: as the config says where that is its size, else as its tensors say."""
    counted = sum(
        expected.matrix_bytes(*(slot.shape[::-1] if slot.transposed else slot.shape)) * slot.copies
        for slot in holding.slots
    )
    types = {tensor.dtype for tensor in holding.main}
    plain = PLAIN.get(next(iter(types))) if len(types) == 1 and not holding.beside else None
    if plain is not None and bits.get(holding.slots[0].source) == DTYPE_BITS[plain]:
        return plain_format(plain)
    if counted == holding.bytes:
        return expected
    each = bits.get(holding.slots[0].source, Fraction(expected.bits))
    name = expected.name if each == expected.bits else f"{float(each):g}-bit packed"
    # What stands beside the weights differs from the tool's usual way: spread it over them, to the byte.
    spread = Fraction(holding.bytes * BITS_PER_BYTE, holding.elements)
    return WeightFormat(name, spread, compute_dtype=expected.compute_dtype)


def _packed_label(match: SafetensorsMatch) -> str | None:
    """A name for packed weights of which the config says nothing: by the bits of most of them."""
    weights: dict[Fraction, int] = {}
    for holding in match.holdings:
        bits = match.bits.get(holding.slots[0].source)
        if bits is not None and bits < BITS_PER_BYTE:
            weights[bits] = weights.get(bits, 0) + holding.elements
    return f"{float(max(weights, key=weights.__getitem__)):g}-bit packed" if weights else None


def _predictor_parameters(spec: ModelSpec, match: SafetensorsMatch) -> int:
    """Parameters of the prediction layers: their elements, or the config's count where they are packed."""
    if all(tensor.dtype in PLAIN for tensor in match.predictors):
        return sum(tensor.elements for tensor in match.predictors)
    counted = sum(component.parameters for component in spec.components if not component.in_total)
    return counted or sum(tensor.elements for tensor in match.predictors)
