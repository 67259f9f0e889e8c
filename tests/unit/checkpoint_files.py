"""Small checkpoint files for tests, written field by field so that each field can be wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
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


def safetensors_bytes(table: Mapping[str, Any], data_bytes: int, *, padding: bytes = b"") -> bytes:
    """A file with exactly this header, right or wrong, and ``data_bytes`` of zeros."""
    header = json.dumps(table).encode() + padding
    return len(header).to_bytes(8, "little") + header + b"\0" * data_bytes


def shard(tensors: Mapping[str, int]) -> bytes:
    """A file of F32 vectors: name to length."""
    table, end = {}, 0
    for name, length in tensors.items():
        table[name] = {"dtype": "F32", "shape": [length], "data_offsets": [end, end + 4 * length]}
        end += 4 * length
    return safetensors_bytes(table, end)


def write_shards(folder: Path, shards: Sequence[Mapping[str, int]], *, index: bool = False) -> list[Path]:
    """Numbered shards of F32 vectors, with their index if asked for."""
    paths = []
    for number, tensors in enumerate(shards):
        path = folder / f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        path.write_bytes(shard(tensors))
        paths.append(path)
    if index:
        total = 4 * sum(length for tensors in shards for length in tensors.values())
        where = {name: path.name for path, tensors in zip(paths, shards, strict=True) for name in tensors}
        table = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    return paths


def words_of(parameter: object) -> str:
    """A test's id from its parameters: the expected words only."""
    return parameter if isinstance(parameter, str) else ""
