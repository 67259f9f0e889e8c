"""safetensors checkpoints: one file, or shards with or without an index.

The index (``model.safetensors.index.json``) maps each tensor to its shard. It is written apart from the
shards and may disagree with them: what the shards hold is counted, and the disagreement is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflens.errors import InputError
from rooflens.models.checkpoint.byte_source import ByteSource, map_sources
from rooflens.models.checkpoint.safetensors_header import SafetensorsHeader, read_header
from rooflens.models.checkpoint.tensor import Checkpoint, CheckpointFile, TensorInfo
from rooflens.models.file_input import quoted, some, stays_inside
from rooflens.units import MIB

INDEX_SUFFIX = ".safetensors.index.json"
#: An index of a million tensors, the most a header can list, is about 100 MB.
LIMIT_INDEX_BYTES = 256 * MIB

_AGAIN = "download it again"
_ONE_MODEL = "keep the files of one model only, with their index"


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """What an index file says: the shard of each tensor, the shards in order, and its metadata."""

    name: str
    shard_of: Mapping[str, str]
    shards: tuple[str, ...]
    metadata: Mapping[str, Any]


def parse_index(table: Mapping[str, Any], *, name: str) -> ShardIndex:
    """Check a parsed index file called ``name``; the shards lie in the directory of that name.

    Raises InputError if it is not an index, or names files outside its directory.
    """
    shard_of, metadata = table.get("weight_map"), table.get("metadata") or {}
    if not isinstance(shard_of, dict) or not shard_of:
        raise InputError(f"{name} has no weight_map of tensors to files", next=_AGAIN)
    if not isinstance(metadata, dict):
        raise InputError(f"{name} has metadata that is not a table", next=_AGAIN)
    if not all(isinstance(shard, str) for shard in shard_of.values()):
        raise InputError(f"{name} maps a tensor to something that is not a file name", next=_AGAIN)
    shards = sorted(set(shard_of.values()))
    for shard in shards:
        if not stays_inside(shard):
            raise InputError(f"{name} names a file outside its directory", value=quoted(shard))
    folder = name.rpartition("/")[0]
    if folder:
        shards = [f"{folder}/{shard}" for shard in shards]
        shard_of = {tensor: f"{folder}/{shard}" for tensor, shard in shard_of.items()}
    return ShardIndex(name, shard_of, tuple(shards), metadata)


def read_safetensors(
    sources: Sequence[ByteSource], *, index: ShardIndex | None = None, workers: int = 1
) -> Checkpoint:
    """Read the headers of one file or of all shards, and compare them with the index if there is one.

    ``workers``: how many files to read at a time. Raises InputError and UnsupportedError as `read_header`
    does, and InputError if two shards hold different tensors of one name.
    """
    headers = map_sources(read_header, sources, workers=workers)
    shard_of = index.shard_of if index is not None else {}
    metadata: dict[str, Any] = dict(index.metadata) if index is not None else {}
    by_name: dict[str, TensorInfo] = {}
    twice: list[str] = []
    files: list[CheckpointFile] = []
    problems: list[str] = []
    for source, header in zip(sources, headers, strict=True):
        files.append(CheckpointFile(source.name, source.size, header.data_offset))
        problems += header.problems
        for key, value in header.metadata.items():
            metadata.setdefault(key, value)
        if by_name.keys().isdisjoint(tensor.name for tensor in header.tensors):
            by_name.update((tensor.name, tensor) for tensor in header.tensors)
        else:
            twice += _merge(by_name, header, shard_of)
    if twice:
        problems.append(f"{len(twice):,} tensors are stored in two files and counted once: {some(twice)}")
    if index is not None:
        problems += _compare_with_index(by_name, index)
    return Checkpoint("safetensors", tuple(files), tuple(by_name.values()), metadata, tuple(problems))


def _merge(
    by_name: dict[str, TensorInfo], header: SafetensorsHeader, shard_of: Mapping[str, str]
) -> list[str]:
    """Add a file that repeats tensors of files before it; return the names of those."""
    repeated: list[str] = []
    for tensor in header.tensors:
        earlier = by_name.setdefault(tensor.name, tensor)
        if earlier is tensor:
            continue
        repeated.append(tensor.name)
        if shard_of.get(tensor.name) == tensor.file:
            by_name[tensor.name] = tensor
        elif shard_of.get(tensor.name) != earlier.file and _kind(tensor) != _kind(earlier):
            raise InputError(
                f"tensor {quoted(tensor.name)} is {_kind(earlier)} in {earlier.file} "
                f"but {_kind(tensor)} in {tensor.file}",
                next=_ONE_MODEL,
            )
    if not shard_of and len(repeated) == len(header.tensors):
        raise InputError(
            f"{header.tensors[0].file} repeats tensors of other files and adds none: it is another model",
            next=_ONE_MODEL,
        )
    return repeated


def _kind(tensor: TensorInfo) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _compare_with_index(by_name: Mapping[str, TensorInfo], index: ShardIndex) -> list[str]:
    """How the index differs from what the shards hold."""
    absent = [name for name in index.shard_of if name not in by_name]
    unlisted = [name for name in by_name if name not in index.shard_of]
    moved = [name for name, tensor in by_name.items() if index.shard_of.get(name, tensor.file) != tensor.file]
    findings = (
        (absent, "lists {} tensors that no shard holds"),
        (unlisted, "does not list {} tensors of the shards"),
        (moved, "gives another shard for {} tensors"),
    )
    problems = [
        f"{index.name} {finding.format(f'{len(names):,}')}: {some(names)}"
        for names, finding in findings
        if names
    ]
    total, declared = sum(tensor.bytes for tensor in by_name.values()), index.metadata.get("total_size")
    if isinstance(declared, (int, float)) and declared != total:
        problems.append(f"{index.name} declares {declared:,} bytes, but the shards hold {total:,}")
    return problems
