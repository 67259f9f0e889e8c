"""``rooflens probe``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflens.cli.options import output_options
from rooflens.cli.output import print_json
from rooflens.errors import InputError

if TYPE_CHECKING:
    from rooflens.measure.records import ProbeRecord
    from rooflens.measure.session import Progress

LATEST = "latest"
INTERRUPTED = 130


@click.command()
@click.option(
    "--quick", is_flag=True, help="The main figures in under 30 s; without it all, in under 5 minutes."
)
@click.option("--device", "-d", metavar="NAME", help="cpu, cuda:0, xpu:0, mps. [the best there is]")
@click.option("--threads", type=int, metavar="N", help="CPU threads. [one per core this process may use]")
@click.option("--model", metavar="MODEL", help="Measure this model's shapes too.")
@click.option(
    "--lab", is_flag=True, help="Show two exercises made of the figures: matmul against copy, the knee."
)
@click.option(
    "--from", "source", metavar="FILE", help="Show a saved record ('latest': the newest), measure nothing."
)
@click.option("--compare", "other", metavar="FILE", help="Show the change since a saved record ('latest').")
@click.option("-o", "--out", metavar="FILE", help="Save the record here. [the user's data directory]")
@output_options()
def probe(
    quick: bool,
    device: str | None,
    threads: int | None,
    model: str | None,
    lab: bool,
    source: str | None,
    other: str | None,
    out: str | None,
    as_json: bool,
    lang: str | None,
) -> int:
    """Measure what this device really does: memory, caches, matrix multiplies, attention, call overhead.

    The record is saved with its raw samples and environment, beside the data sheet's figures and never
    over them. Afterwards '--device local' means the device as measured.

    \b
    rooflens probe --quick
    rooflens probe --model Qwen/Qwen2.5-0.5B-Instruct --lab
    rooflens plan smollm2-135m-instruct --device local
    """
    from rooflens.report.words import language, words

    say = words(language(lang))
    before = None if other is None else _saved(other)
    if source is not None:
        _refuse_measuring({"--quick": quick, "--device": device, "--threads": threads, "--model": model})
        record, path = _saved(source), None if out is None else Path(out)
    else:
        record, path = _measure(quick, device, threads, model, lab, out)
    if path is not None:
        from rooflens.measure.storage import save_probe

        click.echo(say("wrote", path=save_probe(record, path)), err=True)
    if as_json:
        print_json(record.to_dict())
    else:
        from rooflens.report.tables.layout import console, show
        from rooflens.report.tables.probe import probe_report

        show(probe_report(record, say, lab=lab, before=before), on=console())
    return 0 if record.finished or source is not None else INTERRUPTED


def _saved(name: str) -> ProbeRecord:
    """A saved record by its path, or the newest one of this machine."""
    from rooflens.measure.storage import latest_probe, load_probe, probes_folder

    if name != LATEST:
        return load_probe(name)
    record = latest_probe()
    if record is None:
        raise InputError(
            "this machine has no saved probe",
            value=str(probes_folder()),
            next="measure it with `rooflens probe`",
        )
    return record


def _refuse_measuring(options: dict[str, Any]) -> None:
    """--from measures nothing, so options about measuring would be dropped silently."""
    for name, value in options.items():
        if value:
            raise InputError(f"{name} has no meaning with --from", next="leave one of the two out")


def _measure(
    quick: bool, device: str | None, threads: int | None, model: str | None, lab: bool, out: str | None
) -> tuple[ProbeRecord, Path]:
    """Check everything that may be refused, then measure; returns the record and where to save it."""
    started = time.perf_counter()
    from rooflens.measure.probes import require_torch

    require_torch()
    from dataclasses import replace

    from rooflens.measure.probes.run import ALL_BATCH_SIZES, FULL, QUICK
    from rooflens.measure.probes.target import open_target
    from rooflens.measure.session import run_probe, shapes_of
    from rooflens.measure.storage import check_writable, probes_folder

    path = None if out is None else Path(out)
    check_writable(path or probes_folder() / "probe.json")
    target = open_target(device, threads=threads)
    shapes = None
    if model is not None:
        from rooflens.api import read_spec_of

        shapes = shapes_of(read_spec_of(model))
    effort = QUICK if quick else FULL
    if lab:
        effort = replace(effort, batch_sizes=ALL_BATCH_SIZES)
    with _progress() as progress:
        record = run_probe(target, effort, shapes=shapes, progress=progress, started=started)
    if not record.measurements and not record.finished:
        raise click.Abort  # nothing to keep
    from rooflens.measure.storage import default_path

    return record, path or default_path(record)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error, so that standard output stays the answer's; none where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda share, title: bar.update(task, completed=share, description=f"{title:<28.28}")
