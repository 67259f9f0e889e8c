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
    """One engine, one case, one round. ``read_bytes_per_s`` is the mean of the probes before and after.

    Of the matrix rates, probed before prompts alone, the first is that of the weights' multiplies.
    """

    engine: str
    weights: str
    case: str
    round: int
    seconds: float
    read_bytes_per_s: float
    gemm_flops_per_s: float | None
    attention_flops_per_s: float | None
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

    ``gemm``: matrix rates of the weights' multiplies and of attention's. ``watch(engine)`` starts a watch and
    returns how to stop it; ``settle`` waits until the machine is quiet.
    """

    bandwidth: Callable[[], float]
    gemm: Callable[[], tuple[float, float]] | None
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
    order = [name for name in names[turn:] + names[:turn] if (name, case.name) not in given_up]

    def give_up(name: str, error: WorkerError) -> None:
        given_up.add((name, case.name))
        fail(Failure(name, case.name, str(error)))

    # All are made ready first, so that samples follow close on one another and share the probes between them.
    prepared = []
    for name in order:
        try:
            _prepare(workers[name], case)
            prepared.append(name)
        except WorkerError as error:
            give_up(name, error)
    instruments.settle()
    before: float | None = None
    for name in prepared:
        try:
            sample, before = _sample(workers[name], case, instruments, name, weights, number, before)
            keep(sample)
        except WorkerError as error:
            before = None
            give_up(name, error)


def _prepare(worker: Measured, case: Case) -> None:
    worker.wake()
    try:
        worker.ready(case)
    finally:
        worker.sleep()


def _sample(
    worker: Measured,
    case: Case,
    instruments: Instruments,
    name: str,
    weights: str,
    number: int,
    before: float | None,
) -> tuple[Sample, float | None]:
    """The sample and the bandwidth after it, which is the next one's before; None where it was disturbed."""
    for attempt in range(1, TRIES + 1):
        if attempt > 1:
            _prepare(worker, case)
            instruments.settle()
        sample, after = _attempt(worker, case, instruments, name, weights, number, before)
        before = None
        if not sample.disturbed:
            return sample, after
    return sample, None


def _attempt(
    worker: Measured,
    case: Case,
    instruments: Instruments,
    name: str,
    weights: str,
    number: int,
    before: float | None,
) -> tuple[Sample, float]:
    if before is None:
        before = instruments.bandwidth()
    gemm, attention = (None, None)
    if instruments.gemm is not None and case.kind == "prefill":
        gemm, attention = instruments.gemm()
    stop = instruments.watch(name)
    worker.wake()
    try:
        seconds = worker.run(case)
        others = stop()
    finally:
        worker.sleep()
    after = instruments.bandwidth()
    sample = Sample(
        engine=name,
        weights=weights,
        case=case.name,
        round=number,
        seconds=seconds,
        read_bytes_per_s=(before + after) / 2,
        gemm_flops_per_s=gemm,
        attention_flops_per_s=attention,
        others_cores=None if others is None else others.cores,
        stolen_share=None if others is None else others.stolen_share,
        disturbed=others is not None and not others.quiet,
    )
    return sample, after
