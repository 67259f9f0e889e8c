"""Where a model's tensors come from: a checkpoint's files, read piece by piece, or random numbers.

Tensors are asked for under the names of the spec (Hugging Face's). Each is written straight into memory
that the caller provides, so that loading needs little more than the weights themselves.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from rooflens.errors import InputError, NotFoundError, UnsupportedError
from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.file_input import quoted
from rooflens.runtime.report import LoadReport
from rooflens.units import MIB

#: Bytes read at a time where values are converted on the way.
_PIECE_BYTES = 8 * MIB
_PLAIN = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class TensorSource(Protocol):
    """Tensors by the spec's names."""

    #: Whether norm weights come with the family's offset already added.
    norms_include_offset: bool

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        ...

    def load_into(self, name: str, target: Tensor) -> None:
        """Fill ``target``, whose shape is the one expected. Raises a RooflensError naming the tensor."""
        ...

    def leftovers(self) -> list[str]:
        """Names of tensors that nobody asked for, as the file has them."""
        ...


class CheckpointSource:
    """A safetensors checkpoint, one file or many; subclasses read other formats."""

    norms_include_offset = False

    def __init__(self, checkpoint: Checkpoint, directory: Path, report: LoadReport) -> None:
        self.checkpoint = checkpoint
        self.report = report
        self._directory = directory
        self._files: dict[str, BinaryIO] = {}
        self._asked: set[str] = set()

    def stored_name(self, name: str) -> str:
        """The file's own name of the tensor that the spec calls ``name``."""
        return name

    def has(self, name: str) -> bool:
        """See ``TensorSource.has``."""
        return self.stored_name(name) in self.checkpoint.by_name

    def leftovers(self) -> list[str]:
        """See ``TensorSource.leftovers``."""
        return [name for name in self.checkpoint.by_name if name not in self._asked]

    def load_into(self, name: str, target: Tensor) -> None:
        """See ``TensorSource.load_into``."""
        self.fill(self.find(name, tuple(target.shape)), target)

    def find(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor, counted as asked for. Raises a RooflensError for one missing or of another shape."""
        stored = self.stored_name(name)
        info = self.checkpoint.by_name.get(stored)
        if info is None:
            raise NotFoundError(
                f"the checkpoint has no tensor {quoted(stored)}", next="check that all its files are there"
            )
        if info.shape != shape:
            raise InputError(
                f"tensor {quoted(stored)} has another shape than the model's description",
                value=list(info.shape),
                allowed=str(list(shape)),
            )
        self._asked.add(stored)
        self.report.stored[info.dtype] += 1
        return info

    def fill(self, info: TensorInfo, target: Tensor) -> None:
        """Read the values of ``info`` into ``target``, converted to its type."""
        dtype = _PLAIN.get(info.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"tensor {quoted(info.name)} is stored in a type the runtime does not read",
                value=info.dtype,
                allowed=", ".join(_PLAIN),
            )
        if dtype == target.dtype and target.is_contiguous() and target.device.type == "cpu":
            self.read(info, 0, target.view(torch.uint8).numpy().reshape(-1).data)
            return
        for rows, raw in self.pieces(info):
            values = torch.frombuffer(raw, dtype=dtype)
            target[rows] = values.view(-1, *info.shape[1:]).to(target.dtype)

    def pieces(self, info: TensorInfo) -> Iterator[tuple[slice, bytearray]]:
        """The raw bytes of ``info``, some whole rows at a time."""
        row_bytes = info.bytes // info.shape[0]
        rows = max(1, _PIECE_BYTES // row_bytes)
        for start in range(0, info.shape[0], rows):
            stop = min(start + rows, info.shape[0])
            raw = bytearray((stop - start) * row_bytes)
            self.read(info, start * row_bytes, memoryview(raw))
            yield slice(start, stop), raw

    def read(self, info: TensorInfo, offset: int, into: memoryview) -> None:
        """Fill ``into`` from ``offset`` bytes within the tensor; raises InputError where the file ends."""
        file = self._files.get(info.file)
        if file is None:
            file = self._files[info.file] = (self._directory / info.file).open("rb", buffering=0)
        file.seek(info.offset + offset)
        done = 0
        while done < len(into):
            count = file.readinto(into[done:])  # type: ignore[attr-defined]
            if not count:
                raise InputError(
                    f"{quoted(info.file)} ends inside tensor {quoted(info.name)}", next="download it again"
                )
            done += count

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class RandomSource:
    """Random weights at any shape, reproducible from ``seed``: for performance work, not for text.

    Matrices are scaled by the root of their input size, so that activations keep their size through any
    number of layers; norm weights are one, biases zero. Values come from one pool of normal numbers of
    prime length, read from a place that the tensor's name decides: fast, and no two rows are equal.
    """

    norms_include_offset = True
    _POOL = 4_194_301

    def __init__(self, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(self._POOL, generator=generator)
        self._scaled: dict[tuple[float, torch.dtype], Tensor] = {}

    def has(self, name: str) -> bool:
        """See ``TensorSource.has``."""
        return True

    def leftovers(self) -> list[str]:
        """See ``TensorSource.leftovers``."""
        return []

    def load_into(self, name: str, target: Tensor) -> None:
        """See ``TensorSource.load_into``."""
        if target.dim() == 1:
            target.fill_(0.0 if name.endswith(".bias") else 1.0)
            return
        key = (float(np.sqrt(1.0 / target.shape[1])), target.dtype)
        pool = self._scaled.get(key)
        if pool is None:
            pool = self._scaled[key] = (self._pool * key[0]).to(target.dtype)
        flat, offset, done = target.view(-1), zlib.crc32(name.encode()) % self._POOL, 0
        while done < flat.shape[0]:
            count = min(flat.shape[0] - done, self._POOL - offset)
            flat[done : done + count] = pool[offset : offset + count]
            done, offset = done + count, 0
