"""Options of serving: how long requests are, how nodes are joined, which latencies count as good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rooflens.cli.options import plain_number, whole_option
from rooflens.errors import InputError
from rooflens.units import parse_bandwidth, parse_duration

F = TypeVar("F", bound=Callable[..., Any])


def length_options(function: F) -> F:
    """How request lengths spread, or a file of them; the cached share of prompts."""
    for option in reversed(
        (
            click.option("--prompt-std", metavar="TOKENS", help="Standard deviation of prompt lengths. [0]"),
            click.option("--output-std", metavar="TOKENS", help="Standard deviation of output lengths. [0]"),
            click.option(
                "--lengths",
                metavar="FILE",
                help="Request lengths as they were met: CSV or JSON of prompt, output (and count).",
            ),
            click.option("--prefix-share", metavar="SHARE", help="Share of every prompt that is cached. [0]"),
        )
    ):
        function = option(function)
    return function


def node_options(function: F) -> F:
    """How many devices share a machine, and what each sends to other machines."""
    function = click.option(
        "--network", metavar="RATE", help="Between nodes, each device, e.g. 50GB/s. [50GB/s, assumed]"
    )(function)
    return whole_option("--devices-per-node", help="Devices that share a machine. [8]")(function)


def lengths_and_nodes(options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Take these options out of ``options``, parsed and under the API's names into ``settings``."""
    for option, name in (
        ("prompt_std", "prompt_std"),
        ("output_std", "output_std"),
        ("prefix_share", "shared_prefix"),
    ):
        text = options.pop(option)
        if text is not None:
            settings[name] = plain_number(text, field=f"--{option.replace('_', '-')}")
    network = options.pop("network")
    if network is not None:
        settings["network"] = parse_bandwidth(network, field="--network")
    for option in ("lengths", "devices_per_node"):
        value = options.pop(option)
        if value is not None:
            settings[option] = value


def parse_limit(text: str, *, field: str = "--check") -> tuple[str, float]:
    """``ttft=500ms`` as ("ttft", 0.5)."""
    name, equals, value = text.partition("=")
    if not equals or name.strip().lower() not in ("ttft", "tpot"):
        raise InputError(
            f"{field} is not a limit", value=text, allowed=f"ttft=TIME or tpot=TIME, e.g. {field} tpot=40ms"
        )
    return name.strip().lower(), parse_duration(value, field=f"{field} {name.strip()}")
