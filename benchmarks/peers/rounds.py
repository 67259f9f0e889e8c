"""Interleaved rounds: every engine once per case and round, a bandwidth probe around each sample.

All workers but the measured one are stopped by the kernel, so that none spins or wakes. A sample during
which something else ran is taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from benchmarks.peers.protocol import Case
from benchmarks.peers.surroundings import Others
from benchmarks.peers.worker_process import WorkerError

TRIES = 4
"""A disturbed sample is taken again this often; then it is kept and marked."""


@dataclass(frozen=True)
class Sample:
    """One engine, one case, one round. ``read_bytes_per_s`` is the mean of the probes before and after."""

    engine: str
    weights: str
    case: str
    round: int
    seconds: float
    read_bytes_per_s: float
    gemm_flops_per_s: float | None
    others_cores: float | None
    stolen_share: float | None
    disturbed: bool

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Measured(Protocol):
    """A worker, as far as rounds need it."""

    def ready(self, case: Case) -> None: ...
    def run(self, case: Case) -> float: ...
    def sleep(self) -> None: ...
    def wake(self) -> None: ...


@dataclass(frozen=True)
class Instruments:
    """What is read around each sample.

    ``watch(engine)`` starts a watch and returns how to stop it; ``settle`` waits until the machine is quiet.
    """

    bandwidth: Callable[[], float]
    gemm: Callable[[], float] | None
    watch: Callable[[str], Callable[[], Others | None]]
    settle: Callable[[], None]


@dataclass(frozen=True)
class Failure:
    """An engine that could not run a case: the reason, in its words."""

    engine: str
    case: str
    why: str


def run_case(
    workers: Mapping[str, Measured],
    case: Case,
    instruments: Instruments,
    *,
    weights: str,
    number: int,
    given_up: set[tuple[str, str]],
    keep: Callable[[Sample], None],
    fail: Callable[[Failure], None],
) -> None:
    """One case of one round: every engine in turn; the first one changes from round to round.

    ``given_up`` holds (engine, case) pairs that failed before; a worker that died fails in each.
    """
    names = list(workers)
    turn = number % len(names) if names else 0
    for name in names[turn:] + names[:turn]:
        if (name, case.name) in given_up:
            continue
        try:
            keep(_sample(workers[name], case, instruments, name, weights, number))
        except WorkerError as error:
            given_up.add((name, case.name))
            fail(Failure(name, case.name, str(error)))


def _sample(
    worker: Measured, case: Case, instruments: Instruments, name: str, weights: str, number: int
) -> Sample:
    for attempt in range(1, TRIES + 1):
        sample = _attempt(worker, case, instruments, name, weights, number)
        if not sample.disturbed or attempt == TRIES:
            return sample
    raise AssertionError("at least one attempt is made")


def _attempt(
    worker: Measured, case: Case, instruments: Instruments, name: str, weights: str, number: int
) -> Sample:
    instruments.settle()
    worker.wake()
    try:
        worker.ready(case)
        worker.sleep()
        before = instruments.bandwidth()
        gemm = instruments.gemm() if instruments.gemm is not None and case.kind == "prefill" else None
        stop = instruments.watch(name)
        worker.wake()
        seconds = worker.run(case)
        others = stop()
    finally:
        worker.sleep()
    after = instruments.bandwidth()
    return Sample(
        engine=name,
        weights=weights,
        case=case.name,
        round=number,
        seconds=seconds,
        read_bytes_per_s=(before + after) / 2,
        gemm_flops_per_s=gemm,
        others_cores=None if others is None else others.cores,
        stolen_share=None if others is None else others.stolen_share,
        disturbed=others is not None and not others.quiet,
    )
