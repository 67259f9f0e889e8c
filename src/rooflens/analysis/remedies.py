"""What would make a plan fit: each remedy is found by counting it, not by rule of thumb."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rooflens.analysis.ledger import LedgerInput, LedgerRules
from rooflens.analysis.parallelism import rank_specs
from rooflens.errors import RooflensError
from rooflens.models.formats.apply import apply_format
from rooflens.models.spec import ModelSpec

# Formats that an engine loads, from the mildest to the smallest.
_SERVED = ("fp8", "awq")
_GGUF = ("q8_0", "q4_k_m", "q2_k")
_FORMATS: dict[str, tuple[str, ...]] = {
    "none": ("fp8", "int8-channel", "awq", "q2_k"),
    "vllm": _SERVED,
    "sglang": _SERVED,
    "llama.cpp": _GGUF,
    "ollama": _GGUF,
    "rooflens": ("q8_0", "q4_k_m"),
}
_COUNTS = (2, 4, 8, 16, 32, 64)

Setting = tuple[str, str | int]
Fits = Callable[[LedgerInput], bool]


@dataclass(frozen=True)
class Remedy:
    """Settings that together make the plan fit, all else equal: option names and their values."""

    settings: tuple[Setting, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: option name to value."""
        return dict(self.settings)


def find_remedies(
    given: LedgerInput, rules: LedgerRules, *, engine: str, runs: Callable[[ModelSpec], bool]
) -> tuple[Remedy, ...]:
    """The smallest change of each kind that makes ``given`` fit: batch, context, format, devices.

    ``runs`` tells whether the device has the rates that a format needs. Where the longest sequence is
    the engine's to choose, a shorter one is tried alone and beside each format.
    """

    def fits(changed: LedgerInput) -> bool:
        return rules(changed).fits is True

    return tuple(Remedy(settings) for settings in _remedies(given, fits, _FORMATS[engine], runs))


def _remedies(
    given: LedgerInput, fits: Fits, formats: Sequence[str], runs: Callable[[ModelSpec], bool]
) -> Iterator[tuple[Setting, ...]]:
    batch = _largest(given.batch - 1, lambda n: fits(replace(given, batch=n)))
    if batch is not None:
        yield (("batch", batch),)
    context = _largest(given.context - 1, lambda n: fits(_shorter(given, n)))
    if context is not None:
        yield (("context", context),)
    length = _shorter_limit(given, fits)
    if length is not None:
        yield (("max_model_len", length),)
    yield from _other_format(given, fits, formats, runs)
    for count in _COUNTS:
        if _works(partial(_over_devices, given, count), fits):
            yield (("tp", given.layout.tp * count),)
            break


def _other_format(
    given: LedgerInput, fits: Fits, formats: Sequence[str], runs: Callable[[ModelSpec], bool]
) -> Iterator[tuple[Setting, ...]]:
    """The mildest format that is enough by itself; before it, one that is enough with a shorter limit."""
    shortened = False
    for name in formats:
        try:
            changed = _in_format(given, name)
        except RooflensError:
            continue
        if not runs(changed.spec):
            continue
        if fits(changed):
            yield (("weights", name),)
            return
        length = None if shortened else _shorter_limit(changed, fits)
        if length is not None:
            shortened = True
            yield (("weights", name), ("max_model_len", length))


def _largest(most: int, fits: Callable[[int], bool], *, least: int = 1) -> int | None:
    """The largest value from ``least`` to ``most`` that fits, if memory only grows with it."""
    if most < least or not fits(least):
        return None
    low, high = least, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _shorter_limit(given: LedgerInput, fits: Fits) -> int | None:
    """The longest max_model_len that fits, if that is shorter than now but holds the workload."""
    now = given.max_model_len or given.spec.max_context
    if now is None:
        return None
    return _largest(now - 1, lambda n: fits(replace(given, max_model_len=n)), least=max(1, given.context))


def _works(change: Callable[[], LedgerInput], fits: Fits) -> bool:
    """A change that the model's shapes refuse is no remedy."""
    try:
        return fits(change())
    except RooflensError:
        return False


def _shorter(given: LedgerInput, context: int) -> LedgerInput:
    return replace(given, context=context, prompt=min(given.prompt, context))


def _over_devices(given: LedgerInput, count: int) -> LedgerInput:
    layout = replace(given.layout, tp=given.layout.tp * count)
    return replace(given, layout=layout, stages=rank_specs(given.spec, layout))


def _in_format(given: LedgerInput, name: str) -> LedgerInput:
    spec = apply_format(given.spec, name)
    return replace(given, spec=spec, stages=rank_specs(spec, given.layout))
