"""What the machine could do next to each sample: read bandwidth, matrix rates, and what else was running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch

from rooflens.measure.activity import BUSY_OTHERS_CORES, STOLEN_SHARE, Snapshot, snapshot
from rooflens.measure.probes.cpu_memory import CHUNK_BYTES, READERS, random_parts, read_passes
from rooflens.measure.probes.linear_kernels import linear_kernels
from rooflens.measure.probes.matmul import linear_flops, matmul_batch
from rooflens.measure.probes.pinned import PinnedThreads
from rooflens.measure.probes.run import LinearShape
from rooflens.measure.probes.target import open_target
from rooflens.measure.timer import Batch, TimingError

PROBE_PASSES = 2
"""Passes over the probe's memory; the faster one is the bandwidth, as it was the less disturbed."""
GEMM_ROWS = 512
"""Rows of the matrix multiplies: a prompt's chunk."""
GEMM_SHAPES = 3
"""The heaviest linears of a model that the matrix rate is taken over."""
GEMM_CALLS = 3
"""Calls of each multiply; the fastest counts."""
QUIET_WINDOW_S, QUIET_LIMIT_S = 0.5, 60.0
"""A machine is quiet once nothing else ran for the first; it is waited for no longer than the second."""
TICKS = 2
"""The kernel counts processor time in ticks, so that a difference is off by up to one at either end."""


class ReadProbe:
    """Read bandwidth of all threads over memory far beyond the caches; a context manager."""

    def __init__(self, *, threads: int) -> None:
        target = open_target("cpu", threads=threads)
        self._pool = PinnedThreads(target.cpus, count=threads)
        self._share = target.working_set_bytes // threads // CHUNK_BYTES * CHUNK_BYTES
        self._batch: Batch | None = None
        self.reader = ""

    def __enter__(self) -> ReadProbe:
        self._pool.__enter__()
        parts = self._pool.each(lambda _: random_parts(self._share))
        batches = {
            reader.name: self._pool.batch([read_passes(reader, own) for own in parts]) for reader in READERS
        }
        seconds = {name: min(batch(1) for _ in range(3)) for name, batch in batches.items()}
        self.reader = min(seconds, key=lambda name: seconds[name])
        self._batch = batches[self.reader]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batch = None
        self._pool.__exit__(kind, error, trace)

    def bytes_per_s(self) -> float:
        """Read bandwidth now."""
        assert self._batch is not None
        seconds = min(self._batch(1) for _ in range(PROBE_PASSES))
        return self._share * self._pool.count / seconds


class GemmProbe:
    """The rate of a model's heaviest linears at a prompt's chunk, by the fastest kernel of each dtype."""

    def __init__(self, linears: Sequence[LinearShape], *, threads: int) -> None:
        self._target = open_target("cpu", threads=threads)
        self._threads = threads
        self._shapes = sorted(linears, key=lambda shape: -shape.n * shape.k * shape.count)[:GEMM_SHAPES]
        self._batches: dict[str, list[Batch]] = {}
        self.methods: dict[str, str] = {}

    def prepare(self, dtype: str) -> None:
        """Choose the fastest kernel of a dtype. Raises TimingError where none computes right."""
        torch.set_num_threads(self._threads)
        best = float("inf")
        for kernel in linear_kernels(self._target):
            if kernel.dtype != dtype or kernel.problem() is not None:
                continue
            batches = [
                matmul_batch(self._target, kernel, GEMM_ROWS, shape.n, shape.k) for shape in self._shapes
            ]
            seconds = min(self._seconds(batches) for _ in range(PROBE_PASSES))
            if seconds < best:
                best, self.methods[dtype], self._batches[dtype] = seconds, kernel.method, batches
        if dtype not in self._batches:
            raise TimingError(f"no kernel multiplies {dtype} right here")

    def flops_per_s(self, dtype: str) -> float:
        """The rate over all the linears, each as often as the model has it."""
        flops = sum(shape.count * linear_flops(GEMM_ROWS, shape.n, shape.k) for shape in self._shapes)
        return flops / self._seconds(self._batches[dtype])

    def _seconds(self, batches: Sequence[Batch]) -> float:
        return sum(
            shape.count * min(batch(1) for _ in range(GEMM_CALLS))
            for shape, batch in zip(self._shapes, batches, strict=True)
        )


@dataclass(frozen=True)
class Others:
    """What others did to a sample: cores that they used, and the share the hypervisor took."""

    cores: float
    stolen_share: float

    @property
    def quiet(self) -> bool:
        """Whether the sample counts."""
        return self.cores <= BUSY_OTHERS_CORES and self.stolen_share <= STOLEN_SHARE


def others_between(start: Snapshot, end: Snapshot, own: Callable[[int], bool]) -> Others:
    """Processor time between two snapshots that no process of ours (``own``) used.

    The accounts are rounded to the kernel's ticks: as much as rounding may have made is let off.
    """
    wall = end.wall_s - start.wall_s
    ours = sum(
        seconds - start.processes.get(pid, ("", 0.0))[1]
        for pid, (_, seconds) in end.processes.items()
        if own(pid)
    )
    slack = TICKS / os.sysconf("SC_CLK_TCK")
    total = end.total_s - start.total_s
    others = (end.busy_s - start.busy_s) - ours - slack
    stolen = end.stolen_s - start.stolen_s - slack
    return Others(max(0.0, others / wall), max(0.0, stolen / total) if total > 0 else 0.0)


class Watch:
    """Watches the machine from its making to ``stop``; processes of the groups in ``groups`` are ours."""

    def __init__(self, groups: Sequence[int]) -> None:
        self._groups = set(groups)
        self._start = snapshot()

    def stop(self) -> Others | None:
        """What others did; None where the system does not say."""
        end = snapshot()
        if self._start is None or end is None:
            return None
        return others_between(self._start, end, self._own)

    def _own(self, pid: int) -> bool:
        if pid == os.getpid():
            return True
        try:
            return os.getpgid(pid) in self._groups
        except ProcessLookupError:
            return False


def wait_until_quiet(*, limit_s: float = QUIET_LIMIT_S) -> None:
    """Wait until nothing else runs for a moment, at most ``limit_s``: the sample itself is watched too."""
    end = time.monotonic() + limit_s
    while True:
        watch = Watch(())
        time.sleep(QUIET_WINDOW_S)
        others = watch.stop()
        if others is None or others.quiet or time.monotonic() >= end:
            return
