"""Where header bytes come from: a file, memory, or anything else that can be read at an offset."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from rooflens.errors import InputError
from rooflens.models.file_input import file_error, quoted

Header = TypeVar("Header")


class ByteSource(Protocol):
    """Something of known size that can be read at an offset."""

    @property
    def name(self) -> str:
        """What to call it in errors, and the ``file`` of its tensors."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """The ``length`` bytes from ``offset`` on, fewer only where the end cuts them off."""
        ...


class MemorySource:
    """Bytes already at hand."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        """See `ByteSource.read`."""
        return self._data[offset : offset + length]


class FileSource:
    """A regular file, opened for each read so that nothing needs closing."""

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """``name`` defaults to the file's own. Raises NotFoundError or InputError if it cannot be read."""
        self.path = Path(path)
        self.name = name if name is not None else self.path.name
        try:
            status = self.path.stat()
        except (OSError, ValueError) as error:
            raise file_error(self.path, error) from None
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{quoted(str(path))} is a directory, not a checkpoint file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{quoted(str(path))} is not a regular file", next="save it to a file first")
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytes:
        """See `ByteSource.read`. Raises InputError if the file has gone or may not be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(max(0, min(length, self.size - offset)))
        except OSError as error:
            raise file_error(self.path, error) from None


def map_sources(
    read: Callable[[ByteSource], Header], sources: Sequence[ByteSource], *, workers: int = 1
) -> list[Header]:
    """``read`` of each source, in order; ``workers`` at a time, for sources that wait for a network."""
    if workers <= 1 or len(sources) <= 1:
        return [read(source) for source in sources]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(read, source) for source in sources]
        try:
            return [future.result() for future in running]
        finally:  # one bad file is enough: do not fetch the rest
            for future in running:
                future.cancel()
