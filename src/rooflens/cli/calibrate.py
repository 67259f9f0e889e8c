"""``rooflens calibrate``."""

from __future__ import annotations

import click

from rooflens.cli.options import output_options
from rooflens.cli.output import answer


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--save", metavar="FILE", help="Where to keep it. [beside the probes]")
@click.option("--dry-run", is_flag=True, help="Say what it would change and keep nothing.")
@output_options("json")
def calibrate(
    runs: tuple[str, ...], save: str | None, dry_run: bool, as_json: bool, out: str | None, lang: str | None
) -> None:
    """Tighten the estimate by a few measured runs of your own.

    RUNS are CSV files as for `rooflens validate`. For each device, engine and kind of figure it says how
    far the estimate was off and how much narrower its range becomes; `rooflens plan --runs latest` uses it.

    \b
    rooflens calibrate my-runs.csv
    rooflens plan llama-3.1-8b -d h100-sxm --engine vllm --runs latest
    """
    from rooflens import api

    result = api.calibrate(runs, save=False if dry_run else save or True)
    answer(result, "calibrate", as_json=as_json, out=out, lang=lang)
