"""The account of a step as a waterfall: from what nothing can beat to the clock, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflens.explain import Account
from rooflens.reading import Reading
from rooflens.report.charts.geometry import even_ticks
from rooflens.report.charts.theme import (
    DARK,
    GREY,
    LABEL_SIZE,
    LIGHT,
    SMALL_SIZE,
    Theme,
    finish,
    require_altair,
    ticks,
    wrapped,
)
from rooflens.report.tables.account import reading_sentence
from rooflens.report.words import Words
from rooflens.report.words_account import account_words
from rooflens.units import format_seconds, format_share

WIDTH = 620
_ROW, _BAR = 26, 16
_COLUMNS = 100  # of the sentence under the title
#: Rows below this share of the clock are one bar together.
_LEAST_SHARE = 0.005


def account_chart(
    accounts: Sequence[Account], reading: Reading | None, say: Words, *, model: str, dark: bool = False
) -> Any:
    """A panel for each phase; seconds from left to right, the roofline's part in the colour of memory.

    Raises DependencyError without the extra ``plot``.
    """
    alt, theme, own = require_altair(), DARK if dark else LIGHT, account_words(say)
    panels = [_panel(found, own, theme) for found in accounts]
    sentence = [] if reading is None else wrapped(reading_sentence(reading, own), _COLUMNS)
    return finish(alt.vconcat(*panels, spacing=22), theme, own("chart.title", model=model), *sentence)


def _panel(found: Account, say: Words, theme: Theme) -> Any:
    """One bar after the other, each where the last one ended; the clock as the last, whole one."""
    alt = require_altair()
    colors = {
        "roofline": theme.memory,
        "device": theme.compute,
        "host": theme.communication,
        "rest": GREY,
        "clock": theme.quiet,
    }
    rows = _bars(found, say)
    names = [row["name"] for row in rows]
    ends = [row[end] for row in rows for end in ("start", "end")]
    longest = max(ends)
    axis = alt.Axis(**ticks(even_ticks(longest), format_seconds), title=None)
    y = alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    # The words beside a bar need room after the longest one.
    x = alt.X("start:Q", scale=alt.Scale(domain=[min(ends), longest * 1.22], nice=False), axis=axis)
    base = alt.Chart(alt.Data(values=rows))
    fill = alt.Color(
        "group:N",
        scale=alt.Scale(domain=list(colors), range=list(colors.values())),
        legend=None,
    )
    bars = base.mark_bar(size=_BAR).encode(x=x, x2="end:Q", y=y, color=fill, tooltip=["name:N", "text:N"])
    text = base.mark_text(
        align="left", baseline="middle", dx=6, fontSize=SMALL_SIZE, color=theme.text
    ).encode(x=alt.X("right:Q"), y=y, text="text:N")
    bound = alt.Chart(alt.Data(values=[{"x": found.bound_s}]))
    rule = bound.mark_rule(color=theme.text, strokeDash=[4, 3]).encode(x="x:Q")
    title = alt.TitleParams(
        text=say("chart.phase", phase=say(f"phase.{found.phase}"), clock=format_seconds(found.clock_s)),
        subtitle=say("chart.bound", bound=format_seconds(found.bound_s), times=f"{found.times_bound:.2g}"),
        fontSize=LABEL_SIZE + 1,
        subtitleFontSize=SMALL_SIZE,
    )
    return alt.layer(bars, text, rule).properties(width=WIDTH, height=_ROW * len(rows), title=title)


def _bars(found: Account, say: Words) -> list[dict[str, Any]]:
    """Every row that shows, the small ones together, and the clock. A negative row goes back to the left."""
    shown = [part for part in found.rows if abs(part.share) >= _LEAST_SHARE and part.name != "unexplained"]
    parts = [(say(f"row.{part.name}"), part.group, part.seconds) for part in shown]
    unexplained_s = found.seconds("unexplained")
    small_s = found.clock_s - unexplained_s - sum(part.seconds for part in shown)
    parts += [(say("chart.small"), "host", small_s), (say("row.unexplained"), "rest", unexplained_s)]
    rows: list[dict[str, Any]] = []
    at = 0.0
    for name, group, seconds in parts:
        rows.append(_bar(name, group, at, at + seconds, found.clock_s))
        at += seconds
    rows.append(_bar(say("whole"), "clock", 0.0, found.clock_s, found.clock_s))
    return rows


def _bar(name: str, group: str, start: float, end: float, clock_s: float) -> dict[str, Any]:
    seconds = end - start
    return {
        "name": name,
        "group": group,
        "start": start,
        "end": end,
        "right": max(start, end),
        "text": f"{format_seconds(seconds)}  {format_share(seconds / clock_s)}",
    }
