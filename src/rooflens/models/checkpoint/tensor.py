"""What a checkpoint holds, as its own headers say: tensors with type, shape and extent, and what is odd."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

CheckpointFormat = Literal["safetensors", "gguf"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor.

    dtype: storage type by its format's own name (``BF16``, ``F8_E4M3``, ``U32``; ``Q4_K`` in GGUF).
    shape: slowest dimension first, as PyTorch prints it (GGUF stores the reverse), in stored elements: for
        a 4-bit weight packed in ``U32`` the packed shape.
    bytes: extent in the file, without padding. offset: from the start of ``file``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str
    offset: int

    @property
    def elements(self) -> int:
        """Number of stored elements: the product of ``shape``."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint: its name, its size, and how much of that is header (all in bytes)."""

    name: str
    bytes: int
    header_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, all its files together; every tensor is listed once.

    metadata: what the files say beside the tensors. GGUF: its key-value pairs, long arrays as `GGUFArray`,
        numbers as stored (a float may be NaN). safetensors: ``__metadata__``, and that of the index.
    problems: findings that do not make the listing wrong, as plain sentences.
    """

    format: CheckpointFormat
    files: tuple[CheckpointFile, ...]
    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, TensorInfo]:
        """The tensors by name."""
        return MappingProxyType({tensor.name: tensor for tensor in self.tensors})

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all tensors, without headers, padding and gaps."""
        return sum(tensor.bytes for tensor in self.tensors)

    @cached_property
    def bytes_by_dtype(self) -> Mapping[str, int]:
        """Bytes of the tensors of each storage type, largest first."""
        totals: Counter[str] = Counter()
        for tensor in self.tensors:
            totals[tensor.dtype] += tensor.bytes
        return MappingProxyType(dict(totals.most_common()))

    @cached_property
    def elements_by_dtype(self) -> Mapping[str, int]:
        """Stored elements of each storage type, largest first."""
        totals: Counter[str] = Counter()
        for tensor in self.tensors:
            totals[tensor.dtype] += tensor.elements
        return MappingProxyType(dict(totals.most_common()))
