"""``rooflens plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rooflens.cli.options import (
    context_option,
    device_options,
    given,
    model_options,
    output_options,
    parse_rate,
    plain_number,
    take_model,
    whole_option,
    workload_options,
)
from rooflens.cli.output import answer
from rooflens.errors import InputError
from rooflens.units import parse_duration

if TYPE_CHECKING:
    from rooflens.analysis.plan import Plan


@click.command()
@model_options
@click.option("--weights", "-w", metavar="FORMAT", help="bf16, fp8, awq, q4_k_m, ... [the checkpoint's]")
@device_options
@workload_options()
@context_option
@click.option(
    "--check",
    "limits",
    metavar="LIMIT",
    multiple=True,
    help="Exit 1 if the estimate is over it: ttft=500ms, tpot=40ms. Repeatable.",
)
@click.option("--rate", metavar="RATE", help="Also the steady state at this request rate, e.g. 5/s.")
@whole_option("--concurrency", help="Also the steady state with this many clients.")
@click.option("--output-cv", metavar="SHARE", help="Served: spread of output lengths over their mean. [0]")
@click.option("--prefix-share", metavar="SHARE", help="Served: share of every prompt that is cached. [0]")
@click.option("--runs", metavar="FILE", help="Own runs that `rooflens calibrate` saved, or 'latest'.")
@output_options("png", "svg", "pdf", "html", "json", "csv")
def plan(limits: tuple[str, ...], as_json: bool, out: str | None, lang: str | None, **options: Any) -> int:
    """What the memory of a device goes to, whether MODEL fits, and how fast it can possibly be.

    \b
    rooflens plan Qwen/Qwen2.5-7B-Instruct --device rtx-4090 --batch 8 --prompt 1024 --output 256
    rooflens plan llama-3.1-70b-instruct -d h100-sxm --count 4 --engine vllm -w fp8
    rooflens plan --params 8e9 --kv-bytes-per-token 128KiB --peak 165e12 --bandwidth 1e12

    Exit code 1: it does not fit, or is over a --check limit.
    """
    from rooflens import api

    asked = [parse_limit(text) for text in limits]
    serving_numbers(options)
    result = api.plan(take_model(options), **given(options))
    over = [(phase, limit) for phase, limit in asked if _seconds(result, phase) > limit]
    answer(result, "plan", as_json=as_json, out=out, lang=lang, over=over)
    return 1 if result.fits is False or over else 0


def serving_numbers(options: dict[str, Any]) -> None:
    """Read the texts of --rate, --output-cv and --prefix-share in place, the last under the API's name."""
    if options["rate"] is not None:
        options["rate"] = parse_rate(options["rate"])
    share = options.pop("prefix_share")
    options["shared_prefix"] = None if share is None else plain_number(share, field="--prefix-share")
    if options["output_cv"] is not None:
        options["output_cv"] = plain_number(options["output_cv"], field="--output-cv")


def parse_limit(text: str) -> tuple[str, float]:
    """``ttft=500ms`` as ("ttft", 0.5)."""
    name, equals, value = text.partition("=")
    if not equals or name.strip().lower() not in ("ttft", "tpot"):
        raise InputError(
            "--check is not a limit", value=text, allowed="ttft=TIME or tpot=TIME, e.g. --check tpot=40ms"
        )
    return name.strip().lower(), parse_duration(value, field=f"--check {name.strip()}")


def _seconds(result: Plan, limit: str) -> float:
    return float(result.prefill.estimate.mid if limit == "ttft" else result.decode.estimate.mid)
