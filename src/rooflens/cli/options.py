"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from rooflens.analysis.workload import DEFAULT_OUTPUT, DEFAULT_PROMPT
from rooflens.errors import InputError
from rooflens.models.spec import ModelSpec
from rooflens.units import parse_bandwidth, parse_bytes, parse_count, parse_flops_per_s

_PER = {"s": 1.0, "min": 60.0, "h": 3600.0}

F = TypeVar("F", bound=Callable[..., Any])


def _option(*names: str, parse: Callable[..., Any], metavar: str, **settings: Any) -> Callable[[F], F]:
    """A click option whose text is read by ``parse(text, field=<the option's name>)``."""

    def convert(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        # Defaults are numbers already; what the user typed is text.
        return parse(value, field=names[0]) if isinstance(value, str) else value

    default = settings.pop("default", None)
    return click.option(
        *names, metavar=metavar, callback=convert, default=default, type=click.UNPROCESSED, **settings
    )


def whole_number(text: str, *, field: str, least: int = 1) -> int:
    """Parse a whole number such as ``4096`` or ``4,096``.

    Suffixes are refused: a context of 128k may be 128,000 or 131,072 tokens.
    """
    try:
        number = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        number = least - 1
    if number < least:
        raise InputError(f"{field} is not usable", value=text, allowed=f"a whole number from {least}")
    return number


def _whole(*names: str, least: int = 1, **settings: Any) -> Callable[[F], F]:
    return _option(*names, parse=partial(whole_number, least=least), metavar="N", **settings)


def whole_option(name: str, *, help: str) -> Callable[[F], F]:
    """An option that takes a whole number from 1."""
    return _whole(name, help=help)


def plain_number(text: str, *, field: str) -> float:
    """A plain finite number without a unit."""
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{field} is not a number", value=text, allowed="a plain number")
    return number


def parse_rate(text: str) -> float:
    """``5/s``, ``300/min`` or a bare number of requests a second."""
    number, slash, unit = text.partition("/")
    if slash and unit.strip() not in _PER:
        raise InputError(
            "--rate is not usable", value=text, allowed="a number of requests as 5/s, 300/min, 1000/h"
        )
    rate = plain_number(number, field="--rate")
    if rate <= 0:
        raise InputError("--rate must be positive", value=text)
    return rate / _PER[unit.strip()] if slash else rate


def _apply(decorators: list[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def model_options(function: F) -> F:
    """MODEL, or the four numbers of a free-form model; and the formats of weights and cache."""
    return _apply(
        [
            click.argument("model", required=False),
            _option(
                "--params",
                parse=parse_count,
                metavar="COUNT",
                help="Instead of MODEL: parameters, e.g. 8e9 or 8B.",
            ),
            _option(
                "--active-params",
                parse=parse_count,
                metavar="COUNT",
                help="With --params: parameters used per token.",
            ),
            _option(
                "--kv-bytes-per-token", parse=parse_bytes, metavar="SIZE", help="With --params: e.g. 128KiB."
            ),
            _option(
                "--weights-bytes",
                parse=parse_bytes,
                metavar="SIZE",
                help="With --params: bytes of all weights.",
            ),
            click.option(
                "--kv-dtype", metavar="TYPE", help="KV cache: bf16, fp8, int8, q8_0, ... [the model's]"
            ),
        ]
    )(function)


def layout_options(function: F) -> F:
    """How many devices, and how the work is cut over them."""
    return _apply(
        [
            _whole("--count", help="How many devices. [1]"),
            _whole("--tp", help="Tensor parallel. [what count leaves]"),
            _whole("--pp", help="Pipeline parallel. [1]"),
            _whole("--ep", help="Expert parallel. [1]"),
            _whole("--dp", help="Data parallel. [1]"),
        ]
    )(function)


def device_options(function: F) -> F:
    """The device by name or by hand, and how many."""
    named = click.option(
        "--device", "-d", metavar="NAME", help="Catalogue name, saved probe (.json), or 'local'."
    )
    return _apply([named, *by_hand_options(), layout_options])(function)


def size_option(name: str, *, help: str) -> Callable[[F], F]:
    """An option that takes a size in bytes."""
    return _option(name, parse=parse_bytes, metavar="SIZE", help=help)


def by_hand_options() -> list[Callable[[F], F]]:
    """A device given by its figures, or figures that replace a named device's."""
    return [
        _option(
            "--peak",
            parse=parse_flops_per_s,
            metavar="RATE",
            help="Dense peak by hand, e.g. 165TFLOP/s or 165e12.",
        ),
        _option(
            "--bandwidth", parse=parse_bandwidth, metavar="RATE", help="Memory bandwidth by hand, e.g. 1TB/s."
        ),
        _option("--memory", parse=parse_bytes, metavar="SIZE", help="Memory by hand, e.g. 24GB or 24GiB."),
    ]


def workload_options(*, batch: bool = True) -> Callable[[F], F]:
    """Lengths, and the engine whose memory rules apply."""
    decorators: list[Callable[[F], F]] = [
        _whole("--prompt", help=f"Prompt tokens per request. [{DEFAULT_PROMPT}]"),
        _whole("--output", help=f"Output tokens per request. [{DEFAULT_OUTPUT}]"),
        click.option(
            "--engine",
            metavar="NAME",
            help="Memory rules: none, rooflens, vllm, sglang, llama.cpp, ollama. [none]",
        ),
        click.option("--engine-version", metavar="VERSION", help="Of that engine, where rules changed."),
        _whole("--max-model-len", help="Longest sequence the engine accepts."),
        _whole("--max-batched-tokens", help="Token budget of one engine step."),
        _whole("--max-sequences", help="Sequences the engine runs at once."),
        click.option(
            "--memory-utilization", "--gpu-memory-utilization", type=float, help="Share of memory to use."
        ),
        click.option(
            "--swa-full", is_flag=True, help="llama.cpp: full-length cache for windowed layers too."
        ),
    ]
    if batch:
        decorators.insert(0, _whole("--batch", "-b", help="Sequences. [1]"))
    return _apply(decorators)


def context_option(function: F) -> F:
    """Tokens already held by each sequence."""
    return _whole("--context", "-c", least=0, help="Tokens held per sequence. [prompt + output]")(function)


def output_options(*formats: str) -> Callable[[F], F]:
    """--json, -o FILE, --lang."""
    decorators: list[Callable[[F], F]] = [
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
    ]
    if formats:
        decorators.append(
            click.option("-o", "--out", metavar="FILE", help=f"Write a file instead: {', '.join(formats)}.")
        )
    decorators.append(
        click.option("--lang", type=click.Choice(["en", "zh"]), help="Language of the text. [from locale]")
    )
    return _apply(decorators)


_FREE_FORM = ("params", "active_params", "kv_bytes_per_token", "weights_bytes")


def take_optional_model(options: dict[str, Any]) -> str | ModelSpec | None:
    """MODEL, or the free-form model of --params, or None; removes their options from ``options``."""
    name = options.pop("model")
    free = {key: value for key in _FREE_FORM if (value := options.pop(key)) is not None}
    if "params" not in free:
        if free:
            option = f"--{next(iter(free)).replace('_', '-')}"
            raise InputError(f"{option} needs --params", next="give --params, the number of parameters")
        return None if name is None else str(name)
    if name is not None:
        raise InputError("both MODEL and --params are given", value=name, next="leave one of them out")
    from rooflens.api import dense

    return dense(**free)


def take_model(options: dict[str, Any]) -> str | ModelSpec:
    """The same, where a model is required."""
    model = take_optional_model(options)
    if model is None:
        raise InputError(
            "no model is given", allowed="MODEL (a bundled name, Hub id, directory or file) or --params"
        )
    return model


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; the API has the defaults. ``count`` follows from tp, pp and dp."""
    settings = {name: value for name, value in options.items() if value is not None}
    if "count" not in settings:
        settings["count"] = settings.get("tp", 1) * settings.get("pp", 1) * settings.get("dp", 1)
    return settings
