"""The whole benchmark: environments, forms, workers, checks, interleaved rounds, tables and charts."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers import checks
from benchmarks.peers.cases import LARGEST_BATCH
from benchmarks.peers.engines import STORED, Engine, Form, form_of_file
from benchmarks.peers.forms import Forms
from benchmarks.peers.install import ENVIRONMENTS, InstallError, ensure, own_python
from benchmarks.peers.needs import needs_of
from benchmarks.peers.protocol import Case, Setup
from benchmarks.peers.reference import Reference, make_reference
from benchmarks.peers.results import Results
from benchmarks.peers.rounds import Instruments, run_case
from benchmarks.peers.surroundings import GemmProbe, ReadProbe, Watch, wait_until_quiet
from benchmarks.peers.worker_process import Worker, WorkerError
from rooflens.errors import RooflensError
from rooflens.measure.session import shapes_of
from rooflens.measure.timer import TimingError
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.runtime.discover import find_packaged

Tell = Callable[[str], None]

TURN_S = 1.0
"""After a lock is given back, others get this long to take it."""
#: What attention of prompts is multiplied in.
_ATTENTION_DTYPE = "bf16"
#: Formats whose prefill is held against another matrix rate than bf16's.
_GEMM_DTYPES = {"int8": "int8"}


@dataclass(frozen=True)
class Options:
    """What was asked for; see the command's help."""

    engines: tuple[Engine, ...]
    formats: tuple[str, ...]
    shape: str
    cases: tuple[Case, ...]
    rounds: int
    threads: int
    out: Path
    home: Path
    lock: Path | None


@dataclass(frozen=True)
class Entrant:
    """An engine with the model it will load."""

    engine: Engine
    form: Form
    path: Path


def run(options: Options, results: Results, *, tell: Tell) -> None:
    """Fill ``results`` up to the rounds asked for, weights by weights."""
    pythons = _install(options, results, tell)
    packaged = find_packaged(options.shape)
    forms = Forms(options.home, options.shape, pythons)
    source = packaged.path() if packaged is not None else forms.path("directory")
    plain = read_model(source)
    with alone(options.lock):
        reference = make_reference(
            source, plain.vocab_size, pythons, options.home, options.shape, threads=options.threads, tell=tell
        )
    results.document["reference"] = reference.facts
    for weights in options.formats:
        if weights == STORED and packaged is None:
            continue
        if results.rounds(weights) >= options.rounds:
            continue
        entrants = _entrants(options, results, forms, weights, source, tell)
        with ExitStack() as stack:
            workers = _start(options, results, entrants, weights, plain, reference, pythons, stack, tell)
            if workers:
                _measure(options, results, workers, weights, plain, stack, tell)
    results.save()


def _install(options: Options, results: Results, tell: Tell) -> dict[str, Path]:
    """The interpreters by environment; engines of those that cannot be had are left out by name."""
    pythons = {"": own_python()}
    wanted = {engine.environment for engine in options.engines} | {"transformers"}
    for environment in ENVIRONMENTS:
        if environment.name not in wanted:
            continue
        try:
            pythons[environment.name] = ensure(environment, options.home, tell=tell)
        except InstallError as error:
            tell(f"{environment.name} cannot be installed: {error}")
            for engine in options.engines:
                if engine.environment == environment.name:
                    results.leave_out(engine.name, "*", f"cannot be installed: {error}")
    return pythons


def _entrants(
    options: Options, results: Results, forms: Forms, weights: str, source: Path, tell: Tell
) -> list[Entrant]:
    entrants = []
    for engine in options.engines:
        if engine.environment not in forms.pythons:
            continue
        try:
            if source.is_file():
                if (made := form_of_file(engine, weights, source.stem)) is not None:
                    entrants.append(Entrant(engine, made, source))
            elif (form := engine.forms.get(weights)) is not None:
                entrants.append(Entrant(engine, form, forms.path(form.made_by)))
        except InstallError as error:
            tell(f"{engine.name} {weights}: {error}")
            results.leave_out(engine.name, weights, str(error))
    return entrants


def _start(
    options: Options,
    results: Results,
    entrants: Sequence[Entrant],
    weights: str,
    plain: ModelSpec,
    reference: Reference,
    pythons: dict[str, Path],
    stack: ExitStack,
    tell: Tell,
) -> dict[str, Worker]:
    """Workers that loaded and passed their check, asleep; the others are left out with the reason."""
    workers = {}
    for entrant in entrants:
        name = entrant.engine.name
        log = options.home / "logs" / f"{name}-{weights}.log".replace(" ", "-")
        worker = Worker(
            pythons[entrant.engine.environment],
            entrant.engine.worker,
            log=log,
            environment=entrant.engine.variables,
        )
        stack.callback(worker.close)
        try:
            # Two threads that wait for one another are slow beside other work.
            with alone(options.lock):
                facts = _load(worker, entrant, options, weights, plain, reference)
        except (WorkerError, RooflensError, ValueError) as error:
            why = str(error)
        else:
            verdict = facts["check"]
            tell(f"{name} {weights}: {told(facts)}")
            why = "" if verdict["passed"] else f"its outputs are not the model's: gap {verdict['gap']:.2f}"
            results.add_engine(name, weights, facts)
        if why:
            tell(f"{name} {weights} is left out: {why}")
            results.leave_out(name, weights, why)
            worker.close()
            continue
        results.welcome(name, weights)
        worker.sleep()
        workers[name] = worker
    return workers


def _load(
    worker: Worker,
    entrant: Entrant,
    options: Options,
    weights: str,
    plain: ModelSpec,
    reference: Reference,
) -> dict[str, Any]:
    form, engine = entrant.form, entrant.engine
    setup = Setup(
        str(entrant.path), weights, options.threads, LARGEST_BATCH, variant=engine.variant, held=form.held
    )
    facts = worker.load(setup)
    if "needs" not in facts:
        facts["needs"] = needs_of(
            entrant.path,
            plain,
            options.cases,
            kv_dtype=facts["kv_dtype"],
            held_bytes=facts.get("held_bytes"),
        )
    with TemporaryDirectory(dir=options.home) as scratch:
        folder = Path(scratch)
        verdict = checks.check(worker, reference.prompts, reference.logits, weights, folder)
        if verdict.passed and reference.reading is not None:
            facts.update(reference.reading.verdict(worker, weights, folder))
    return {**facts, "label": form.label, "check": verdict.to_dict()}


def told(facts: dict[str, Any]) -> str:
    """How an engine's outputs compare, in a line."""
    check, quality = facts["check"], facts.get("quality")
    text = f"{check['equal']:.0%} of choices equal, gap {check['gap']:.3f}"
    if check["error"] is not None:
        text += f", error {check['error']:.2%}"
    if quality is not None:
        answers, along = quality["answers"], quality["text"]
        text += f"; answers: top-1 {answers['equal']:.2%}, KL {answers['kl']:.5f}"
        text += f"; text: {along['equal']:.2%}, {along['kl']:.5f}"
        text += "" if quality["passed"] else ": fails, its speed does not count"
    return text


def _measure(
    options: Options,
    results: Results,
    workers: dict[str, Worker],
    weights: str,
    plain: ModelSpec,
    stack: ExitStack,
    tell: Tell,
) -> None:
    read = stack.enter_context(ReadProbe(threads=options.threads))
    gemm_dtype = _GEMM_DTYPES.get(weights, "bf16")
    gemm = GemmProbe(shapes_of(plain).linears, threads=options.threads)

    def matrix_rates() -> tuple[float, float]:
        own = gemm.flops_per_s(gemm_dtype)
        return own, own if gemm_dtype == _ATTENTION_DTYPE else gemm.flops_per_s(_ATTENTION_DTYPE)

    rates: Callable[[], tuple[float, float]] | None = matrix_rates
    try:
        for dtype in dict.fromkeys((gemm_dtype, _ATTENTION_DTYPE)):
            gemm.prepare(dtype)
    except TimingError as error:
        tell(str(error))
        rates = None
    results.document["probes"][weights] = {
        "read": read.reader,
        "gemm": gemm.methods,
        "gemm_dtype": gemm_dtype,
    }
    instruments = Instruments(
        bandwidth=read.bytes_per_s,
        gemm=rates,
        watch=lambda name: Watch((workers[name].group,)).stop,
        settle=wait_until_quiet,
    )
    given_up: set[tuple[str, str]] = set()
    while (number := results.rounds(weights)) < options.rounds:
        for case in (case for case in options.cases if number % case.every == 0):
            tell(f"{weights} round {number + 1} of {options.rounds}: {case.name}")
            with alone(options.lock):
                run_case(
                    workers,
                    case,
                    instruments,
                    weights=weights,
                    number=number,
                    given_up=given_up,
                    keep=results.keep,
                    fail=lambda failure: results.fail(failure, weights),
                )
        results.finish_round(weights)


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Hold ``lock`` exclusively, so that other work on the machine that honours it waits."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(TURN_S)
