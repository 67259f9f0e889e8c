"""python -m benchmarks.peers: install the peers, run them beside Rooflens, write table and chart."""

from __future__ import annotations

import platform
import re
import signal
import sys
import time
from pathlib import Path

import click

from benchmarks.peers.cases import CASES, QUICK_CASES
from benchmarks.peers.chart import write_charts
from benchmarks.peers.engines import ENGINES, FORMATS, STORED, find_engines
from benchmarks.peers.install import cache_home
from benchmarks.peers.model_files import DEFAULT_SHAPE
from benchmarks.peers.results import Results
from benchmarks.peers.run import Options, run
from benchmarks.peers.table import write_table
from rooflens.hardware.local_cpu import CpuInfo, read_cpu

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROUNDS, QUICK_ROUNDS = 9, 3


@click.command(help=__doc__)
@click.option(
    "--engines", help=f"Comma-separated; ours always runs. Of: {', '.join(e.name for e in ENGINES)}."
)
@click.option(
    "--formats", default=",".join((STORED, *FORMATS)), show_default=True,
    help="Weight formats, in this order; stored is for GGUF models alone.",
)  # fmt: skip
@click.option("--shape", default=DEFAULT_SHAPE, show_default=True,
              help="A bundled Qwen2 model, with random weights, or an installed GGUF model.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds in all. [default: {ROUNDS}]")
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds, a short prompt and batch 1 alone.")
@click.option("--threads", type=click.IntRange(1), help="Threads of every engine. [default: all cores]")
@click.option("--out", type=click.Path(path_type=Path), help="Result file; a run goes on from it.")
@click.option("--lock", type=click.Path(path_type=Path),
              help="A file to hold the lock of while a case is measured.")  # fmt: skip
@click.option("--show", is_flag=True, help="Only write table and chart again from the result file.")
def main(
    engines: str | None,
    formats: str,
    shape: str,
    rounds: int | None,
    quick: bool,
    threads: int | None,
    out: Path | None,
    lock: Path | None,
    show: bool,
) -> None:
    # A run that is told to stop ends its workers, the stopped ones too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    cpu = read_cpu()
    threads = threads or cpu.usable_cores or 1
    cases = QUICK_CASES if quick else CASES
    out = out or RESULTS / f"peers-{slug(shape)}-{processor_slug(cpu)}-{threads}t.json"
    results = Results.open(out, shape=shape, threads=threads)
    if not show:
        options = Options(
            engines=find_engines(engines),
            formats=known_formats(formats),
            shape=shape,
            cases=cases,
            rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
            threads=threads,
            out=out,
            home=cache_home(),
            lock=lock,
        )
        run(options, results, tell=tell)
    for path in (write_table(results.document, out.with_suffix(".md")), *write_charts(results.document, out)):
        click.echo(path)


def known_formats(text: str) -> tuple[str, ...]:
    """Formats by comma-separated names. Raises SystemExit for an unknown one."""
    names = tuple(name.strip() for name in text.split(","))
    known = (STORED, *FORMATS)
    if unknown := set(names) - set(known):
        raise SystemExit(f"no such weights: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def slug(text: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("(r)", "")).strip("-")


def processor_slug(cpu: CpuInfo) -> str:
    """A processor as part of a file's name, its family and model behind the name where they are known."""
    name = slug(cpu.name or platform.machine())
    return name if cpu.family is None else f"{name}-f{cpu.family}m{cpu.model}"


def tell(text: str) -> None:
    """Progress, with the time of day."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


if __name__ == "__main__":
    main()
