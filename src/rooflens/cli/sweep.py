"""``rooflens sweep``."""

from __future__ import annotations

from typing import Any

import click

from rooflens.cli.options import (
    device_options,
    given,
    model_options,
    output_options,
    take_model,
    whole_number,
    workload_options,
)
from rooflens.cli.output import answer
from rooflens.errors import InputError

# A range such as 1:256 is swept at powers of two; this bounds what a typo can ask for.
MOST_POINTS = 1_000_000


def parse_axis(text: str, *, field: str, least: int) -> list[int]:
    """``1,2,4``, ``1:256`` (doubling) or ``1:256:16`` (in steps of 16) as whole numbers."""
    if ":" not in text:
        return [whole_number(part.strip(), field=field, least=least) for part in text.split(",")]
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise InputError(
            f"{field} is not a range", value=text, allowed="A,B,C or START:STOP or START:STOP:STEP"
        )
    start, stop = (whole_number(part, field=field, least=least) for part in parts[:2])
    if stop < start:
        raise InputError(f"{field} ends before it starts", value=text, allowed="START not above STOP")
    if len(parts) == 3:
        values = range(start, stop + 1, whole_number(parts[2], field=field))
        if len(values) > MOST_POINTS:
            raise InputError(f"{field} has {len(values)} points", value=text, allowed=f"up to {MOST_POINTS}")
        return list(values)
    values_doubling = [start]
    while max(values_doubling[-1], 1) * 2 <= stop:
        values_doubling.append(max(values_doubling[-1], 1) * 2)
    return values_doubling if values_doubling[-1] == stop else [*values_doubling, stop]


@click.command()
@model_options
@click.option("--weights", "-w", metavar="FORMAT", help="bf16, fp8, awq, q4_k_m, ... [the checkpoint's]")
@device_options
@click.option("--batch", "-b", metavar="RANGE", help="1,2,4 or 1:256 (doubling) or 8:64:8. [1:256]")
@click.option(
    "--context", "-c", metavar="RANGE", help="Tokens held per sequence, as --batch. [prompt + output]"
)
@workload_options(batch=False)
@output_options("png", "svg", "pdf", "html", "json", "csv")
def sweep(as_json: bool, out: str | None, lang: str | None, **options: Any) -> int:
    """Decode over batch or context: where the curve bends, and what bends it.

    \b
    rooflens sweep llama-3.1-8b-instruct -d h100-sxm --batch 1:512 --context 4096
    rooflens sweep llama-3.1-8b-instruct -d h100-sxm --batch 32 --context 1024:131072 -o sweep.svg
    """
    from rooflens import api

    axes: dict[str, Any] = {
        name: parse_axis(text, field=f"--{name}", least=least)
        for name, least in (("batch", 1), ("context", 0))
        if (text := options.pop(name)) is not None
    }
    result = api.sweep(take_model(options), **given(options), **axes)
    answer(result, "sweep", as_json=as_json, out=out, lang=lang)
    return 0
