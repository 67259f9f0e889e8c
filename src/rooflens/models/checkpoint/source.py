"""Open a checkpoint, wherever its files are: a path here, or any folder that can list and read files."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rooflens.models.checkpoint.byte_source import ByteSource, FileSource
from rooflens.models.checkpoint.gguf import read_gguf_parts
from rooflens.models.checkpoint.gguf_header import MAGIC
from rooflens.models.checkpoint.numbered import is_numbered, refuse_missing
from rooflens.models.checkpoint.safetensors import (
    INDEX_SUFFIX,
    LIMIT_INDEX_BYTES,
    parse_index,
    read_safetensors,
)
from rooflens.models.checkpoint.selection import PICKLE_INDEX_SUFFIX, pickles_refused, select_weights
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.models.file_input import file_error, quoted
from rooflens.models.json_input import read_json_object

_DECIDING_BYTES = 9  # a safetensors file has its length in eight, then "{"


class Folder(Protocol):
    """Files under names relative to one place."""

    #: What to call the place in errors, and how many files to read at a time.
    where: str
    workers: int

    def names(self) -> Collection[str]:
        """The names of all files, with ``/`` between directories."""
        ...

    def source(self, name: str) -> ByteSource:
        """The file of this name, read in place."""
        ...

    def read_json(self, name: str, *, limit_bytes: int) -> dict[str, Any]:
        """The JSON object in the file of this name."""
        ...


class LocalFolder:
    """A directory and the directories in it."""

    workers = 1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.where = quoted(str(path))

    def names(self) -> Collection[str]:
        """See `Folder.names`: the directory's files, and the weights one level below."""
        found: list[str] = []
        try:
            for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name):
                if not entry.is_dir():
                    found.append(entry.name)
                elif not entry.name.startswith("."):
                    found += self._weights_below(entry.name)
        except OSError as error:
            raise file_error(self.path, error) from None
        return found

    def _weights_below(self, directory: str) -> list[str]:
        try:
            inside = sorted(os.listdir(self.path / directory))
        except OSError:  # not ours to read; it can be named directly if it matters
            return []
        return [f"{directory}/{name}" for name in inside if name.endswith((".gguf", ".safetensors"))]

    def source(self, name: str) -> ByteSource:
        """See `Folder.source`."""
        return FileSource(self.path / name, name)

    def read_json(self, name: str, *, limit_bytes: int) -> dict[str, Any]:
        """See `Folder.read_json`."""
        return read_json_object(self.path / name, what=name, limit_bytes=limit_bytes)


def open_folder(folder: Folder, *, file: str | None = None) -> Checkpoint:
    """Read the headers of the model in a folder; ``file`` says which, as in `select_weights`.

    Raises NotFoundError for missing weights or shards, and what the readers of the formats raise.
    """
    names = folder.names()
    selection = select_weights(names, where=folder.where, file=file)
    if selection.format == "gguf":
        found = read_gguf_parts([folder.source(name) for name in selection.files], workers=folder.workers)
    elif selection.index is None:
        found = read_safetensors([folder.source(name) for name in selection.files], workers=folder.workers)
    else:
        table = folder.read_json(selection.index, limit_bytes=LIMIT_INDEX_BYTES)
        index = parse_index(table, name=selection.index)
        refuse_missing(index.shards, present=names)
        sources = [folder.source(shard) for shard in index.shards]
        found = read_safetensors(sources, index=index, workers=folder.workers)
    return replace(found, problems=found.problems + selection.notes)


def open_checkpoint(path: str | os.PathLike[str], *, file: str | None = None) -> Checkpoint:
    """Read the headers of the checkpoint at ``path``: a directory, a file, one of several shards, an index.

    What a file is, is told by its first bytes and not by its name. Weights are never read and pickles never
    opened. ``file``: which model of a directory that holds several (a name, or a quantisation's label).
    Raises NotFoundError, InputError and UnsupportedError.
    """
    path = Path(path)
    if path.is_dir():
        return open_folder(LocalFolder(path), file=file)
    if path.name.endswith(INDEX_SUFFIX):
        return open_folder(LocalFolder(path.parent), file=path.name)
    source = FileSource(path)
    if is_numbered(path.name):
        return open_folder(LocalFolder(path.parent), file=path.name)
    if path.name.endswith(PICKLE_INDEX_SUFFIX):
        raise pickles_refused(path.name)
    head = source.read(0, _DECIDING_BYTES)
    if head.startswith(MAGIC) or (path.suffix == ".gguf" and not head.endswith(b"{")):
        return read_gguf_parts([source])
    return read_safetensors([source])
