"""What would make a plan fit: each remedy is found by counting it, not by rule of thumb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rooflens.analysis.ledger import Ledger, LedgerInput
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import RooflensError
from rooflens.models.formats.apply import apply_format

# Formats that engines commonly offer, from the mildest to the smallest.
_FORMATS = ("fp8", "int8-channel", "awq", "q4_k_m", "q2_k")
_COUNTS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Remedy:
    """One change that makes the plan fit, all else equal: ``kind`` is the option, ``value`` its setting."""

    kind: str
    value: str | int

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"change": self.kind, "value": self.value}


def find_remedies(given: LedgerInput, rules: Callable[[LedgerInput], Ledger]) -> tuple[Remedy, ...]:
    """Changes of one setting each that make ``given`` fit: batch, context, format, devices."""
    return tuple(_remedies(given, lambda changed: rules(changed).fits is True))


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest value from 1 to ``most`` that fits, if memory only grows with it."""
    if most < 1 or not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _remedies(given: LedgerInput, fits: Callable[[LedgerInput], bool]) -> Iterator[Remedy]:
    batch = _largest(given.batch - 1, lambda n: fits(replace(given, batch=n)))
    if batch is not None:
        yield Remedy("batch", batch)
    context = _largest(given.context - 1, lambda n: fits(_shorter(given, n)))
    if context is not None:
        yield Remedy("context", context)
    for name in _FORMATS:
        if _fits_after(partial(_in_format, given, name), fits):
            yield Remedy("weights", name)
            break
    for count in _COUNTS:
        layout = replace(given.layout, tp=given.layout.tp * count)
        if _fits_after(partial(_laid_out, given, layout), fits):
            yield Remedy("tp", layout.tp)
            break


def _fits_after(change: Callable[[], LedgerInput], fits: Callable[[LedgerInput], bool]) -> bool:
    """A change that the model's shapes or formats refuse is no remedy."""
    try:
        return fits(change())
    except RooflensError:
        return False


def _shorter(given: LedgerInput, context: int) -> LedgerInput:
    return replace(given, context=context, prompt=min(given.prompt, context))


def _laid_out(given: LedgerInput, layout: Layout) -> LedgerInput:
    return replace(given, layout=layout, stages=rank_specs(given.spec, layout))


def _in_format(given: LedgerInput, name: str) -> LedgerInput:
    spec = apply_format(given.spec, name)
    return replace(given, spec=spec, stages=rank_specs(spec, given.layout))
