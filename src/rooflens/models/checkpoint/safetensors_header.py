"""The header of one safetensors file, checked against the file it stands in.

Layout (https://github.com/huggingface/safetensors#format): 8 bytes little-endian, the header's length; the
header, a JSON object of tensors by name; data. Offsets count from the end of the header. Not read with
the library: it opens local files only, and says of a bad one no more than the name of a Rust enum.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from rooflens.errors import InputError, RooflensError, UnsupportedError
from rooflens.models.checkpoint.byte_source import ByteSource
from rooflens.models.checkpoint.extents import check_extents
from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.file_input import HEAD_BYTES, quoted, refuse_foreign, refuse_text
from rooflens.models.json_input import parse_json_object
from rooflens.units import BITS_PER_BYTE, KIB, MEGA

#: The format's own limit on the header. Its readers refuse more, however large the file.
LIMIT_HEADER_BYTES = 100 * MEGA

#: Bits per element of every type the format has (library version 0.8).
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

_LENGTH_BYTES = 8
#: A length below 256 TiB ends in two zero bytes, and the table follows: no other format begins so.
_START, _START_AT = b"\0\0{", 6
#: One read of this size holds the whole header of most files.
_FIRST_READ_BYTES = 128 * KIB
_METADATA = "__metadata__"
_AGAIN = "download or copy it again"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """One parsed file: its tensors, its ``__metadata__``, where its data begins (bytes), what is odd."""

    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, Any]
    data_offset: int
    problems: tuple[str, ...]


def read_header(source: ByteSource, *, limit_bytes: int = LIMIT_HEADER_BYTES) -> SafetensorsHeader:
    """Read one file's header; at most ``limit_bytes`` of it are ever read.

    Raises InputError for a file that is not safetensors, cut off, or has a tensor whose extent contradicts
    its type and shape, lies outside the file or overlaps another; UnsupportedError for an unknown type.
    """
    head = source.read(0, _FIRST_READ_BYTES)
    if not head.startswith(_START, _START_AT):
        _refuse_start(source, head)
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    data_offset = _LENGTH_BYTES + length
    if length > limit_bytes:
        raise InputError(
            f"{source.name} has a header of {length:,} bytes",
            allowed=f"at most {limit_bytes:,} bytes, the limit of the format",
            next="store the model in several files",
        )
    if data_offset > source.size:
        raise InputError(
            f"{source.name} is cut off: its header ends at byte {data_offset:,}, "
            f"but the file has {source.size:,}",
            next=_AGAIN,
        )
    raw = head[_LENGTH_BYTES:data_offset]
    if len(raw) < length:
        raw = source.read(_LENGTH_BYTES, length)
    table = parse_json_object(raw, what=f"the header of {source.name}")
    metadata = _metadata(table.pop(_METADATA, {}), source)
    if raw.count(b'"data_offsets"') > len(table):
        # The parser kept the last of two equal names; the slower way of parsing tells which.
        parse_json_object(raw, what=f"the header of {source.name}", unique_keys=True)
    tensors = _tensors(table, source, data_offset=data_offset)
    problems = check_extents(
        tensors, file=source.name, file_bytes=source.size, data_offset=data_offset, padding_bytes=0
    )
    refused = tuple(f"{problem}, which the safetensors library refuses" for problem in problems)
    return SafetensorsHeader(tensors, metadata, data_offset, refused)


def _refuse_start(source: ByteSource, head: bytes) -> NoReturn:
    # Only now, since any magic number of two bytes is also the low end of some header's length.
    refuse_foreign(head[:HEAD_BYTES], name=source.name, expected="safetensors")
    if len(head) <= _LENGTH_BYTES:
        raise InputError(f"{source.name} is cut off: it has {source.size} bytes", next=_AGAIN)
    refuse_text(head, name=source.name, expected="safetensors")
    raise InputError(f"{source.name} is not safetensors: it begins with {head[:9]!r}", next=_AGAIN)


def _metadata(value: Any, source: ByteSource) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InputError(f"{source.name} has a {_METADATA} that is not a table of text", next=_AGAIN)
    return value


def _tensors(table: dict[str, Any], source: ByteSource, *, data_offset: int) -> tuple[TensorInfo, ...]:
    # A checkpoint has up to 100,000 tensors: the loop only tests, and what failed is found out afterwards.
    file = source.name
    tensors = []
    for name, entry in table.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            bits = DTYPE_BITS[dtype]
            for size in shape:
                if type(size) is not int or size < 0:
                    raise ValueError
                bits *= size
            if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= sys.maxsize:
                raise ValueError
            if bits != BITS_PER_BYTE * (end - begin):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise _explain(name, entry, source) from None
        tensors.append(TensorInfo(name, dtype, tuple(shape), end - begin, file, data_offset + begin))
    return tuple(tensors)


def _explain(name: str, entry: Any, source: ByteSource) -> RooflensError:
    """Why `_tensors` stopped at this entry."""
    tensor = f"{source.name}: tensor {quoted(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        return InputError(f"{tensor} is not described by dtype, shape and data_offsets", next=_AGAIN)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return UnsupportedError(
            f"{tensor} has the unknown dtype {quoted(str(dtype))}",
            allowed=", ".join(DTYPE_BITS),
            next="update Rooflens if the type is new",
        )
    if not _are_sizes(shape):
        return InputError(f"{tensor} has a shape that is not a list of sizes", next=_AGAIN)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return InputError(f"{tensor} has data_offsets that are not [begin, end]", next=_AGAIN)
    bits = DTYPE_BITS[dtype] * math.prod(shape)
    needed = f"{bits // BITS_PER_BYTE:,}" if bits <= sys.maxsize else "too many"
    given = offsets[1] - offsets[0]
    if bits % BITS_PER_BYTE:
        return InputError(f"{tensor} of {dtype} does not fill whole bytes", value=shape, next=_AGAIN)
    return InputError(
        f"{tensor} of {dtype} {shape[:8]} takes {needed} bytes, but its offsets give {given:,}", next=_AGAIN
    )


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= sys.maxsize for size in value)
