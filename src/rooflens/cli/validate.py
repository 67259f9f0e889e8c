"""``rooflens validate``."""

from __future__ import annotations

import click

from rooflens.cli.options import output_options
from rooflens.cli.output import answer


@click.command()
@click.argument("file")
@output_options("json", "csv")
def validate(file: str, as_json: bool, out: str | None, lang: str | None) -> int:
    """Check published or own measurements against the bound and the estimate, row by row.

    FILE is CSV with at least the columns device, model, metric (ttft_ms, tpot_ms, prefill_tok_s,
    decode_tok_s, output_tok_s) and value; see docs/accuracy.md for the others. Bad rows are told by row
    and the rest is judged; models and devices that are not known here are counted, never looked up.

    \b
    rooflens validate measurements.csv
    rooflens validate measurements.csv --json

    Exit code 1: an unflagged row beats the bound, or no row could be judged.
    """
    from rooflens import api

    result = api.validate(file)
    answer(result, "validate", as_json=as_json, out=out, lang=lang)
    return 0 if result.sound and result.judged else 1
