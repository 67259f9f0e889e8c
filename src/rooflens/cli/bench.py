"""``rooflens bench``: grids of measurements of the native runtime."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rooflens.cli.guess_options import check_guesses, draft_options, open_draft
from rooflens.cli.options import by_hand_options, output_options, whole_number
from rooflens.cli.output import print_json
from rooflens.cli.runtime_options import open_backend, predicting_device, require_runtime, runtime_options
from rooflens.errors import InputError

if TYPE_CHECKING:
    from rooflens.bench.cases import Case, Kind, Size
    from rooflens.bench.grid import Bench

F = TypeVar("F", bound=Callable[..., Any])
CUT_SHORT = 1
_DATA, _CHARTS = ("json", "csv"), ("png", "svg", "pdf", "html")


def _bench_options(function: F) -> F:
    decorators: list[Callable[[F], F]] = [
        runtime_options,
        click.option(
            "--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True
        ),
        click.option("--fresh", is_flag=True, help="Do not go on with an interrupted run."),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.group()
def bench() -> None:
    """Measure grids of requests on this machine: speed, memory, the batch curve, prefix cache, guesses.

    Cases that would not fit are skipped with the ledger's reason before they start. Each case is kept when
    it is done: after Ctrl-C (exit code 1) the same command goes on from there.

    \b
    rooflens bench baseline smollm2-135m-instruct --size medium -o baseline.csv
    rooflens bench batch qwen2.5-0.5b-instruct --random-weights -o batch.svg
    """


@bench.command()
@_bench_options
@output_options(*_DATA, *_CHARTS)
def baseline(**options: Any) -> int:
    """Requests x batch x prompt x output: TTFT, TPOT, tokens per second, time of a step by phase."""
    return _bench("baseline", options)


@bench.command()
@_bench_options
@output_options(*_DATA, *_CHARTS)
def memory(**options: Any) -> int:
    """Memory by component at every step: weights, KV cache needed and held, allocator, resident set."""
    return _bench("memory", options)


@bench.command()
@_bench_options
@click.option("--device-spec", metavar="NAME", help="Device to predict for: a name or a saved probe. [local]")
@output_options(*_DATA, *_CHARTS)
def batch(**options: Any) -> int:
    """Decode at batch 1, 2, 4 ... 64 over its bound; where the knee is, and what causes it."""
    return _bench("batch", options)


@bench.command()
@_bench_options
@output_options(*_DATA, *_CHARTS)
def prefix(**options: Any) -> int:
    """Time to first token of prompts whose beginning is cached, against ones that are new."""
    return _bench("prefix", options)


@bench.command()
@_bench_options
@draft_options
@click.option(
    "--tokens", metavar="K", multiple=True, help="Guesses a step. Repeatable. [by size: 2, 4, 8 ...]"
)
@click.option("--device-spec", metavar="NAME", help="Device to predict for: a name or a saved probe. [local]")
@output_options(*_DATA, *_CHARTS)
def speculative(**options: Any) -> int:
    """Decoding with guesses against plain decoding, in turn: acceptance, gain, and the plan's prediction.

    Guesses come from the text so far, or from --draft. Outputs are compared before any speed is told.
    """
    return _bench("speculative", options)


for _option in reversed(by_hand_options()):
    batch = _option(batch)
    speculative = _option(speculative)


def _speculative_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take who guesses and how much out of ``options``."""
    names = ("draft", "draft_weights", "tokens")
    given = {name: options.pop(name) for name in names}
    if given["draft"] is None and given["draft_weights"] is not None:
        raise InputError("--draft-weights has a meaning with --draft only", value=given["draft_weights"])
    numbers = [whole_number(text, field="--tokens") for text in given["tokens"]]
    given["tokens"] = [check_guesses(number, option="--tokens") for number in numbers]
    return given


def _bench(kind: Kind, options: dict[str, Any]) -> int:
    require_runtime()
    from rooflens.report.words import language, words

    size: Size = options.pop("size")
    fresh, as_json, out = options.pop("fresh"), options.pop("as_json"), options.pop("out")
    say = words(language(options.pop("lang")))
    if out is not None:
        _check_out(Path(out))
    device, guessing = None, None
    if kind == "speculative":
        guessing = _speculative_options(options)
    if kind in ("batch", "speculative"):
        figures = {name: options.pop(name) for name in ("peak", "bandwidth", "memory")}
        device = predicting_device(options.pop("device_spec"), **figures)
    name = Path(options["model"]).name if Path(options["model"]).exists() else options["model"]
    as_given = dict(options)
    backend = open_backend(options)
    from rooflens.bench.grid import run_bench

    cases: Sequence[Case] | None = None
    draft = None
    if guessing is not None:
        from rooflens.bench.cases import speculative_cases
        from rooflens.bench.texts import TEXTS

        texts = TEXTS if backend.tokenizer is not None else ("random",)
        cases = speculative_cases(size, guesses=guessing["tokens"], texts=texts)
        if guessing["draft"] is not None:
            draft = open_draft(guessing["draft"], backend, as_given, guessing["draft_weights"])
    with _progress(kind) as progress:
        result = run_bench(
            backend,
            kind,
            size,
            model=name,
            cases=cases,
            device=device,
            draft=draft,
            fresh=fresh,
            progress=progress,
        )
    if out is not None:
        _write(result, Path(out), say)
        click.echo(say("wrote", path=out), err=True)
    if as_json:
        print_json(result.to_dict())
    elif out is None or not result.finished:
        from rooflens.report.tables.bench import bench_report
        from rooflens.report.tables.layout import console, show

        show(bench_report(result, say), on=console())
    return 0 if result.finished else CUT_SHORT


def _check_out(path: Path) -> None:
    """Refuse a file that could not be written, before anything is measured."""
    from rooflens.measure.storage import check_writable

    endings = (*_DATA, *_CHARTS)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in endings:
        raise InputError(
            "file ending is not one that can be written here",
            value=str(path),
            allowed=", ".join(f".{ending}" for ending in endings),
        )
    if ending in _CHARTS:
        from rooflens.report.charts.theme import require_altair

        require_altair()
    check_writable(path)


def _write(result: Bench, path: Path, say: Any) -> None:
    from rooflens.report.files import save_chart, save_rows, write_whole

    ending = path.suffix.lower().lstrip(".")
    if ending == "json":
        write_whole(path, (json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n").encode())
    elif ending == "csv":
        lists = ("account", "per_step", "samples")
        save_rows([{k: v for k, v in point.items() if k not in lists} for point in result.points], path)
    else:
        from rooflens.report.charts.bench import bench_chart

        save_chart(bench_chart(result, say), path, lang=say.language)


@contextmanager
def _progress(kind: str) -> Iterator[Callable[[int, int, Case], object]]:
    """A bar on standard error; none where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(kind, total=None)

        def told(done: int, total: int, case: Case) -> None:
            text = f"batch {case.batch}, prompt {case.prompt}, output {case.output}"
            if kind == "speculative":
                text += f", {case.to_dict()['guesses']} guesses"
            bar.update(task, completed=done, total=total, description=f"{kind}: {text}")

        yield told
