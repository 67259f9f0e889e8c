"""A sweep: tokens per second, the parts of a step, the knee and its cause, and where the memory is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflens.analysis.sweep import Sweep
from rooflens.report.charts.geometry import LogScale, even_ticks, spread
from rooflens.report.charts.theme import (
    DARK,
    LABEL_SIZE,
    LIGHT,
    ORANGE,
    SMALL_SIZE,
    Theme,
    finish,
    require_altair,
    ticks,
)
from rooflens.report.words import Words
from rooflens.units import format_rate, format_seconds

WIDTH = 680  # the names at the ends of the lines stand to the right of it
_RATE_HEIGHT, _TIME_HEIGHT = 230, 250
_MOST_POINTS = 400  # of a longer sweep an even choice is drawn
_MOST_LINES = 6  # values of the other axis that are drawn
_MOST_TICKS = 14
_TIME_SPAN = 10_000  # a part that takes less than this share of the step is left out


def sweep_chart(sweep: Sweep, say: Words, *, dark: bool = False) -> Any:
    """An Altair chart of a sweep along its axis. Raises DependencyError without the extra ``plot``."""
    theme = DARK if dark else LIGHT
    drawing = _Drawing(sweep, say, theme)
    from rooflens.report.tables.sweep import knee_sentence

    head = say("chart.sweep.title", model=sweep.model, device=sweep.device, axis=say(f"axis.{sweep.axis}"))
    return finish(drawing.panels(), theme, head, knee_sentence(sweep, say))


def sweep_lines(sweep: Sweep) -> dict[int, list[dict[str, Any]]]:
    """The points of each value of the other axis, in the order of the swept one."""
    other = "context" if sweep.axis == "batch" else "batch"
    names = list(sweep)
    lines: dict[int, list[dict[str, Any]]] = {}
    columns = [sweep[name].tolist() for name in names]
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        lines.setdefault(row[other], []).append(row)
    for rows in lines.values():
        rows.sort(key=lambda row: row[sweep.axis])
    return lines


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(rows) <= _MOST_POINTS:
        return rows
    step = (len(rows) - 1) / (_MOST_POINTS - 1)
    return [rows[round(number * step)] for number in range(_MOST_POINTS)]


class _Drawing:
    """Two panels over one axis."""

    def __init__(self, sweep: Sweep, say: Words, theme: Theme) -> None:
        self.alt = require_altair()
        self.sweep, self.say, self.theme = sweep, say, theme
        lines = sweep_lines(sweep)
        self.lines = {value: _thinned(rows) for value, rows in list(lines.items())[:_MOST_LINES]}
        self.first = next(iter(self.lines.values()))
        values = [row[sweep.axis] for row in self.first]
        # A sweep may start at context 0, which a logarithmic axis does not have.
        self.log = min(values) > 0 and max(values) > min(values)
        self.low, self.high = min(values), max(max(values), min(values) + 1)

    def data(self, rows: list[dict[str, Any]]) -> Any:
        """Rows as inline data."""
        return self.alt.Chart(self.alt.Data(values=rows))

    def x(self, *, title: bool) -> Any:
        """The swept axis; its values are its ticks where they are few."""
        alt, axis = self.alt, self.sweep.axis
        values = [row[axis] for row in self.first]
        if len(values) > _MOST_TICKS:
            scale = LogScale(self.low, self.high, 0, 1)
            values = scale.ticks() if self.log else even_ticks(self.high)
        shown = alt.Axis(values=values, format=",d", labels=title, labelOverlap=True)
        kind = alt.Scale(type="log" if self.log else "linear", domain=[self.low, self.high], nice=False)
        name = self.say(f"chart.axis.{axis}") if title else None
        return alt.X("x:Q", title=name, scale=kind, axis=shown)

    def y(self, scale: LogScale, title: str, text: Callable[[float], str]) -> Any:
        """A logarithmic value axis."""
        alt = self.alt
        domain = alt.Scale(type="log", domain=[scale.low, scale.high], nice=False)
        return alt.Y("y:Q", title=title, scale=domain, axis=alt.Axis(**ticks(scale.ticks(), text)))

    def panels(self) -> Any:
        """Rates above, times below."""
        return self.alt.vconcat(self.rates(), self.times(), spacing=14)

    def rates(self) -> Any:
        """Tokens per second of all sequences: a line per value of the other axis."""
        say, theme = self.say, self.theme
        values = [row["tokens_per_s"] for rows in self.lines.values() for row in rows]
        scale = LogScale(min(values) / 1.35, max(values) * 1.6, float(_RATE_HEIGHT), 0.0)
        place = {"x": self.x(title=False), "y": self.y(scale, say("chart.sweep.rate"), format_rate)}
        layers = [*self.full(place, scale, name=True), *self.knee(place, scale, name=True)]
        ends, many = [], len(self.lines) > 1
        other = "context" if self.sweep.axis == "batch" else "batch"
        for number, (value, rows) in enumerate(self.lines.items()):
            color = theme.memory if number == 0 else theme.quiet
            layers += self.curve(rows, "tokens_per_s", place, color, width=3 if number == 0 else 1.8)
            if many:
                name = say("chart.sweep.other", name=say(f"axis.{other}"), value=f"{value:,}")
                ends.append((scale.pixel(rows[-1]["tokens_per_s"]), name, color))
        layers += self.end_names(ends, scale, place)
        return self.alt.layer(*layers).properties(width=WIDTH, height=_RATE_HEIGHT, name="rates")

    def times(self) -> Any:
        """The parts of a step, and the bound over them, of the first value of the other axis."""
        say, theme = self.say, self.theme
        parts = [
            ("weights_s", "split.weights", theme.memory, [1, 0]),
            ("kv_s", "split.kv_cache", theme.good, [7, 3]),
            ("compute_s", "split.compute", theme.compute, [2, 3]),
            ("communication_s", "split.communication", theme.communication, [9, 3, 2, 3]),
        ]
        drawn = [part for part in parts if any(row[part[0]] > 0 for row in self.first)]
        columns = ["bound_s", *(part[0] for part in drawn)]
        axis = self.sweep.axis
        values = [row[name] for name in columns for row in self.first if row[name] > 0 and row[axis] > 0]
        lowest = max(min(values), max(values) / _TIME_SPAN)
        scale = LogScale(lowest / 1.3, max(values) * 1.6, float(_TIME_HEIGHT), 0.0)
        place = {"x": self.x(title=True), "y": self.y(scale, say("chart.sweep.time"), format_seconds)}
        layers = [*self.full(place, scale, name=False), *self.knee(place, scale, name=False)]
        layers += self.curve(self.first, "bound_s", place, theme.text, width=4, points=False, opacity=0.35)
        ends = [(scale.pixel(self.first[-1]["bound_s"]), say("chart.sweep.bound"), theme.text)]
        for name, key, color, dash in drawn:
            rows = [row for row in self.first if row[name] > scale.low]
            if not rows:
                continue
            layers += self.curve(rows, name, place, color, width=2.2, dash=dash)
            ends.append((scale.pixel(rows[-1][name]), say(key), color))
        layers += self.end_names(ends, scale, place)
        return self.alt.layer(*layers).properties(width=WIDTH, height=_TIME_HEIGHT, name="times")

    def curve(
        self,
        rows: list[dict[str, Any]],
        column: str,
        place: dict[str, Any],
        color: str,
        *,
        width: float,
        dash: list[int] | None = None,
        points: bool = True,
        opacity: float = 1.0,
    ) -> list[Any]:
        """A line, with its points where they are few."""
        data = self.data([{"x": row[self.sweep.axis], "y": row[column]} for row in rows])
        line = data.mark_line(
            color=color, strokeWidth=width, strokeDash=dash or [1, 0], opacity=opacity, clip=True
        )
        layers = [line.encode(**place)]
        if points and len(rows) <= 24:
            dots = data.mark_point(filled=True, color=color, size=34, opacity=1)
            tooltip = [
                self.alt.Tooltip("x:Q", title=self.say(f"axis.{self.sweep.axis}"), format=","),
                self.alt.Tooltip("y:Q", title=column, format=".4~g"),
            ]
            layers.append(dots.encode(**place, tooltip=tooltip))
        return layers

    def end_names(
        self, ends: list[tuple[float, str, str]], scale: LogScale, place: dict[str, Any]
    ) -> list[Any]:
        """Each line's name at its end, moved apart where they would touch."""
        pixels = spread([pixel for pixel, _, _ in ends], gap=LABEL_SIZE + 3)
        layers = []
        for pixel, (_, name, color) in zip(pixels, ends, strict=True):
            data = self.data([{"x": self.high, "y": scale.value(pixel), "text": name}])
            mark = data.mark_text(align="left", dx=10, color=color, fontSize=LABEL_SIZE, baseline="middle")
            layers.append(mark.encode(**place, text="text:N"))
        return layers

    def full(self, place: dict[str, Any], scale: LogScale, *, name: bool) -> list[Any]:
        """Where the memory is full: tinted, hatched and named."""
        axis, theme = self.sweep.axis, self.theme
        outside = [row[axis] for row in self.first if not row.get("fits", True)]
        if not outside:
            return []
        start = min(outside)
        area = self.data([{"x": start, "x2": self.high, "y": scale.low, "y2": scale.high}])
        tint = area.mark_rect(color=ORANGE, opacity=0.13).encode(**place, x2="x2:Q", y2="y2:Q")
        edge = area.mark_rule(color=theme.bad, strokeWidth=1.5, strokeDash=[6, 3])
        layers = [tint, edge.encode(x=place["x"], y=place["y"], y2="y2:Q")]
        if name:
            text = self.say("chart.sweep.full", value=f"{start:,}")
            spot = self.data([{"x": start, "y": scale.low, "text": text}])
            right = self._share(start) < 0.75
            mark = spot.mark_text(
                align="left" if right else "right",
                dx=6 if right else -6,
                dy=-8,
                baseline="bottom",
                color=theme.bad,
                fontWeight="bold",
            )
            # To the left it may cross the knee's line; to the right it lies on the tint alone.
            layers += [mark.encode(**place, text="text:N")] if right else self.over(mark, place)
        return layers

    def over(self, mark: Any, place: dict[str, Any]) -> list[Any]:
        """Words on top of lines, with the background shining through around them."""
        halo = mark.copy(deep=True)
        halo.mark.stroke, halo.mark.strokeWidth, halo.mark.strokeJoin = self.theme.background, 4, "round"
        return [halo.encode(**place, text="text:N"), mark.encode(**place, text="text:N")]

    def _share(self, value: float) -> float:
        """How far along the axis a value lies, 0 to 1."""
        if not self.log:
            return float((value - self.low) / (self.high - self.low))
        return float(LogScale(self.low, self.high, 0, 1).pixel(value))

    def knee(self, place: dict[str, Any], scale: LogScale, *, name: bool) -> list[Any]:
        """A dashed line at the knee, with its cause."""
        knee, theme = self.sweep.knee, self.theme
        if knee.value is None:
            return []
        mark = self.data([{"x": knee.value, "y": scale.low, "y2": scale.high}]).mark_rule(
            color=theme.text, strokeWidth=1.4, strokeDash=[3, 3]
        )
        layers = [mark.encode(**place, y2="y2:Q")]
        if name:
            text = self.say(
                "chart.sweep.knee", value=f"{knee.value:,}", cause=self.say(f"chart.cause.{knee.cause}")
            )
            left = self._share(knee.value) > 0.5
            spot = self.data([{"x": knee.value, "y": scale.high, "text": text}])
            words = spot.mark_text(
                align="right" if left else "left",
                dx=-6 if left else 6,
                dy=6,
                baseline="top",
                color=theme.text,
                fontWeight="bold",
                fontSize=SMALL_SIZE,
            )
            layers += self.over(words, place)
        return layers
