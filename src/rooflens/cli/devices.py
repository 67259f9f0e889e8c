"""``rooflens devices``."""

from __future__ import annotations

from typing import Any

import click

from rooflens.cli.options import output_options, size_option
from rooflens.cli.output import answer


@click.command()
@click.argument("name", required=False)
@click.option("--vendor", metavar="NAME", help="Only of this vendor.")
@click.option("--kind", metavar="KIND", help="Only of this kind: gpu, cpu, soc, tpu, ...")
@click.option("--dtype", metavar="TYPE", help="Only with a known peak of this type.")
@size_option("--min-memory", help="Only with at least this much memory, e.g. 24GB.")
@click.option("--find", "text", metavar="TEXT", help="Only whose names contain this.")
@output_options("json", "csv")
def devices(name: str | None, as_json: bool, out: str | None, lang: str | None, **filters: Any) -> int:
    """The catalogue; with NAME one device: memory pyramid, peaks, ridge points, sources.

    NAME is an id, an alias, what nvidia-smi prints, a saved probe, or 'local'.

    \b
    rooflens devices --vendor nvidia --min-memory 80GB
    rooflens devices rtx-4090
    """
    from rooflens.api import detected_devices, resolve_device
    from rooflens.hardware import filter_devices

    if name is not None and name.lower() == "local":
        answer(detected_devices(), "local", as_json=as_json, out=out, lang=lang)
    elif name is not None:
        answer(resolve_device(name), "device", as_json=as_json, out=out, lang=lang)
    else:
        found = filter_devices(min_memory_bytes=filters.pop("min_memory"), **filters)
        answer(found, "devices", as_json=as_json, out=out, lang=lang)
    return 0
