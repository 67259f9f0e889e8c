"""Memory that C reads: aligned, on huge pages where the system has them."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

from rooflens.units import MIB

_MADV_HUGEPAGE = 14
_HUGE_PAGE_BYTES = 2 * MIB
_LINE_BYTES = 64
#: Weights are cut from pieces of this size.
_PIECE_BYTES = 32 * _HUGE_PAGE_BYTES


class Pieces:
    """Memory for weights, one behind the other: a small matrix would have no huge page of its own.

    A piece lives as long as any tensor cut from it.
    """

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """``size`` bytes from a multiple of 64 on, not written yet."""
        whole = -(-size // _LINE_BYTES) * _LINE_BYTES
        if whole > _PIECE_BYTES // 2:
            return _fresh(whole)[:size]
        if whole > self._piece.nbytes:
            self._piece = _fresh(_PIECE_BYTES)
        taken, self._piece = self._piece[:size], self._piece[whole:]
        return taken


def _fresh(size: int) -> Tensor:
    memory = torch.empty(size + _HUGE_PAGE_BYTES, dtype=torch.uint8)
    use_huge_pages(memory)
    start = -memory.data_ptr() % _HUGE_PAGE_BYTES
    return memory[start : start + size]


class Scratch:
    """Memory that linears use while they multiply, one after the other: it grows to the largest need."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, size: int) -> int:
        """The address of ``size`` bytes at least."""
        if self._memory.nbytes < size + _LINE_BYTES:
            self._memory = torch.empty(size + _LINE_BYTES, dtype=torch.uint8)
        return aligned(self._memory)


def aligned(memory: Tensor) -> int:
    """The first address in ``memory`` that is a multiple of 64."""
    return -(-memory.data_ptr() // _LINE_BYTES) * _LINE_BYTES


def use_huge_pages(memory: Tensor) -> None:
    """Ask for huge pages, before ``memory`` is first written; a system without them loses nothing."""
    if memory.nbytes < 2 * _HUGE_PAGE_BYTES:
        return
    start = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (memory.data_ptr() + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_HUGEPAGE)
    except (OSError, AttributeError):
        return
