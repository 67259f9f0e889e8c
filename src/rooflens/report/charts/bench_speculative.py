"""Speculative decoding as a chart: gain over the number of guesses, measured and predicted."""

from __future__ import annotations

from typing import Any

from rooflens.report.charts.theme import BLUE, GREY, ORANGE, require_altair
from rooflens.report.words import Words

_WIDTH, _HEIGHT = 290, 240


def speculative_chart(points: list[dict[str, Any]], say: Words) -> Any:
    """A panel for each kind of prompts and batch; a rule where guesses gain nothing."""
    alt = require_altair()
    names = {say("chart.measured"): ORANGE, say("chart.predicted"): BLUE}
    color = alt.Color("line:N", scale=alt.Scale(domain=list(names), range=list(names.values())), title=None)
    highest = max(
        (point[field] or 0 for point in points for field in ("gain_p90", "gain_predicted")), default=1
    )
    y_axis = alt.Y(
        "gain:Q",
        scale=alt.Scale(domain=[0, 1.05 * max(1.0, highest)]),
        axis=alt.Axis(title=say("chart.gain")),
    )
    panels = []
    for text, batch in dict.fromkeys((point["text"], point["batch"]) for point in points):
        own = [point for point in points if (point["text"], point["batch"]) == (text, batch)]
        x_axis = alt.X(
            "guesses:Q",
            scale=alt.Scale(zero=False, padding=16, nice=False),
            axis=alt.Axis(title=say("chart.guesses"), values=sorted({point["guesses"] for point in own})),
        )
        rows = [
            {"guesses": point["guesses"], "gain": point[field], "line": line}
            for point in own
            for field, line in zip(("gain", "gain_predicted"), names, strict=True)
            if point[field] is not None
        ]
        spreads = [
            {"guesses": point["guesses"], "gain": point["gain_p10"], "high": point["gain_p90"]}
            | {"line": say("chart.measured")}
            for point in own
        ]
        rule = alt.Chart(alt.Data(values=[{"gain": 1}])).mark_rule(color=GREY).encode(y=y_axis)
        lines = alt.Chart(alt.Data(values=rows)).mark_line(point=True)
        bars = alt.Chart(alt.Data(values=spreads)).mark_rule(strokeWidth=2)
        title = say("chart.text", text=say(f"text.{text}"), batch=batch)
        panels.append(
            alt.layer(
                rule,
                bars.encode(x=x_axis, y=y_axis, y2="high:Q", color=color),
                lines.encode(x=x_axis, y=y_axis, color=color),
            ).properties(width=_WIDTH, height=_HEIGHT, title=title)
        )
    return alt.concat(*panels, columns=2, spacing=24)
