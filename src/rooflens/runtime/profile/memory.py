"""Where memory goes, step by step."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rooflens.runtime.engine.records import StepRecord

#: What the difference of the allocator's two figures is.
ALLOCATOR_IDLE = (
    "reserved minus allocated is what the caching allocator keeps for later instead of giving it back:"
    " idle blocks, and gaps too small to use; growth over a long run is fragmentation"
)
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class MemoryRecord:
    """Bytes at one moment; None where the system does not say.

    The KV cache is one allocation of ``kv_total_bytes``: used by running sequences, cached for later
    prompts, or free. ``allocated_bytes`` are tensors that exist, ``reserved_bytes`` what torch's caching
    allocator holds for them (a CPU has no such allocator); ``rss_bytes`` is the process's resident set.
    """

    step: int
    weights_bytes: int
    kv_total_bytes: int
    kv_used_bytes: int
    kv_cached_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    rss_bytes: int | None

    @property
    def kv_free_bytes(self) -> int:
        """Blocks whose content means nothing."""
        return self.kv_total_bytes - self.kv_used_bytes - self.kv_cached_bytes

    @property
    def allocator_idle_bytes(self) -> int | None:
        """Reserved minus allocated: see ``ALLOCATOR_IDLE``."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes

    @property
    def other_bytes(self) -> int | None:
        """Allocated beyond weights and cache: activations and work space. None without an allocator."""
        if self.allocated_bytes is None:
            return None
        return self.allocated_bytes - self.weights_bytes - self.kv_total_bytes

    def to_dict(self) -> dict[str, Any]:
        """As JSON; flat, one column each."""
        return {
            **asdict(self),
            "kv_free_bytes": self.kv_free_bytes,
            "allocator_idle_bytes": self.allocator_idle_bytes,
            "other_bytes": self.other_bytes,
        }


class MemoryProfiler:
    """Reads the memory of one backend, at the end of each step it is asked."""

    def __init__(self, *, weights_bytes: int, bytes_per_block: int, device: torch.device | str) -> None:
        """``weights_bytes``: as held; ``bytes_per_block``: of the KV cache, all layers."""
        self.weights_bytes = weights_bytes
        self.bytes_per_block = bytes_per_block
        self.device = torch.device(device)

    def read(self, step: StepRecord) -> MemoryRecord:
        """Memory now, with the blocks as ``step`` left them."""
        blocks = step.kv_blocks_used + step.kv_blocks_cached + step.kv_blocks_free
        allocated, reserved = allocator_bytes(self.device)
        return MemoryRecord(
            step=step.index,
            weights_bytes=self.weights_bytes,
            kv_total_bytes=blocks * self.bytes_per_block,
            kv_used_bytes=step.kv_blocks_used * self.bytes_per_block,
            kv_cached_bytes=step.kv_blocks_cached * self.bytes_per_block,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            rss_bytes=resident_bytes(),
        )


def allocator_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """(allocated, reserved) by torch's caching allocator; (None, None) for a CPU, which has none."""
    if device.type in ("cuda", "xpu"):
        module: Any = getattr(torch, device.type)
        return int(module.memory_allocated(device)), int(module.memory_reserved(device))
    if device.type == "mps":
        return int(torch.mps.current_allocated_memory()), int(torch.mps.driver_allocated_memory())
    return None, None


def resident_bytes(statm: Path = _STATM) -> int | None:
    """Bytes of the process that are in memory, shared libraries included; None where /proc is not there."""
    try:
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
