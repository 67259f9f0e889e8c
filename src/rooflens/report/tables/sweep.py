"""What ``rooflens sweep`` prints: the curve as a table, and where it bends and why."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.sweep import Sweep
from rooflens.report.tables.layout import BAD, GOOD, KEY, QUIET, Head, legend, table
from rooflens.report.words import Words
from rooflens.units import format_bytes, format_rate, format_seconds

LONGEST = 40
"""Rows that are printed; of a longer sweep an even choice, the knee always among them."""


def sweep_report(sweep: Sweep, say: Words) -> RenderableType:
    """The knee in one sentence, then one line per point."""
    title = say("sweep.title", model=sweep.model, device=sweep.device)
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts += [Text(knee_sentence(sweep, say)), Text()]
    count = len(sweep["batch"])
    shown = shown_rows(count, _knee_rows(sweep))
    both = len(set(sweep["batch"].tolist())) > 1 and len(set(sweep["context"].tolist())) > 1
    axes = ["batch", "context"] if both else [sweep.axis]
    fits = "fits" in sweep
    heads = [
        *(Head(say(f"axis.{axis}"), number=True, style="bold") for axis in axes),
        Head(say("sweep.step"), number=True),
        Head(say("sweep.weights"), number=True),
        Head(say("sweep.kv"), number=True),
        Head(say("sweep.compute"), number=True),
        Head(say("sweep.tokens_per_s"), number=True),
        Head(say("sweep.per_sequence"), number=True),
        Head(say("sweep.memory"), number=True),
        Head(),
    ]
    knee = _knee_rows(sweep)
    rows = [_row(sweep, index, axes, say, fits=fits, knee=index in knee) for index in shown]
    parts.append(table(heads, rows))
    if len(shown) < count:
        text = say("sweep.shown", shown=f"{len(shown):,}", count=f"{count:,}")
        parts.append(Group(Text(), Text(text, style=QUIET)))
    parts.append(legend(say, {"exact", "bound"}))
    return Group(*parts)


def _row(
    sweep: Sweep, index: int, axes: list[str], say: Words, *, fits: bool, knee: bool
) -> tuple[RenderableType, ...]:
    def at(name: str) -> Any:
        return sweep[name][index].item()

    memory = Text(format_bytes(at("total_bytes")))
    if fits:
        memory.stylize(GOOD if at("fits") else BAD)
    remarks = [say("sweep.knee")] if knee else []
    if fits and not at("fits"):
        remarks.append(say("sweep.full"))
    return (
        *(f"{at(axis):,}" for axis in axes),
        format_seconds(at("bound_s")),
        format_seconds(at("weights_s")),
        format_seconds(at("kv_s")),
        format_seconds(at("compute_s")),
        Text(format_rate(at("tokens_per_s")), style=KEY),
        format_rate(at("tokens_per_s_per_sequence")),
        memory,
        Text(say("list_gap").join(remarks), style="bold" if knee else QUIET),
    )


def knee_sentence(sweep: Sweep, say: Words) -> str:
    """Where the curve bends and what causes it."""
    knee = sweep.knee
    axis = say(f"axis.{sweep.axis}")
    if knee.value is None:
        return say("knee.none", axis=axis)
    return say(f"knee.{knee.cause}", axis=axis, value=f"{knee.value:,}")


def _knee_rows(sweep: Sweep) -> set[int]:
    """The row of the knee, along the first value of the other axis."""
    if sweep.knee.value is None:
        return set()
    hits = (sweep[sweep.axis] == sweep.knee.value).nonzero()[0]
    return {int(hits[0])} if len(hits) else set()


def shown_rows(count: int, always: set[int]) -> list[int]:
    """Rows to print: all, or an even choice of LONGEST with the first, the last and ``always``."""
    if count <= LONGEST:
        return list(range(count))
    even = {round(step * (count - 1) / (LONGEST - 1)) for step in range(LONGEST)}
    return sorted(even | always)
