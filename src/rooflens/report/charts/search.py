"""A search: what each feasible configuration costs against how fast a token is, the best ones joined."""

from __future__ import annotations

from typing import Any

from rooflens.analysis.search_result import Option, SearchResult
from rooflens.errors import InputError
from rooflens.report.charts.theme import DARK, LABEL_SIZE, LIGHT, finish, require_altair
from rooflens.report.words import Words
from rooflens.report.words_search import search_words
from rooflens.units import KILO, format_rate, format_seconds

_WIDTH, _HEIGHT = 760, 420


def search_chart(result: SearchResult, say: Words, *, dark: bool = False) -> Any:
    """An Altair chart of the options. Raises InputError where nothing is feasible."""
    if not result.options:
        raise InputError("nothing to draw: no configuration meets the limits", next="loosen a limit")
    alt = require_altair()
    theme = DARK if dark else LIGHT
    words = search_words(say)
    priced = bool(result.prices)
    rows = [_row(option, priced) for option in result.options]
    front = _front(rows)
    x = alt.X("cost:Q", title=words("price" if priced else "devices"), scale=alt.Scale(zero=True, nice=True))
    y = alt.Y("tpot:Q", title=f"{words('token')} [ms]", scale=alt.Scale(zero=True, nice=True))
    tooltip = [
        alt.Tooltip("label:N", title=words("layout")),
        alt.Tooltip("tpot_said:N", title=words("token")),
        alt.Tooltip("ttft_said:N", title=words("first")),
        alt.Tooltip("rate:N", title=words("most")),
        alt.Tooltip("why:N", title=words("why")),
    ]
    every = alt.Chart(alt.Data(values=rows))
    best = alt.Chart(alt.Data(values=[row for row in rows if row["best"]]))
    points = every.mark_point(size=70, filled=True, opacity=0.75, tooltip=True).encode(
        x=x,
        y=y,
        color=alt.Color("device:N", title=words("devices")),
        shape=alt.Shape("device:N", title=words("devices")),
        tooltip=tooltip,
    )
    rings = best.mark_point(size=190, color=theme.text, strokeWidth=1.4).encode(x=x, y=y, tooltip=tooltip)
    frontier = alt.Chart(alt.Data(values=front))
    steps = frontier.mark_line(interpolate="step-after", color=theme.quiet, strokeDash=[4, 3]).encode(
        x=x, y=y
    )
    labels = frontier.mark_text(align="left", dx=10, dy=-8, color=theme.text, fontSize=LABEL_SIZE).encode(
        x=x, y=y, text="label:N"
    )
    chart = alt.layer(steps, points, rings, labels).properties(width=_WIDTH, height=_HEIGHT)
    goal = result.goal
    title = words(
        "title",
        feasible=f"{result.feasible:,}",
        tried=f"{result.tried:,}",
        rate=format_rate(goal.rate_per_s),
        model=result.model,
        prompt=f"{goal.requests.prompt:,}",
        output=f"{goal.requests.output:,}",
    )
    source = words("ranked.price", source=result.price_source or "") if priced else words("ranked.power")
    return finish(chart, theme, result.model, title, source, words("rings"))


def _front(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points that are faster than everything that costs no more, by cost."""
    front: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["cost"], row["tpot"])):
        if not front or row["tpot"] < front[-1]["tpot"]:
            front.append(row)
    return front


def _row(option: Option, priced: bool) -> dict[str, Any]:
    cost = option.price_per_hour if priced else float(option.devices)
    return {
        "device": option.device,
        "cost": option.devices if cost is None else cost,
        "tpot": option.tpot_s * KILO,
        "label": f"{option.devices} x {option.device}, {option.weights}, tp {option.tp}",
        "tpot_said": format_seconds(option.tpot_s),
        "ttft_said": format_seconds(option.ttft_s),
        "rate": format_rate(option.max_rate_per_s),
        "why": option.why,
        "best": option.pareto,
    }
