"""An accelerator's memory: read and copy bandwidth, its caches, and the link to the host."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rooflens.measure.probes.operands import normal
from rooflens.measure.probes.run import Run
from rooflens.measure.records import Measurement
from rooflens.measure.timer import TimingError
from rooflens.units import MIB

if TYPE_CHECKING:
    from rooflens.measure.probes.triton_read import StreamingSum

BUFFERS = 4
"""The working set is cut into buffers that take turns."""
LINK_BYTES = 256 * MIB
_SMALLEST_SET_BYTES = MIB
_CALL_BYTES = 256 * MIB
BEYOND_CACHE = 4
"""The sweep ends at this many times the last-level cache."""
_TRITON_KINDS = ("cuda", "rocm", "xpu")
_CLOSE = 1e-3


def probe_device_memory(run: Run) -> Iterator[Measurement]:
    """Read and copy bandwidth of the device's own memory.

    Reads are a streaming sum where Triton works; elsewhere the skinny matrix multiplies stand for them,
    since eager reductions may be slower than the memory.
    """
    if not run.wants("memory"):
        return
    target = run.target
    elements = target.working_set_bytes // BUFFERS // torch.float32.itemsize
    buffers = [
        normal(elements, dtype=torch.float32, device=target.device).roll(index) for index in range(BUFFERS)
    ]
    reader = _reader(run, buffers[0])
    if reader is not None:
        yield run.figure(
            "memory.read",
            target.clock.batch(lambda call: reader(buffers[call % BUFFERS])),
            unit="bytes_per_s",
            amount=_bytes(buffers[0]),
            method="streaming sum in Triton",
            parameters={"bytes": BUFFERS * _bytes(buffers[0])},
        )
    pairs = BUFFERS // 2

    def copy(call: int) -> None:
        turn = call % pairs
        buffers[pairs + turn].copy_(buffers[turn])

    yield run.figure(
        "memory.copy",
        target.clock.batch(copy),
        unit="bytes_per_s",
        amount=2 * _bytes(buffers[0]),
        method="Tensor.copy_",
        parameters={"bytes": BUFFERS * _bytes(buffers[0])},
    )


def probe_device_caches(run: Run) -> Iterator[Measurement]:
    """Read bandwidth by working set from 1 MiB to far beyond the last level, looped inside one kernel."""
    if not run.wants("cache"):
        return
    target = run.target
    elements = BEYOND_CACHE * target.last_level_cache_bytes // torch.float32.itemsize
    data = normal(elements, dtype=torch.float32, device=target.device)
    reader = _reader(run, data)
    if reader is None:
        return
    size = _SMALLEST_SET_BYTES
    while size <= _bytes(data):
        if not run.wants(f"cache.{size}"):
            break
        part, passes = data[: size // data.element_size()], max(1, _CALL_BYTES // size)
        yield run.figure(
            f"cache.{size}",
            target.clock.batch(lambda _, part=part, passes=passes: reader(part, passes)),  # type: ignore[misc]
            unit="bytes_per_s",
            amount=size * passes,
            method="streaming sum in Triton, looped in the kernel",
            parameters={"bytes": size, "level": target.level_of(size)},
        )
        size *= 2


def probe_host_link(run: Run) -> Iterator[Measurement]:
    """Pinned copies of 256 MiB each way, one direction at a time."""
    if not run.wants("link"):
        return
    device = run.target.device
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device)
    ways = {"to_device": (there, host), "to_host": (host, there)}
    for name, (target, source) in ways.items():
        yield run.figure(
            f"link.{name}",
            run.target.clock.batch(
                lambda _, target=target, source=source: target.copy_(source, non_blocking=True)  # type: ignore[misc]
            ),
            unit="bytes_per_s",
            amount=LINK_BYTES,
            method="Tensor.copy_ from and to pinned memory",
            parameters={"bytes": LINK_BYTES},
        )


def _reader(run: Run, data: Tensor) -> StreamingSum | None:
    """The Triton kernel, compiled and checked; None, with the reason recorded, where it does not work."""
    target = run.target
    if target.kind not in _TRITON_KINDS or find_spec("triton") is None:
        run.skip("memory.read", "Triton is not there: the skinny matrix multiplies give the read roof")
        return None
    from rooflens.measure.probes.triton_read import BLOCK_ELEMENTS, StreamingSum

    reader = StreamingSum(target.device, target.cores)
    whole = data[: data.numel() // BLOCK_ELEMENTS * BLOCK_ELEMENTS]
    try:
        # On the host, since some devices have no fp64.
        got, expected = float(reader(whole).cpu().double().sum()), float(whole.cpu().double().sum())
    except Exception as error:  # Triton's compiler raises errors of many modules
        run.skip("memory.read", f"the Triton kernel failed: {type(error).__name__}: {error}"[:200])
        return None
    if abs(got - expected) > _CLOSE * max(abs(expected), whole.numel() ** 0.5):
        raise TimingError("the streaming sum gave a wrong result", value=got, allowed=str(expected))
    return reader


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
