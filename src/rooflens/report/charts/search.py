"""A search: what each feasible configuration costs against how fast a token is, the best ones joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflens.analysis.search_result import Option, SearchResult
from rooflens.errors import InputError
from rooflens.report.charts.theme import DARK, LABEL_SIZE, LIGHT, Theme, finish, require_altair
from rooflens.report.tables.search import layout_text, pool_text, search_headline
from rooflens.report.words import Words
from rooflens.report.words_search import said, search_words
from rooflens.units import KILO, format_rate, format_seconds

_WIDTH, _HEIGHT, _LOW = 760, 420, 220
_APART, _TURN = 0.05, 0.55  # of the axes: how far labels are apart, and from where they stand to the left


def search_chart(result: SearchResult, say: Words, *, dark: bool = False) -> Any:
    """An Altair chart of the options. Raises InputError where nothing is feasible."""
    if not result.options:
        raise InputError("nothing to draw: no configuration meets the limits", next="loosen a limit")
    alt = require_altair()
    theme = DARK if dark else LIGHT
    words = search_words(say)
    priced = bool(result.prices)
    rows = [_row(option, priced, words) for option in result.options]
    cost = words("price") if priced else words("devices")
    currencies = {price.currency for _, price in result.prices}
    cost = f"{cost} [{currencies.pop()}]" if len(currencies) == 1 else cost
    panels = [
        _panel(rows, "tpot", f"{words('token')} [ms]", cost, words, theme, labelled=True),
        _panel(rows, "most", words("most.axis"), cost, words, theme, labelled=False),
    ]
    chart = alt.vconcat(*panels, spacing=18)
    source = priced_by(result) if priced else words("ranked.power")
    return finish(chart, theme, result.model, search_headline(result, words), source, words("rings"))


def _panel(
    rows: list[dict[str, Any]],
    field: str,
    title: str,
    cost: str,
    words: Words,
    theme: Theme,
    *,
    labelled: bool,
) -> Any:
    """What options cost against a figure, those that nothing cheaper beats joined by steps."""
    alt = require_altair()
    front = _front(rows, field, least=field == "tpot")
    x = alt.X("cost:Q", title=cost, scale=alt.Scale(zero=True, nice=True))
    y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=True, nice=True))
    tooltip = [
        alt.Tooltip("label:N", title=words("layout")),
        alt.Tooltip("tpot_said:N", title=words("token")),
        alt.Tooltip("ttft_said:N", title=words("first")),
        alt.Tooltip("rate:N", title=words("most")),
        alt.Tooltip("why:N", title=words("why")),
    ]
    every = alt.Chart(alt.Data(values=rows))
    best = alt.Chart(alt.Data(values=[row for row in rows if row["best"]]))
    device = alt.Color("device:N", title=words("devices"))
    points = every.mark_point(size=70, filled=True, opacity=0.75, tooltip=True).encode(
        x=x, y=y, color=device, shape=alt.Shape("device:N", title=words("devices")), tooltip=tooltip
    )
    rings = best.mark_point(size=190, color=theme.text, strokeWidth=1.4).encode(x=x, y=y, tooltip=tooltip)
    frontier = alt.Chart(alt.Data(values=front))
    steps = frontier.mark_line(interpolate="step-after", color=theme.quiet, strokeDash=[4, 3]).encode(
        x=x, y=y
    )
    labels = [
        alt.Chart(alt.Data(values=side))
        .mark_text(align=align, dx=shift, dy=drop, color=theme.text, fontSize=LABEL_SIZE)
        .encode(x=x, y=y, text="short:N")
        for align, shift, drop, side in (_label_sides(front, rows) if labelled else ())
    ]
    height = _HEIGHT if labelled else _LOW
    return alt.layer(steps, points, rings, *labels).properties(width=_WIDTH, height=height)


def _label_sides(
    front: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> Iterator[tuple[str, int, int, list[dict[str, Any]]]]:
    """Labels of the front that do not run into each other or out of the picture: (align, dx, dy, rows)."""
    widest, highest = (max(row[axis] for row in rows) for axis in ("cost", "tpot"))
    left: list[dict[str, Any]] = []
    right: list[dict[str, Any]] = []
    last = float("inf")
    for row in front:  # from the cheapest and slowest on
        if last - row["tpot"] < _APART * highest:
            continue
        last = row["tpot"]
        (left if row["cost"] < _TURN * widest else right).append(row)
    yield "left", 10, -9, left
    yield "right", 4, 18, right


def _devices(option: Option, words: Words, *, short: bool = False) -> str:
    split = len(option.pools) > 1
    cuts = ["" if short else f" ({layout_text(pool) or 'tp 1'})" for pool in option.pools]
    named = [pool_text(pool) + cut for pool, cut in zip(option.pools, cuts, strict=True)]
    roles = [f"{words(f'role.{pool.role}')} " if split else "" for pool in option.pools]
    return " + ".join(role + name for role, name in zip(roles, named, strict=True))


def _front(rows: list[dict[str, Any]], field: str, *, least: bool) -> list[dict[str, Any]]:
    """The points that are better than everything that costs no more, by cost."""
    sign = 1 if least else -1
    front: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["cost"], sign * row[field])):
        if not front or sign * row[field] < sign * front[-1][field]:
            front.append(row)
    return front


def priced_by(result: SearchResult) -> str:
    """Where the prices are from, in a line: each source once, with its dates."""
    dates: dict[str, set[str]] = {}
    for _, price in result.prices:
        dates.setdefault(price.provider or price.source, set()).add(price.date or "")
    return "; ".join(" ".join([name, *sorted(filter(None, days))]) for name, days in sorted(dates.items()))


def _row(option: Option, priced: bool, words: Words) -> dict[str, Any]:
    cost = option.price_per_hour if priced else float(option.devices)
    return {
        "device": " + ".join(dict.fromkeys(pool.device for pool in option.pools)),
        "cost": option.devices if cost is None else cost,
        "tpot": option.tpot_s * KILO,
        "most": option.max_rate_per_s,
        "label": f"{_devices(option, words)}, {option.weights}",
        "short": f"{_devices(option, words, short=True)}, {option.weights}",
        "tpot_said": format_seconds(option.tpot_s),
        "ttft_said": format_seconds(option.ttft_s),
        "rate": format_rate(option.max_rate_per_s),
        "why": "; ".join(said(reason, words) for reason in option.reasons),
        "best": option.pareto,
    }
