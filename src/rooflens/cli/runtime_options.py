"""Options of the commands that run a model, and how a model is opened from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rooflens.cli.options import whole_number
from rooflens.errors import DependencyError, InputError, RooflensError

if TYPE_CHECKING:
    from rooflens.hardware import Device
    from rooflens.models.spec import ModelSpec
    from rooflens.runtime.backend import NativeBackend
    from rooflens.runtime.open_model import OpenedModel
    from rooflens.runtime.tokenizer import Tokenizer

F = TypeVar("F", bound=Callable[..., Any])

_BACKEND_OPTIONS = ("device", "dtype", "weights", "kv_dtype", "kv_tokens", "context", "kernels")


def whole_option(name: str, *, least: int = 1, help: str, **settings: Any) -> Callable[[F], F]:
    """An option that takes a whole number from ``least``."""
    parse = partial(whole_number, field=name, least=least)

    def convert(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    return click.option(name, metavar="N", callback=convert, type=click.UNPROCESSED, help=help, **settings)


def runtime_options(function: F) -> F:
    """MODEL, how it is held, and where it runs."""
    decorators: list[Callable[[F], F]] = [
        click.argument("model"),
        click.option(
            "--random-weights", is_flag=True, help="Random numbers in the shape of MODEL: speed, no sense."
        ),
        click.option("--device", "-d", metavar="NAME", help="cpu, cuda, cuda:1, mps. [the best there is]"),
        click.option("--dtype", metavar="TYPE", help="fp32, bf16 or fp16. [as stored, where it is fast]"),
        click.option(
            "--weights",
            "-w",
            metavar="FORMAT",
            help="Hold linears as int8, int4, int8-channel, int4-symmetric, or stored: as a GGUF file has "
            "them. [stored; with --dtype in that]",
        ),
        click.option("--kv-dtype", metavar="TYPE", help="KV cache: fp32, bf16, fp16 or int8. [--dtype]"),
        whole_option("--kv-tokens", help="Tokens that the KV cache holds, all sequences together."),
        whole_option("--context", help="Longest sequence, prompt and answer. [the model's]"),
        click.option("--kernels", metavar="NAME", help="eager, cpu, native or cuda. [the device's]"),
        whole_option("--threads", help="CPU threads. [one for each core, see doctor]"),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def require_runtime(*more: str, extra: str = "runtime") -> None:
    """Raise DependencyError naming the extra for the first library that is not installed."""
    from importlib.util import find_spec

    for name in ("torch", "tokenizers", "jinja2", "safetensors", "gguf", *more):
        if find_spec(name) is None:
            raise DependencyError(
                f"this needs {name}, which is not installed",
                next=f"install it with: pip install 'rooflens[{extra}]'",
            )


@dataclass(frozen=True)
class ChosenModel:
    """What ``runtime_options`` name, described and not loaded: requests can be refused before any work.

    ``opened``: the checkpoint, None for random weights in the shape of ``spec``.
    """

    spec: ModelSpec
    opened: OpenedModel | None
    threads: int | None
    settings: dict[str, Any]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The checkpoint's tokenizer; None where it has none."""
        return None if self.opened is None else self.opened.tokenizer

    def check(self, *, prompt_tokens: int, max_tokens: int) -> None:
        """Refuse what will not fit the context or the KV cache, with both numbers. Raises CapacityError."""
        from rooflens.analysis.engines.native import BLOCK_TOKENS
        from rooflens.runtime.backend import resolve_context, resolve_kv_blocks
        from rooflens.runtime.engine.step import check_fits

        context = resolve_context(self.spec, self.settings["context"])
        blocks = resolve_kv_blocks(self.settings["kv_tokens"], context=context)
        check_fits(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            context=context,
            pool_tokens=blocks * BLOCK_TOKENS,
        )

    def load(self) -> NativeBackend:
        """Read the weights. Raises a RooflensError for what cannot be loaded."""
        from rooflens.runtime.backend import NativeBackend
        from rooflens.runtime.native.threads import ask_for

        if self.threads is not None:
            ask_for(self.threads)
        with waiting(f"loading {self.spec.name if self.opened is None else self.opened.name}"):
            if self.opened is None:
                return NativeBackend.from_random(self.spec, **self.settings)
            return NativeBackend(self.opened, **self.settings)


def choose_model(options: dict[str, Any]) -> ChosenModel:
    """Read the description of the model that ``runtime_options`` name; takes these out of ``options``."""
    model, random_weights = options.pop("model"), options.pop("random_weights")
    threads = options.pop("threads")
    settings = {name: options.pop(name) for name in _BACKEND_OPTIONS}
    if random_weights:
        from rooflens.models.read import read_model

        return ChosenModel(read_model(model), None, threads, settings)
    from rooflens.runtime.open_model import open_model

    with waiting(f"opening {model}"):
        opened = open_model(model)
    return ChosenModel(opened.spec, opened, threads, settings)


def open_backend(options: dict[str, Any]) -> NativeBackend:
    """Load the model that ``runtime_options`` name; takes these options out of ``options``."""
    return choose_model(options).load()


def predicting_device(
    name: str | None, *, peak: float | None, bandwidth: float | None, memory: float | None
) -> Device | None:
    """The device that predictions are for; None where this machine was never measured and none is given."""
    from rooflens import api

    if name is None and (peak is not None or bandwidth is not None):
        return api.resolve_device(None, peak=peak, bandwidth=bandwidth, memory=memory)
    try:
        found = api.resolve_device(name or api.LOCAL, peak=peak, bandwidth=bandwidth, memory=memory)
    except RooflensError:
        if name is not None:
            raise
        return None
    return None if {"peak", "bandwidth"} & set(found.missing_figures()) else found


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """A spinner on standard error while something takes long; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


def read_text(path: str, *, option: str) -> str:
    """The text of a file, of standard input for ``-``. Raises InputError where it is not UTF-8."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError as error:
        raise InputError(
            f"{option} cannot be read", value=path, next=(error.strerror or str(error)).lower()
        ) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{option} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}",
            value=path,
            next="save the text as UTF-8",
        ) from None
