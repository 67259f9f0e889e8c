"""What is odd about a safetensors checkpoint, next to what its config makes one expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflens.models.accounting import weights_bytes
from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.file_input import some
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.headers.expected import expected_formats
from rooflens.models.headers.match import Holding
from rooflens.models.headers.packing import PLAIN
from rooflens.models.headers.safetensors_match import SafetensorsMatch
from rooflens.models.headers.towers import tower_findings
from rooflens.models.spec import ModelSpec
from rooflens.models.stored import Finding, finding
from rooflens.units import BITS_PER_BYTE, format_bytes, format_share

#: From this difference on between what the config makes of the weights and what the files hold, it is said.
LOADED_GAP = 0.05


def findings(
    spec: ModelSpec, made: ModelSpec, match: SafetensorsMatch, *, config_bytes: int
) -> Iterator[Finding]:
    """All findings; ``spec`` is the config's, ``made`` the one in the types of the files."""
    if match.missing:
        names = [slot.source for slot in match.missing]
        yield Finding(
            "missing",
            f"{len(names):,} tensors that the config asks for are not in the files: {some(names)}",
            count=len(names),
            tensors=tuple(names[:3]),
        )
    if match.duplicates:
        size = format_bytes(sum(tensor.bytes for tensor in match.duplicates))
        text = f"the tied token table is stored a second time as the head, {size}, and counted as stored"
        yield finding("duplicate", text, match.duplicates)
    other = [holding for holding in match.holdings if _meant(holding, spec) is not None]
    if other:
        tensors = [tensor for holding in other for tensor in holding.main]
        size = format_bytes(sum(tensor.bytes for tensor in tensors))
        types = " and ".join(sorted({tensor.dtype for tensor in tensors}))
        meant = " and ".join(sorted({str(_meant(holding, spec)) for holding in other}))
        text = f"{len(tensors):,} tensors ({size}) are {types} where the model is meant to have {meant}"
        yield finding("dtype", text, tensors)
    if spec.quantization is None and made.quantization is not None:
        tensors = [x for h in match.holdings for x in h.main if x.dtype not in PLAIN]
        text = f"the config names no quantisation, but {len(tensors):,} tensors are packed"
        yield finding("packing", text, tensors)
    yield from _quantised_otherwise(spec, match)
    if match.misfits:
        text = f"{len(match.misfits):,} packed tensors have a layout that is not known; their bytes count"
        yield finding("packing", text, [misfit.tensor for misfit in match.misfits])
    yield from tower_findings(spec, match)
    yield from _loaded(spec, made, match, config_bytes)


def _quantised_otherwise(spec: ModelSpec, match: SafetensorsMatch) -> Iterator[Finding]:
    """Matrices that the config quantises and the files do not, and the other way about."""
    if spec.quantization is None:
        return
    formats, wide = expected_formats(spec), dtype_bytes(spec.dtype) * BITS_PER_BYTE
    left: list[TensorInfo] = []
    packed: list[TensorInfo] = []
    for holding in match.holdings:
        bits = match.bits.get(holding.slots[0].source)
        if bits is None:
            continue
        meant = formats[holding.slots[0].source].bits
        if meant < wide <= bits:
            left += holding.main
        elif bits < wide <= meant:
            packed += holding.main
    if left:
        yield finding("packing", f"quantised by the config but not in the files, {len(left):,}", left)
    if packed:
        yield finding("packing", f"quantised in the files but not by the config, {len(packed):,}", packed)


def _meant(holding: Holding, spec: ModelSpec) -> str | None:
    """The element type of a tensor that is stored in another one and not quantised, else None."""
    plain, meant = PLAIN.get(holding.main[0].dtype), holding.slots[0].dtype or spec.dtype
    other = plain is not None and plain not in (meant, "fp8", "int8") and not holding.beside
    return meant if other else None


def _loaded(
    spec: ModelSpec, made: ModelSpec, match: SafetensorsMatch, config_bytes: int
) -> Iterator[Finding]:
    """Say that an engine that goes by the config holds another amount than the files, and what may be why."""
    held = weights_bytes(made)
    if not config_bytes or abs(held - config_bytes) <= LOADED_GAP * config_bytes:
        return
    share = format_share(abs(held - config_bytes) / config_bytes)
    more = "more" if held > config_bytes else "less"
    suspects = "; ".join(_suspects(spec, match)) or "none found among the names and types"
    yield Finding(
        "loaded",
        f"the files hold {format_bytes(held)}, {share} {more} than the {format_bytes(config_bytes)} that the "
        f"config makes of them and an engine that follows it loads; suspects: {suspects}",
        bytes=held - config_bytes,
    )


def _suspects(spec: ModelSpec, match: SafetensorsMatch) -> Iterator[str]:
    table = spec.embedding
    if match.duplicates:
        yield f"a duplicate of the token table ({_size(match.duplicates)})"
    if table is not None:
        copies = [tensor for tensor in match.unknown if tensor.shape == (table.rows, table.dim)]
        if copies:
            yield f"tensors of the token table's shape ({_size(copies)})"
    upcast = [
        tensor
        for holding in match.holdings
        for tensor in holding.main
        if tensor.dtype == "F32" and dtype_bytes(spec.dtype) < dtype_bytes("fp32")
    ]
    if upcast:
        yield f"parts kept in fp32 ({_size(upcast)})"
    if match.adapters:
        yield f"an adapter beside the weights that it changes ({_size(match.adapters)})"
    if match.unknown:
        yield f"tensors that the model does not use ({_size(match.unknown)})"
    if match.missing:
        yield f"{len(match.missing):,} tensors that are missing"


def _size(tensors: Sequence[TensorInfo]) -> str:
    return format_bytes(sum(tensor.bytes for tensor in tensors))
