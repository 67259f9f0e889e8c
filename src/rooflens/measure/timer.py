"""The timer: batches long enough to trust, device-aware synchronisation, raw samples kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rooflens.errors import RooflensError
from rooflens.measure.statistics import Summary, converged, summarize
from rooflens.units import KILO

MIN_BATCH_S = 0.05
"""Shortest batch that is timed: clocks, interrupts and the last few calls then weigh under 1 %."""
MIN_BATCHES = 10
"""Fewest batches behind a figure, unless time runs out."""
FEWEST_BATCHES = 3
"""Batches taken even when time has run out; fewer say nothing about the spread."""
_BATCH_MARGIN = 1.25
_LARGEST_GROWTH = 16
_EVENT_SLACK = 1.05

Work = Callable[[int], object]
"""One call of the work under test; the argument counts calls, so that it may rotate its buffers."""
Batch = Callable[[int], float]
"""Runs the work that many times, waits until the device is done, returns the seconds it took."""


class TimingError(RooflensError):
    """A device's clock gave a time that cannot be: no figure is made from it."""

    exit_code = 1
    http_status = 500


class DeviceClock(Protocol):
    """How work on one kind of device is timed."""

    name: str

    def batch(self, work: Work) -> Batch:
        """A function that times ``calls`` calls of ``work``, from a quiet device to a quiet device."""
        ...


class WallClock:
    """The host's monotonic clock around work that ``synchronize`` waits for.

    For CPUs (nothing to wait for) and MPS, whose events can hang or return negative times.
    """

    def __init__(self, synchronize: Callable[[], object] | None = None) -> None:
        self._wait = synchronize or (lambda: None)
        self.name = "wall clock, synchronised" if synchronize else "wall clock"

    def batch(self, work: Work) -> Batch:
        wait = self._wait

        def timed(calls: int) -> float:
            wait()
            start = time.perf_counter()
            for call in range(calls):
                work(call)
            wait()
            return time.perf_counter() - start

        return timed


class EventClock:
    """Two events in the device's own stream (CUDA, ROCm, XPU): host time before the first is not counted.

    ``module`` is ``torch.cuda`` or ``torch.xpu``. Every batch is checked against the wall clock: events
    that ran backwards or longer than the host waited raise TimingError.
    """

    name = "device events"

    def __init__(self, module: Any, device: Any) -> None:
        self._module, self._device = module, device

    def batch(self, work: Work) -> Batch:
        module, device = self._module, self._device

        def timed(calls: int) -> float:
            first, last = module.Event(enable_timing=True), module.Event(enable_timing=True)
            module.synchronize(device)
            start = time.perf_counter()
            first.record()
            for call in range(calls):
                work(call)
            last.record()
            module.synchronize(device)
            wall = time.perf_counter() - start
            elapsed = float(first.elapsed_time(last)) / KILO  # events count milliseconds
            if not 0 < elapsed <= wall * _EVENT_SLACK:
                raise TimingError(
                    "the device's events disagree with the wall clock",
                    value=f"{elapsed:.6f} s by events, {wall:.6f} s by the host",
                    next="measure with the wall clock, or look for a driver problem",
                )
            return elapsed

        return timed


@dataclass(frozen=True, slots=True)
class Policy:
    """How long a figure may take: see the constants for what each default means."""

    batch_s: float = MIN_BATCH_S
    min_batches: int = MIN_BATCHES
    warm_up_s: float = 0.1
    max_s: float = 1.0
    fewest: int = FEWEST_BATCHES


@dataclass(frozen=True, slots=True)
class Samples:
    """Raw samples of one piece of work, in seconds per call, one per batch of ``calls`` calls."""

    seconds: tuple[float, ...]
    calls: int
    converged: bool

    @property
    def summary(self) -> Summary:
        """Median and p10 to p90, in seconds per call."""
        return summarize(self.seconds)


def sample(batch: Batch, policy: Policy, *, stop_at: float = math.inf) -> Samples:
    """Time work until its medians agree or time runs out; the first calls warm up and are not counted.

    ``stop_at`` (of ``time.perf_counter``) bounds the whole, warm-up included, but for the fewest batches.
    Work is never split: a call longer than a batch is a batch.
    """
    stop_at = min(stop_at, time.perf_counter() + policy.warm_up_s + policy.max_s)
    calls = _warm_up(batch, policy, stop_at)
    seconds: list[float] = []
    while True:
        elapsed = batch(calls)
        if elapsed < policy.batch_s:
            # The device became faster than the warm-up showed: a short batch does not count.
            calls = _more_calls(calls, elapsed, policy)
            continue
        seconds.append(elapsed / calls)
        settled = len(seconds) >= policy.min_batches and converged(seconds)
        late = len(seconds) >= policy.fewest and time.perf_counter() >= stop_at
        if settled or late:
            return Samples(tuple(seconds), calls, settled)


def _warm_up(batch: Batch, policy: Policy, stop_at: float) -> int:
    """Run until a batch is full and the warm-up is over; returns the calls that fill a batch."""
    start = time.perf_counter()
    calls = 1
    while True:
        elapsed = batch(calls)
        now = time.perf_counter()
        if elapsed < policy.batch_s:
            calls = _more_calls(calls, elapsed, policy)
        elif now - start >= policy.warm_up_s or now >= stop_at:
            return max(1, math.ceil(calls * policy.batch_s * _BATCH_MARGIN / elapsed))


def _more_calls(calls: int, elapsed: float, policy: Policy) -> int:
    """More calls, towards a full batch, by a factor that one odd reading cannot make absurd."""
    wanted = policy.batch_s * _BATCH_MARGIN
    factor = min(_LARGEST_GROWTH, wanted / elapsed) if elapsed > 0 else _LARGEST_GROWTH
    return max(calls + 1, math.ceil(calls * factor))
