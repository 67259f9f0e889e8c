"""Small GGUF files for tests, written field by field (`gguf_bytes`) or by the gguf package (`write_gguf`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VALUE_TYPES = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"),
    "f32": (6, "f"), "bool": (7, "B"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip


def string(text: str | bytes, order: str = "<") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(order + "Q", len(raw)) + raw


def value(kind: str, content: Any, order: str = "<") -> bytes:
    """A typed value: ``("u32", 3)``, ``("str", "x")``, ``("array:u32", [1, 2])``."""
    if kind == "str":
        return struct.pack(order + "I", 8) + string(content, order)
    if kind.startswith("array:"):
        items = [value(kind[6:], item, order) for item in content]
        head = struct.pack(order + "IIQ", 9, 8 if kind[6:] == "str" else VALUE_TYPES[kind[6:]][0], len(items))
        return head + b"".join(item[4:] for item in items)
    type_id, code = VALUE_TYPES[kind]
    return struct.pack(order + "I" + code, type_id, content)


def tensor_entry(
    name: str | bytes, dims: Sequence[int], type_id: int, offset: int, order: str = "<"
) -> bytes:
    sizes = struct.pack(f"{order}I{len(dims)}Q", len(dims), *dims)
    return string(name, order) + sizes + struct.pack(order + "IQ", type_id, offset)


def gguf_bytes(
    metadata: Sequence[tuple[str, str, Any]] = (("general.architecture", "str", "llama"),),
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (("a", (4,), 0, 0),),
    *,
    data_bytes: int = 32,
    order: str = "<",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of ``metadata`` (key, kind, content) and ``tensors`` (name, dims, type id, offset)."""
    tensor_count, key_count = counts or (len(tensors), len(metadata))
    head = b"GGUF" + struct.pack(order + "IQQ", version, tensor_count, key_count)
    head += b"".join(string(key, order) + value(kind, content, order) for key, kind, content in metadata)
    head += b"".join(tensor_entry(*tensor, order) for tensor in tensors)
    return head + b"\0" * (-len(head) % alignment) + b"\0" * data_bytes


def split_part(number: int, count: int, tensors: Sequence[str], total: int) -> bytes:
    """Part ``number`` (from 0) of a split model, each tensor of 4 F32."""
    metadata: list[tuple[str, str, Any]] = [
        ("split.no", "u16", number),
        ("split.count", "u16", count),
        ("split.tensors.count", "i32", total),
    ]
    if number == 0:
        metadata.insert(0, ("general.architecture", "str", "llama"))
    entries = [(name, (4,), 0, 32 * index) for index, name in enumerate(tensors)]
    return gguf_bytes(metadata, entries, data_bytes=32 * len(tensors))


def write_split(folder: Path, parts: Sequence[Sequence[str]], *, stem: str = "model") -> list[Path]:
    total = sum(map(len, parts))
    paths = []
    for number, tensors in enumerate(parts):
        path = folder / f"{stem}-{number + 1:05d}-of-{len(parts):05d}.gguf"
        path.write_bytes(split_part(number, len(parts), tensors, total))
        paths.append(path)
    return paths
