"""A comparison: the memory ledgers of all plans, and under them how fast each could decode."""

from __future__ import annotations

from typing import Any

from rooflens.analysis.compare import Comparison
from rooflens.analysis.plan import Plan
from rooflens.errors import InputError
from rooflens.report.charts.geometry import even_ticks
from rooflens.report.charts.memory import WIDTH, NamedLedger, memory_panel
from rooflens.report.charts.theme import (
    DARK,
    LABEL_SIZE,
    LIGHT,
    SMALL_SIZE,
    Theme,
    finish,
    require_altair,
    ticks,
    wrapped,
)
from rooflens.report.tables.compare import best_sentence, names
from rooflens.report.words import Words
from rooflens.units import format_rate

_ROW, _BAR = 34, 22
_LINE = 130  # characters of a subtitle


def compare_chart(comparison: Comparison, say: Words, *, dark: bool = False, title: str | None = None) -> Any:
    """An Altair chart of the plans that could be made. Raises InputError where there is none."""
    altair = require_altair()
    theme = DARK if dark else LIGHT
    name = names(comparison)
    plans = [(name(cell), cell.plan) for cell in comparison.cells if cell.plan is not None]
    if not plans:
        raise InputError("nothing to draw: none of these combinations can be planned")
    ledgers = [NamedLedger(label, plan.ledger) for label, plan in plans]
    panels = altair.vconcat(
        memory_panel(ledgers, say, theme), speed_panel(plans, say, theme), spacing=26
    ).resolve_scale(color="independent")
    head = title or plans[0][1].spec.name
    return finish(panels, theme, head, *wrapped(best_sentence(comparison, say), _LINE))


def speed_panel(plans: list[tuple[str, Plan]], say: Words, theme: Theme) -> Any:
    """A bar up to the limit of decode per plan, a darker band for the likely range, and the figure."""
    alt = require_altair()
    rows = [_row(label, plan, say) for label, plan in plans]
    longest = max(row["limit"] for row in rows)
    order = [label for label, _ in plans]
    x = alt.X(
        "limit:Q",
        title=say("chart.compare.rate"),
        scale=alt.Scale(domain=[0, longest * 1.25], nice=False),
        axis=alt.Axis(**ticks(even_ticks(longest * 1.25), format_rate)),
    )
    y = alt.Y(
        "name:N",
        sort=order,
        title=None,
        axis=alt.Axis(
            labelFontSize=LABEL_SIZE, labelColor=theme.text, labelLimit=220, ticks=False, domain=False
        ),
    )
    tooltip = [
        alt.Tooltip("name:N", title=say("chart.of")),
        alt.Tooltip("said:N", title=say("chart.compare.rate")),
        alt.Tooltip("range:N", title=say("evidence.estimate")),
    ]
    able = alt.Chart(alt.Data(values=[row for row in rows if row["fits"]]))
    unable = alt.Chart(alt.Data(values=[row for row in rows if not row["fits"]]))
    layers = [
        able.mark_bar(size=_BAR, color=theme.memory, opacity=0.3, tooltip=True).encode(
            x=x, y=y, tooltip=tooltip
        ),
        able.mark_bar(size=_BAR / 2.4, color=theme.memory).encode(
            x=alt.X("low:Q", title=say("chart.compare.rate")), x2="high:Q", y=y, tooltip=tooltip
        ),
        able.mark_tick(size=_BAR, thickness=3, color=theme.text).encode(x=x, y=y),
        able.mark_text(align="left", dx=8, color=theme.text, fontWeight="bold").encode(
            x=x, y=y, text="said:N"
        ),
        unable.mark_text(align="left", dx=4, color=theme.bad, fontSize=SMALL_SIZE).encode(
            x=alt.datum(0), y=y, text="said:N"
        ),
    ]
    height = _ROW * len(rows)
    return alt.layer(*layers).properties(
        width=WIDTH, height=height, title=alt.TitleParams(say("chart.compare.legend"), **_subhead(theme))
    )


def _subhead(theme: Theme) -> dict[str, Any]:
    return {"fontSize": LABEL_SIZE, "fontWeight": "normal", "color": theme.quiet, "offset": 8}


def _row(label: str, plan: Plan, say: Words) -> dict[str, Any]:
    decode = plan.decode
    fits = plan.fits is not False
    low, high = 1 / float(decode.estimate.high), 1 / float(decode.estimate.low)
    limit = 1 / decode.bound_s
    return {
        "name": label,
        "limit": limit,
        "low": low,
        "high": high,
        "fits": fits,
        "said": say("chart.compare.figure", rate=format_rate(limit)) if fits else say("chart.compare.no"),
        "range": say("range", low=format_rate(low), high=format_rate(high)),
    }
