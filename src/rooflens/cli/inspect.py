"""``rooflens inspect``."""

from __future__ import annotations

from typing import Any

import click

from rooflens.cli.options import context_option, model_options, output_options, take_model
from rooflens.cli.output import answer


@click.command()
@model_options
@click.option("--weights", "-w", metavar="FORMAT", help="bf16, fp8, awq, q4_k_m, ... [the checkpoint's]")
@context_option
@output_options("json")
def inspect(as_json: bool, out: str | None, lang: str | None, **options: Any) -> int:
    """Parameters, weight bytes and KV cache of MODEL, layer kind by layer kind.

    \b
    rooflens inspect google/gemma-3-27b-it --context 131072
    rooflens inspect ./checkpoint/config.json --kv-dtype fp8
    """
    from rooflens import api

    result = api.inspect(take_model(options), **{k: v for k, v in options.items() if v is not None})
    answer(result, "inspect", as_json=as_json, out=out, lang=lang)
    return 0
