"""Charts that only the lessons need, in the colours and fonts of the product's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rooflens.hardware import Device
from rooflens.report.charts.theme import DARK, LABEL_SIZE, LIGHT, Theme, finish, require_altair
from rooflens.report.words import Words
from rooflens.units import format_bandwidth, format_bytes, format_rate

WIDTH = 760
Drawing = Callable[[Words, bool], Any]

_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4]]

_TEXT = {
    "en": {
        "pyramid": "The smaller, the faster",
        "pyramid.sub": "Size and bandwidth of each level, both on logarithmic scales",
        "size": "size of the level",
        "bandwidth": "bandwidth",
        "weights": "the model's weights",
        "cliff": "Time to read {what} once",
    },
    "zh": {
        "pyramid": "越小越快",
        "pyramid.sub": "各级存储的容量与带宽，两轴均为对数刻度",
        "size": "该级容量",
        "bandwidth": "带宽",
        "weights": "模型权重",
        "cliff": "把{what}读一遍所需的时间",
    },
}


def pyramid(device: Device, *, weights_bytes: float, model: str) -> Drawing:
    """Levels of a device as points of size and bandwidth, and a line at the size of a model's weights."""

    def draw(say: Words, dark: bool) -> Any:
        alt, theme, words = require_altair(), DARK if dark else LIGHT, _TEXT[say.language]
        rows = [
            {
                "size": level.bytes,
                "rate": level.bandwidth_bytes_per_s,
                "name": say.term("level", level.name),
                "said": f"{format_bytes(level.bytes)} · {format_bandwidth(level.bandwidth_bytes_per_s)}",
            }
            for level in device.memory_levels()
            if level.bytes and level.bandwidth_bytes_per_s
        ]
        x = alt.X(
            "size:Q", title=words["size"], scale=alt.Scale(type="log", domain=[1e7, 1e12]), axis=_si("B")
        )
        y = alt.Y(
            "rate:Q",
            title=words["bandwidth"],
            scale=alt.Scale(type="log", domain=[1e12, 4e13]),
            axis=_si("B/s"),
        )
        base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
        line = alt.Chart(alt.Data(values=[{"size": weights_bytes, "name": f"{words['weights']} ({model})"}]))
        layers = [
            line.mark_rule(color=theme.compute, strokeDash=[6, 4], strokeWidth=2).encode(x=x),
            line.mark_text(color=theme.compute, align="left", dx=8, fontSize=LABEL_SIZE).encode(
                x=x, y=alt.value(12), text="name:N"
            ),
            base.mark_line(color=theme.outline, strokeDash=[2, 3]),
            base.mark_point(color=theme.memory, filled=True, size=160, opacity=1),
            base.mark_text(dy=-18, dx=12, align="left", color=theme.text, fontWeight="bold").encode(
                text="name:N"
            ),
            base.mark_text(dy=-3, dx=12, align="left", color=theme.quiet).encode(text="said:N"),
        ]
        chart = alt.layer(*layers).properties(width=WIDTH, height=300)
        return finish(chart, theme, f"{device.name}: {words['pyramid']}", words["pyramid.sub"])

    return draw


def bars(
    rows: Sequence[tuple[str, Mapping[str, float]]],
    *,
    title: str,
    unit: str,
    text: Callable[[float], str] = format_rate,
    note: str = "",
    colors: Sequence[str] = ("memory", "compute", "good", "communication"),
) -> Drawing:
    """Horizontal bars: a name and one or more named values each, side by side, each with its figure."""

    def draw(say: Words, dark: bool) -> Any:
        alt, theme = require_altair(), DARK if dark else LIGHT
        data = [
            {"row": name, "series": series, "value": value, "said": text(value)}
            for name, values in rows
            for series, value in values.items()
        ]
        series = list(dict.fromkeys(row["series"] for row in data))
        highest = max(value for _, values in rows for value in values.values())
        base = alt.Chart(alt.Data(values=data)).encode(
            y=alt.Y("row:N", sort=[name for name, _ in rows], title=None, axis=_names(theme)),
            yOffset=alt.YOffset("series:N", sort=series),
            x=alt.X("value:Q", title=unit, scale=alt.Scale(domain=[0, highest * 1.18], nice=False)),
        )
        scale = alt.Scale(domain=series, range=[getattr(theme, name) for name in colors[: len(series)]])
        legend = alt.Legend(title=None) if len(series) > 1 else None
        layers = [
            base.mark_bar().encode(color=alt.Color("series:N", scale=scale, legend=legend)),
            base.mark_text(align="left", dx=6, color=theme.text).encode(text="said:N"),
        ]
        height = 26 * len(data) + 14 * len(rows)
        return finish(alt.layer(*layers).properties(width=WIDTH, height=height), theme, title, note)

    return draw


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    note: str = "",
    log_x: bool = True,
    log_y: bool = True,
    marks: Mapping[str, float] | None = None,
) -> Drawing:
    """Named lines over one axis, their names at their ends, and upright marks with words."""

    def draw(say: Words, dark: bool) -> Any:
        alt, theme = require_altair(), DARK if dark else LIGHT
        data = [{"series": name, "x": a, "y": b} for name, points in lines.items() for a, b in points]
        ends = [{"series": name, "x": points[-1][0], "y": points[-1][1]} for name, points in lines.items()]
        shades = [theme.memory, theme.compute, theme.good, theme.communication, theme.text]
        color = alt.Color(
            "series:N", legend=None, scale=alt.Scale(domain=list(lines), range=shades[: len(lines)])
        )
        at_x = alt.X(
            "x:Q", title=x, scale=alt.Scale(type="log" if log_x else "linear", nice=False), axis=_plain()
        )
        at_y = alt.Y("y:Q", title=y, scale=alt.Scale(type="log" if log_y else "linear"), axis=_plain())
        dash = alt.StrokeDash(
            "series:N",
            legend=None,
            scale=alt.Scale(domain=list(lines), range=[[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4]]),
        )
        layers = [
            alt.Chart(alt.Data(values=data))
            .mark_line(strokeWidth=2.5)
            .encode(x=at_x, y=at_y, color=color, strokeDash=dash),
            alt.Chart(alt.Data(values=ends))
            .mark_text(align="left", dx=7, fontWeight="bold")
            .encode(x=at_x, y=at_y, color=color, text="series:N"),
        ]
        if marks:
            rules = alt.Chart(alt.Data(values=[{"x": at, "name": name} for name, at in marks.items()]))
            layers += [
                rules.mark_rule(color=theme.quiet, strokeDash=[4, 4]).encode(x=at_x),
                rules.mark_text(align="left", dx=5, color=theme.quiet).encode(
                    x=at_x, y=alt.value(8), text="name:N"
                ),
            ]
        return finish(alt.layer(*layers).properties(width=WIDTH - 130, height=320), theme, title, note)

    return draw


def _names(theme: Theme) -> Any:
    return require_altair().Axis(
        labelFontSize=LABEL_SIZE, labelColor=theme.text, labelLimit=260, ticks=False, domain=False
    )


def _si(unit: str) -> Any:
    """Ticks at powers of ten with decimal prefixes."""
    said = f"replace(replace(format(datum.value, '.0s'), /[kMGTP]/, ' $&'), /[0-9]$/, '$& ') + '{unit}'"
    return require_altair().Axis(labelExpr=said, values=[10**n for n in range(6, 16)])


def _plain() -> Any:
    return require_altair().Axis(format=",~g")
