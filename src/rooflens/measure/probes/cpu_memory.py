"""A CPU's memory: read bandwidth (the roof of decoding), one thread's share of it, copies, cache levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rooflens.measure.probes.operands import fill, normal
from rooflens.measure.probes.pinned import PinnedThreads
from rooflens.measure.probes.run import Run
from rooflens.measure.probes.target import Target
from rooflens.measure.records import Measurement
from rooflens.measure.timer import TimingError, Work
from rooflens.units import KIB, MIB

CHUNK_BYTES = 8 * MIB
"""One operator call: long against its overhead, short against the memory read."""
_SWEEP_CALL_BYTES = 4 * MIB
_SMALLEST_SET_BYTES = 8 * KIB
_LARGEST_SET_BYTES = 256 * MIB
_WORD_BYTES = 8
_CLOSE = 1e-3


@dataclass(frozen=True)
class Reader:
    """A way to read memory: ``read`` consumes a float32 tensor and returns what it made of it."""

    name: str
    read: Callable[[Tensor], Tensor]
    expected: Callable[[Tensor], float]


def _int64(part: Tensor) -> Tensor:
    return part.view(torch.int64)


READERS = (
    # Integer sums need no order of addition, so they are the simplest loop there is.
    Reader(
        "torch.sum int64",
        lambda part: torch.sum(_int64(part)),
        lambda part: float(np.sum(_int64(part).numpy(), dtype=np.int64)),
    ),
    Reader("torch.sum fp32", torch.sum, lambda part: float(np.sum(part.numpy(), dtype=np.float64))),
    Reader(
        "torch.dot fp32",
        lambda part: torch.dot(part, part),
        lambda part: float(np.sum(np.square(part.numpy(), dtype=np.float64))),
    ),
)


def probe_cpu_memory(run: Run) -> Iterator[Measurement]:
    """Read and copy bandwidth of all threads, read bandwidth of one.

    Every thread reads its own share, which it wrote first; shares together are the working set. A pass of
    the fastest reader over a share is one call.
    """
    if not run.wants("memory"):
        return
    threads = run.target.threads or 1
    share = run.target.working_set_bytes // threads // CHUNK_BYTES * CHUNK_BYTES or CHUNK_BYTES
    with PinnedThreads(run.target.cpus, count=threads) as pool:
        parts = pool.each(lambda _: random_parts(share))
        parameters: dict[str, int | float | str] = {
            "threads": threads,
            "bytes": share * threads,
            "pinned": "yes" if run.target.cpus else "no",
        }
        readers = {reader.name: reader for reader in READERS}
        for reader in READERS:
            _check(reader, parts[0][0])
        options = {
            name: pool.batch([read_passes(reader, own) for own in parts]) for name, reader in readers.items()
        }
        name, seconds = run.fastest(options)
        yield run.figure(
            "memory.read",
            options[name],
            unit="bytes_per_s",
            amount=share * threads,
            method=f"{name}, {_threads(threads)}",
            parameters=parameters,
            tried={other: share * threads / value for other, value in seconds.items()},
        )
        if threads > 1:
            yield run.figure(
                "memory.read_one_thread",
                pool.batch([read_passes(readers[name], parts[0])]),
                unit="bytes_per_s",
                amount=share,
                method=f"{name}, {_threads(1)}",
                parameters={**parameters, "threads": 1, "bytes": share},
            )
        half = len(parts[0]) // 2
        # A copy counts what it reads and what it writes. Without non-temporal stores the cache reads each
        # line before it is written: the memory then moves half as much again.
        yield run.figure(
            "memory.copy",
            pool.batch([_copies(own[:half], own[half : 2 * half]) for own in parts]),
            unit="bytes_per_s",
            amount=2 * half * CHUNK_BYTES * threads,
            method=f"Tensor.copy_, {_threads(threads)}",
            parameters=parameters,
        )


def probe_cpu_caches(run: Run) -> Iterator[Measurement]:
    """Read bandwidth by working set, all threads at once, each on its own set.

    The set is read many times in one operator call, through a view that repeats it (stride 0), so that
    small sets are not lost in the call's overhead.
    """
    threads = run.target.threads or 1
    with PinnedThreads(run.target.cpus, count=threads) as pool:
        for size in sweep_sizes(run.target, whole=run.effort.whole_cache_sweep):
            if not run.wants(f"cache.{size}"):
                continue
            repeats = max(1, _SWEEP_CALL_BYTES // size)
            works = pool.each(lambda _, size=size, repeats=repeats: _rereads(size, repeats))  # type: ignore[misc]
            yield run.figure(
                f"cache.{size}",
                pool.batch(works),
                unit="bytes_per_s",
                amount=size * repeats * threads,
                method=f"torch.sum int64 of a repeated view, {_threads(threads)}",
                parameters={"bytes_per_thread": size, "threads": threads, "level": run.target.level_of(size)},
            )


def sweep_sizes(target: Target, *, whole: bool) -> list[int]:
    """Working sets per thread: powers of two from 8 KiB to far beyond the caches, or one per level.

    Without a known cache the whole range is swept.
    """
    largest = min(_LARGEST_SET_BYTES, 4 * max(target.capacities.values(), default=_LARGEST_SET_BYTES))
    sizes = []
    size = _SMALLEST_SET_BYTES
    while size <= largest:
        sizes.append(size)
        size *= 2
    if whole or not target.capacities:
        return sizes
    # The largest set that still lies well inside: prefetchers are at work, the level above is not.
    inside = {target.level_of(size): size for size in sizes}
    return sorted(size for level, size in inside.items() if level)


def random_parts(share: int) -> list[Tensor]:
    """Chunks of one thread's share, written by the thread that will read them.

    NumPy asks the kernel for huge pages for large arrays; torch's allocator does not.
    """
    memory = np.empty(share, dtype=np.uint8)
    whole = torch.from_numpy(memory).view(torch.float32)
    chunk = CHUNK_BYTES // whole.element_size()
    fill(whole, normal(chunk, dtype=torch.float32, device=whole.device))
    return [whole[start : start + chunk] for start in range(0, whole.numel(), chunk)]


def read_passes(reader: Reader, parts: Sequence[Tensor]) -> Work:
    """One call reads all ``parts`` once."""

    def work(_: int) -> None:
        for part in parts:
            reader.read(part)

    return work


def _copies(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Work:
    def work(_: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)

    return work


def _rereads(size: int, repeats: int) -> Work:
    words = torch.from_numpy(np.empty(size, dtype=np.uint8)).view(torch.float32)
    fill(words, normal(words.numel(), dtype=torch.float32, device=words.device))
    view = _int64(words).expand(repeats, size // _WORD_BYTES)
    if torch.sum(view) != torch.sum(_int64(words)) * repeats:
        raise TimingError("a repeated view was not summed as often as asked: no cache figure is made from it")
    return lambda _: torch.sum(view)


def _check(reader: Reader, part: Tensor) -> None:
    """The sum must be the sum: a reader that leaves out data would be fast."""
    got, expected = float(reader.read(part)), reader.expected(part)
    if abs(got - expected) > _CLOSE * max(abs(expected), part.numel() ** 0.5):
        raise TimingError(f"{reader.name} gave a wrong result", value=got, allowed=str(expected))


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
