"""``rooflens compare``."""

from __future__ import annotations

from typing import Any

import click

from rooflens.cli.options import (
    context_option,
    given,
    layout_options,
    model_options,
    output_options,
    take_model,
    workload_options,
)
from rooflens.cli.output import answer
from rooflens.errors import InputError

# What stands for a checkpoint's own format in a list of formats.
STORED = "stored"


def names(text: str | None, option: str) -> list[str]:
    """A comma-separated list without empty entries."""
    found = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not found:
        raise InputError(f"{option} is empty", value=text, allowed="names separated by commas")
    return found


@click.command()
@model_options
@click.option("--devices", "--device", "-d", metavar="NAMES", required=True, help="Names, by commas.")
@click.option("--weights", "-w", metavar="FORMATS", help="By commas; 'stored' for the checkpoint's. [stored]")
@layout_options
@workload_options()
@context_option
@output_options("png", "svg", "pdf", "html", "json", "csv")
def compare(as_json: bool, out: str | None, lang: str | None, **options: Any) -> int:
    """Several devices, weight formats or both, side by side.

    \b
    rooflens compare llama-2-7b -d t4,rtx-4090,a100-pcie-80,a100-sxm-80,h100-sxm
    rooflens compare llama-2-7b -d a100-sxm-80 -w stored,int8,int4
    """
    from rooflens import api

    devices = names(options.pop("devices"), "--devices")
    formats = names(options.pop("weights"), "--weights") or [STORED]
    weights = [None if name == STORED else name for name in formats]
    result = api.compare(take_model(options), devices, weights=weights, **given(options))
    answer(result, "compare", as_json=as_json, out=out, lang=lang)
    return 0 if any(plan.fits is not False for plan in result.plans) else 1
