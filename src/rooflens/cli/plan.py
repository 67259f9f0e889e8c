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
    take_model,
    whole_option,
    workload_options,
)
from rooflens.cli.output import answer
from rooflens.cli.serving_options import length_options, lengths_and_nodes, node_options, parse_limit
from rooflens.errors import InputError

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
@click.option(
    "--goodput",
    "good",
    metavar="LIMIT",
    multiple=True,
    help="Served: count requests within ttft=500ms, tpot=40ms. Repeatable.",
)
@length_options
@node_options
@click.option(
    "--prefill-device", metavar="NAME", help="Prompts on a pool of their own: its device. [the same]"
)
@whole_option("--prefill-count", help="A pool for prompts alone: how many devices. [1]")
@whole_option("--prefill-tp", help="Tensor parallel in that pool. [all of it]")
@click.option(
    "--try",
    "techniques",
    metavar="TECHNIQUE",
    multiple=True,
    help="What if: weights=fp8, kv=fp8, batch=64, chunk=2048, prefix=50%, draft=4:0.7:0.1, ngram=4:0.4, "
    "tp=4,dp=2, device=NAME, split, offload=8GB, nvme=8GB, experts=host, eager, unfused. Repeatable: "
    "each is added to those before.",
)
@click.option("--runs", metavar="FILE", help="Own runs that `rooflens calibrate` saved, or 'latest'.")
@output_options("png", "svg", "pdf", "html", "json", "csv")
def plan(
    limits: tuple[str, ...],
    good: tuple[str, ...],
    as_json: bool,
    out: str | None,
    lang: str | None,
    **options: Any,
) -> int:
    """What the memory of a device goes to, whether MODEL fits, and how fast it can possibly be.

    \b
    rooflens plan Qwen/Qwen2.5-7B-Instruct --device rtx-4090 --batch 8 --prompt 1024 --output 256
    rooflens plan llama-3.1-70b-instruct -d h100-sxm --count 4 --engine vllm -w fp8
    rooflens plan llama-3.1-8b -d l40s --count 4 --dp 4 --prefill-device h100-sxm --rate 20/s --engine vllm
    rooflens plan --params 8e9 --kv-bytes-per-token 128KiB --peak 165e12 --bandwidth 1e12

    Exit code 1: it does not fit, or is over a --check limit.
    """
    from rooflens import api

    asked = [parse_limit(text) for text in limits]
    if good and options["rate"] is None and options["concurrency"] is None:
        raise InputError("--goodput needs --rate or --concurrency", value=good[0])
    settings: dict[str, Any] = dict(parse_limit(text, field="--goodput") for text in good)
    lengths_and_nodes(options, settings)
    if options["rate"] is not None:
        options["rate"] = parse_rate(options["rate"])
    result = api.plan(take_model(options), **given(options), **settings)
    over = [(phase, limit) for phase, limit in asked if _seconds(result, phase) > limit]
    answer(result, "plan", as_json=as_json, out=out, lang=lang, over=over)
    return 1 if result.fits is False or over else 0


def _seconds(result: Plan, limit: str) -> float:
    return float(result.prefill.estimate.mid if limit == "ttft" else result.decode.estimate.mid)
