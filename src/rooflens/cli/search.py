"""``rooflens search``."""

from __future__ import annotations

from typing import Any

import click

from rooflens.analysis.prices import SOURCES
from rooflens.cli.compare import names
from rooflens.cli.options import output_options, parse_rate, plain_number, whole_option
from rooflens.cli.output import answer
from rooflens.cli.serving_options import length_options, lengths_and_nodes, node_options
from rooflens.errors import InputError
from rooflens.units import parse_duration


@click.command()
@click.argument("model")
@click.option("--devices", "--device", "-d", metavar="NAMES", required=True, help="Names, by commas.")
@click.option("--rate", metavar="RATE", required=True, help="Requests, e.g. 5/s, 300/min.")
@click.option("--ttft", metavar="TIME", help="Likely time to the first token at most, e.g. 500ms.")
@click.option("--tpot", metavar="TIME", help="Likely time per output token at most, e.g. 40ms.")
@whole_option("--prompt", help="Prompt tokens per request. [512]")
@whole_option("--output", help="Output tokens per request. [128]")
@length_options
@click.option("--engine", metavar="NAME", help="vllm, sglang, llama.cpp or rooflens. [vllm]")
@click.option("--weights", "-w", metavar="FORMATS", help="By commas. [the checkpoint's, and the engine's]")
@click.option("--kv-dtype", metavar="TYPES", help="KV caches, by commas. [the model's, and fp8]")
@whole_option("--max-devices", help="Devices at most. [8]")
@whole_option("--max-model-len", help="Longest sequence the engine accepts. [prompt + output]")
@node_options
@click.option("--no-split", is_flag=True, help="No pools of their own for prefills and decodes.")
@click.option("--prices", metavar="LIST", help="Your own, per device and hour: h100-sxm=2.5,l40s=0.9.")
@click.option(
    "--price-source",
    type=click.Choice(SOURCES),
    help="Of other prices: gpuhunt (extra 'prices'), the dated snapshot, none. [auto: in this order]",
)
@output_options("png", "svg", "pdf", "html", "json", "csv")
def search(as_json: bool, out: str | None, lang: str | None, **options: Any) -> int:
    """Devices, layouts, formats and limits that serve a rate within latencies, the cheapest first.

    \b
    rooflens search llama-3.1-8b -d h100-sxm,l40s,rtx-4090 --ttft 500ms --tpot 40ms --rate 5/s
    rooflens search llama-3.1-70b -d h100-sxm --rate 2/s --tpot 30ms --prices h100-sxm=2.5

    Tries tensor, pipeline, expert and data parallel layouts, and pools of their own for prefills and
    decodes, of different devices too. Prices are yours, then gpuhunt's, then a dated snapshot, each with date
    and source; without any the number of devices and their power rank. Each option says what keeps it from
    being better and how to start it. Exit code 1: nothing meets the limits.
    """
    from rooflens import api

    settings: dict[str, Any] = {
        "rate": parse_rate(options["rate"]),
        "ttft": _time(options, "ttft"),
        "tpot": _time(options, "tpot"),
        "engine": options["engine"] or "vllm",
    }
    lengths_and_nodes(options, settings)
    for option in ("prompt", "output", "max_devices", "max_model_len", "price_source"):
        if options[option] is not None:
            settings[option] = options[option]
    if options["no_split"]:
        settings["split"] = False
    if options["weights"] is not None:
        settings["weights"] = names(options["weights"], "--weights")
    if options["kv_dtype"] is not None:
        settings["kv_dtypes"] = names(options["kv_dtype"], "--kv-dtype")
    if options["prices"] is not None:
        settings["prices"] = parse_prices(options["prices"])
    result = api.search(options["model"], names(options["devices"], "--devices"), **settings)
    answer(result, "search", as_json=as_json, out=out, lang=lang)
    return 0 if result.options else 1


def _time(options: dict[str, Any], name: str) -> float | None:
    text = options[name]
    return None if text is None else parse_duration(text, field=f"--{name}")


def parse_prices(text: str) -> dict[str, float]:
    """``h100-sxm=2.5,l40s=0.9`` by device."""
    prices = {}
    for item in names(text, "--prices"):
        name, equals, price = item.partition("=")
        if not equals or not name.strip():
            raise InputError("--prices is not usable", value=item, allowed="DEVICE=PRICE, by commas")
        prices[name.strip()] = plain_number(price, field=f"--prices {name.strip()}")
        if prices[name.strip()] < 0:
            raise InputError("a price is not negative", value=item)
    return prices
