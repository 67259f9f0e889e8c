"""The header of one GGUF file, read in bounded pieces from anything that can be read at an offset.

Layout (``docs/gguf.md`` of ggml): magic, version, tensor count, key-value count; the key-value pairs; for
each tensor its name, dimensions (fastest first), type and offset; padding; data. All counts are 64-bit.

The ``gguf`` package's GGUFReader maps the whole file and makes an array of every token: a header with
150,000 tokens and as many merges took it 7.6 s and 630 MB, and a prefix fetched over HTTP it cannot read.
Here long arrays are stepped over (the same header: 0.1 s) and read only when asked for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Literal

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.checkpoint.byte_source import ByteSource
from rooflens.models.checkpoint.ggml_types import ggml_type, tensor_bytes
from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.file_input import HEAD_BYTES, quoted, refuse_foreign, refuse_text
from rooflens.units import KIB, MIB, format_bytes

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32

#: Bounds on what one file may make its reader do; real headers stay far below (a 262,144-token vocabulary
#: makes one of about 15 MiB, and the largest models have some 2,000 tensors in a file).
LIMIT_HEADER_BYTES = 256 * MIB
LIMIT_ENTRIES = 1_000_000
LIMIT_NAME_BYTES = 64 * KIB
LIMIT_DIMENSIONS = 4
#: Arrays up to this length (per-layer values, tags) are kept as tuples, longer ones as `GGUFArray`.
SHORT_ARRAY = 1024

#: The first piece read and the largest; each is twice the one before.
_FIRST_WINDOW_BYTES = 256 * KIB
_LAST_WINDOW_BYTES = 8 * MIB

_NUMBERS = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "B"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_KNOWN_VALUE_TYPES = "0 to 12"


@dataclass(frozen=True, slots=True)
class GGUFArray:
    """A long array of a GGUF header, left in the file: item type, count and where it lies (bytes)."""

    item_type: str
    count: int
    offset: int
    bytes: int
    _reader: _Reader = field(repr=False, compare=False)
    _type_id: int = field(repr=False, compare=False)

    def __len__(self) -> int:
        return self.count

    def values(self) -> tuple[Any, ...]:
        """Read the items. Raises InputError if they take more than a header may."""
        if self.bytes > LIMIT_HEADER_BYTES:
            raise InputError(
                f"an array of {format_bytes(self.bytes, binary=True)} is too large to be read",
                allowed=f"at most {format_bytes(LIMIT_HEADER_BYTES, binary=True)}",
            )
        return self._reader.at(self.offset).items(self._type_id, self.count)


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """One parsed file. ``data_offset``: where tensor data begins, in bytes from the start of the file."""

    version: int
    byte_order: Literal["little", "big"]
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    alignment: int


class _Reader:
    """A position in a source, with one window of it in memory."""

    def __init__(self, source: ByteSource, order: str, position: int = 0) -> None:
        self.source = source
        self._order = order
        self._numbers = {type_id: struct.Struct(order + code) for type_id, (_, code) in _NUMBERS.items()}
        self._window = b""
        self._start = position  # where the window begins in the source
        self._index = 0  # the position within the window; past its end after a jump
        self._next_window_bytes = _FIRST_WINDOW_BYTES

    @property
    def position(self) -> int:
        return self._start + self._index

    def at(self, position: int) -> _Reader:
        """A new reader of the same source."""
        return _Reader(self.source, self._order, position)

    def need(self, length: int, what: str) -> None:
        """Have ``length`` bytes at the position in the window. Raises InputError if the file ends before."""
        if self._index + length <= len(self._window):
            return
        position = self.position
        self._check_left(length, what)
        if position + length > LIMIT_HEADER_BYTES:
            raise InputError(
                f"{self.source.name} has a header of over {format_bytes(LIMIT_HEADER_BYTES, binary=True)}: "
                "it is damaged or not a model"
            )
        self._window = self.source.read(position, max(length, self._next_window_bytes))
        self._start, self._index = position, 0
        self._next_window_bytes = min(2 * self._next_window_bytes, _LAST_WINDOW_BYTES)
        if len(self._window) < length:
            raise _cut_off(self.source, position, length, what)

    def _check_left(self, length: int, what: str) -> None:
        if self.position + length > self.source.size:
            raise _cut_off(self.source, self.position, length, what)

    def number(self, type_id: int, what: str) -> int | float:
        """The next number of a GGUF value type."""
        packed = self._numbers[type_id]
        self.need(packed.size, what)
        value: int | float = packed.unpack_from(self._window, self._index)[0]
        self._index += packed.size
        return value

    def u32(self, what: str) -> int:
        return int(self.number(4, what))

    def u64(self, what: str) -> int:
        return int(self.number(10, what))

    def raw_string(self, what: str) -> bytes:
        """The next string, as bytes: a 64-bit length and that many bytes."""
        length = self.u64(what)
        self.need(length, what)
        text = self._window[self._index : self._index + length]
        self._index += length
        return text

    def name(self, what: str) -> str:
        """The next string, as a key or tensor name: short and valid UTF-8."""
        raw = self.raw_string(what)
        if len(raw) > LIMIT_NAME_BYTES:
            raise InputError(f"{self.source.name} has {what} of {len(raw):,} bytes: it is damaged")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise InputError(f"{self.source.name} has {what} that is not UTF-8", value=raw[:40]) from None

    def count(self, what: str, *, item_bytes: int, limit: int | None = None) -> int:
        """The next count, refused if so many items of at least ``item_bytes`` cannot follow."""
        count = self.u64(what)
        if limit is not None and count > limit:
            raise InputError(f"{self.source.name} claims {count:,} {what}", allowed=f"up to {limit:,}")
        self._check_left(count * item_bytes, f"{count:,} {what}")
        return count

    def value(self, type_id: int, key: str) -> Any:
        """The value of a key. Text that is not UTF-8 keeps its readable part."""
        what = f"the value of {quoted(key)}"
        if type_id == _STRING:
            return self.raw_string(what).decode(errors="replace")
        if type_id == _ARRAY:
            return self._array(what)
        if type_id not in _NUMBERS:
            raise UnsupportedError(
                f"{self.source.name} gives {quoted(key)} the unknown value type {type_id}",
                allowed=_KNOWN_VALUE_TYPES,
            )
        number = self.number(type_id, what)
        return bool(number) if type_id == _BOOL else number

    def _array(self, what: str) -> tuple[Any, ...] | GGUFArray:
        item_type = self.u32(what)
        if item_type != _STRING and item_type not in _NUMBERS:
            kind = "arrays" if item_type == _ARRAY else f"the unknown type {item_type}"
            raise UnsupportedError(f"{self.source.name} has {what} as an array of {kind}")
        item_bytes = 8 if item_type == _STRING else self._numbers[item_type].size
        count = self.count(f"items in {what}", item_bytes=item_bytes)
        if count <= SHORT_ARRAY:
            return self.items(item_type, count)
        begin = self.position
        if item_type == _STRING:
            self._skip_strings(count, what)
        else:
            self._index += count * item_bytes
        name = "string" if item_type == _STRING else _NUMBERS[item_type][0]
        return GGUFArray(name, count, begin, self.position - begin, self.at(begin), item_type)

    def items(self, item_type: int, count: int) -> tuple[Any, ...]:
        """The next ``count`` items of an array."""
        what = "an item of an array"
        if item_type == _STRING:
            return self._strings(count, what)
        packed = struct.Struct(f"{self._order}{count}{_NUMBERS[item_type][1]}")
        self.need(packed.size, what)
        numbers = packed.unpack_from(self._window, self._index)
        self._index += packed.size
        return tuple(map(bool, numbers)) if item_type == _BOOL else numbers

    def _strings(self, count: int, what: str) -> tuple[str, ...]:
        """The next strings: those that lie whole in the window without a call for each."""
        unpack = self._numbers[10].unpack_from
        found: list[str] = []
        while len(found) < count:
            found.append(self.raw_string(what).decode(errors="replace"))
            window, index = self._window, self._index
            while len(found) < count and index + 8 <= len(window):
                end = index + 8 + unpack(window, index)[0]
                if end > len(window):
                    break
                found.append(window[index + 8 : end].decode(errors="replace"))
                index = end
            self._index = index
        return tuple(found)

    def _skip_strings(self, count: int, what: str) -> None:
        """Step over strings: each length has to be looked at, so this loop is the cost of a vocabulary."""
        unpack = self._numbers[10].unpack_from
        while count:
            self.need(8, what)
            window, index = self._window, self._index
            last = len(window) - 8
            while count and index <= last:
                index += 8 + unpack(window, index)[0]
                count -= 1
            self._index = index
        self._check_left(0, what)


def read_header(source: ByteSource) -> GGUFHeader:
    """Read one file's header, checking every count against the bytes that are there.

    Raises InputError for a file that is not GGUF, cut off, damaged, or has tensors outside the file or over
    one another; UnsupportedError for a version, value type or tensor type that is not covered.
    """
    head = source.read(0, HEAD_BYTES)
    if not head.startswith(MAGIC):
        refuse_foreign(head, name=source.name, expected="GGUF")
        refuse_text(head, name=source.name, expected="GGUF")
        raise InputError(f"{source.name} is not GGUF: it begins with {head[:4]!r}", allowed=repr(MAGIC))
    reader = _Reader(source, "<", len(MAGIC))
    version = reader.u32("the version")
    byte_order: Literal["little", "big"] = "little"
    if version and not version & 0xFFFF:  # the low half of a small number in the other byte order
        byte_order, reader = "big", _Reader(source, ">", len(MAGIC))
        version = reader.u32("the version")
    if version not in (2, 3):
        remedy = "convert the model again" if version == 1 else "update Rooflens if the version is new"
        raise UnsupportedError(
            f"{source.name} is GGUF version {version}", allowed="versions 2 and 3", next=remedy
        )
    tensor_count = reader.count("tensors", item_bytes=24, limit=LIMIT_ENTRIES)
    key_count = reader.count("metadata keys", item_bytes=13, limit=LIMIT_ENTRIES)

    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.name("a metadata key")
        if key in metadata:
            raise InputError(f"{source.name} gives the metadata key {quoted(key)} twice")
        metadata[key] = reader.value(reader.u32(f"the type of {quoted(key)}"), key)
    alignment = _alignment(metadata, source)

    entries = [_tensor_entry(reader) for _ in range(tensor_count)]
    data_offset = -(-reader.position // alignment) * alignment
    tensors = tuple(
        TensorInfo(name, dtype, shape, size, source.name, data_offset + offset)
        for name, dtype, shape, size, offset in entries
    )
    return GGUFHeader(version, byte_order, metadata, tensors, data_offset, alignment)


def _alignment(metadata: dict[str, Any], source: ByteSource) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise InputError(
            f"{source.name} has an invalid general.alignment", value=alignment, allowed="a power of two"
        )
    return alignment


def _tensor_entry(reader: _Reader) -> tuple[str, str, tuple[int, ...], int, int]:
    """Name, type name, shape (slowest dimension first), bytes, and offset within the data."""
    name = reader.name("a tensor name")
    what = f"the entry of tensor {quoted(name)}"
    dimensions = reader.u32(what)
    if dimensions > LIMIT_DIMENSIONS:
        raise UnsupportedError(
            f"{reader.source.name}: tensor {quoted(name)} has {dimensions:,} dimensions",
            allowed=f"at most {LIMIT_DIMENSIONS}",
        )
    shape = tuple(reversed([reader.u64(what) for _ in range(dimensions)]))
    stored = ggml_type(reader.u32(what), tensor=name)
    return name, stored.name, shape, tensor_bytes(stored, shape, tensor=name), reader.u64(what)


def _cut_off(source: ByteSource, position: int, length: int, what: str) -> InputError:
    return InputError(
        f"{source.name} is cut off or damaged: at byte {position:,} it needs {length:,} bytes for {what}, "
        f"but the file has {source.size:,}",
        next="download or copy it again",
    )
