"""The whole benchmark: environments, forms, workers, checks, interleaved rounds, tables and charts."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import checks
from benchmarks.peers.cases import LARGEST_BATCH
from benchmarks.peers.engines import Engine, Form
from benchmarks.peers.forms import Forms
from benchmarks.peers.install import ENVIRONMENTS, InstallError, ensure, own_python
from benchmarks.peers.needs import needs_of
from benchmarks.peers.protocol import Case, Setup
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

STORED = "stored"
TURN_S = 1.0
"""After a lock is given back, others get this long to take it."""
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
    reference = _reference(options, source, plain, pythons, tell)
    for weights in (STORED,) if packaged is not None else options.formats:
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
            if weights == STORED:
                if engine.stored:
                    entrants.append(Entrant(engine, _as_stored(engine, source), source))
            elif (form := engine.forms.get(weights)) is not None:
                entrants.append(Entrant(engine, form, forms.path(form.made_by)))
        except InstallError as error:
            tell(f"{engine.name} {weights}: {error}")
            results.leave_out(engine.name, weights, str(error))
    return entrants


def _as_stored(engine: Engine, source: Path) -> Form:
    """A GGUF file as an engine takes it: Rooflens's torch path alone expands it to bf16."""
    if engine.variant == "cpu":
        return Form(STORED, f"{source.stem}, expanded to bf16")
    return Form(STORED, source.stem, held=STORED if engine.variant else "")


def _reference(
    options: Options, source: Path, spec: ModelSpec, pythons: dict[str, Path], tell: Tell
) -> list[NDArray[np.float32]]:
    """Logits in fp32: by transformers for a directory, by our eager path for a GGUF file; kept on disk."""
    folder = options.home / "logits" / options.shape.replace("/", "__")
    kept = [folder / f"reference-{index}.f32" for index in range(checks.PROMPTS)]
    if all(path.exists() for path in kept):
        return [np.fromfile(path, dtype=np.float32) for path in kept]
    tell("reference logits in fp32")
    theirs = source.is_dir() and "transformers" in pythons
    python, module = (
        (pythons["transformers"], "transformers_worker") if theirs else (own_python(), "rooflens_worker")
    )
    worker = Worker(python, module, log=options.home / "logs" / "reference.log")
    try:
        worker.load(Setup(str(source), "fp32", options.threads, 1, variant="" if theirs else "eager"))
        return checks.reference_logits(worker, spec.vocab_size, folder)
    finally:
        worker.close()


def _start(
    options: Options,
    results: Results,
    entrants: Sequence[Entrant],
    weights: str,
    plain: ModelSpec,
    reference: list[NDArray[np.float32]],
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
        except (WorkerError, RooflensError) as error:
            why = str(error)
        else:
            verdict = facts["check"]
            tell(
                f"{name} {weights}: {verdict['equal']:.0%} of choices equal, gap {verdict['gap']:.3f}"
                + ("" if verdict["error"] is None else f", error {verdict['error']:.2%}")
            )
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
    reference: list[NDArray[np.float32]],
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
    verdict = checks.check(worker, reference, plain.vocab_size, weights, options.home / "logits")
    return {**facts, "label": form.label, "check": verdict.to_dict()}


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
    try:
        gemm.prepare(gemm_dtype)
        rate = lambda: gemm.flops_per_s(gemm_dtype)  # noqa: E731
    except TimingError as error:
        tell(str(error))
        rate = None
    results.document["probes"][weights] = {
        "read": read.reader,
        "gemm": gemm.methods,
        "gemm_dtype": gemm_dtype,
    }
    instruments = Instruments(
        bandwidth=read.bytes_per_s,
        gemm=rate,
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
