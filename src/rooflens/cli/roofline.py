"""``rooflens roofline``."""

from __future__ import annotations

from typing import Any

import click

from rooflens.cli.options import (
    context_option,
    device_options,
    given,
    model_options,
    output_options,
    take_optional_model,
    workload_options,
)
from rooflens.cli.output import answer
from rooflens.cli.sweep import parse_axis
from rooflens.errors import InputError


def parse_intensities(text: str | None) -> list[float]:
    """Comma-separated positive numbers of FLOP per byte."""
    try:
        values = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        values = [0.0]
    if text is not None and not (values and all(0 < value < float("inf") for value in values)):
        raise InputError(
            "--intensity is not usable", value=text, allowed="positive numbers of FLOP/byte, by commas"
        )
    return values


_OF_THE_DEVICE = ("device", "peak", "bandwidth", "memory")


def _refuse_what_needs_a_model(options: dict[str, Any]) -> None:
    """Without MODEL there are no phases: an option about them would be ignored."""
    for name, value in options.items():
        if value not in (None, False) and name not in _OF_THE_DEVICE:
            raise InputError(
                f"--{name.replace('_', '-')} needs MODEL", value=value, next="name a model or leave it out"
            )


@click.command()
@model_options
@click.option("--weights", "-w", metavar="FORMAT", help="bf16, fp8, awq, q4_k_m, ... [the checkpoint's]")
@click.option("--dtype", metavar="TYPE", help="Compute type of the roof without MODEL. [bf16, else fp16]")
@click.option("--intensity", "-i", metavar="LIST", help="FLOP/byte, e.g. 1,10,165,1000.")
@device_options
@click.option("--batch", "-b", metavar="RANGE", help="Of MODEL: 1,8,32 or 1:256 (doubling). [1,8,32,128]")
@workload_options(batch=False)
@context_option
@output_options("png", "svg", "pdf", "html", "json", "csv")
def roofline(
    dtype: str | None,
    intensity: str | None,
    as_json: bool,
    out: str | None,
    lang: str | None,
    **options: Any,
) -> int:
    """Attainable rate, share of the peak and regime of given intensities, and of MODEL's phases if named.

    \b
    rooflens roofline --peak 165e12 --bandwidth 1e12 -i 1,10,165,1000
    rooflens roofline llama-2-7b -d a100-sxm-80 --batch 1,32 -o roofline.svg
    """
    from rooflens import api

    model = take_optional_model(options)
    if options["batch"] is not None:
        options["batch"] = parse_axis(options["batch"], field="--batch", least=1)
    settings = given(options)
    if model is None:
        _refuse_what_needs_a_model(options)
        settings = {name: settings[name] for name in _OF_THE_DEVICE if name in settings}
    result = api.roofline(
        settings.pop("device", None),
        intensities=parse_intensities(intensity),
        dtype=dtype,
        model=model,
        **settings,
    )
    answer(result, "roofline", as_json=as_json, out=out, lang=lang)
    return 0
