"""The work on a roofline chart: likely ranges, points with a shape for each kind, labels with leaders."""

from __future__ import annotations

import math
from typing import Any

from rooflens.report.charts.geometry import Box, Label, Point, Segment, place_all, text_box
from rooflens.report.charts.roofline_canvas import HEIGHT, WIDTH, RooflineCanvas
from rooflens.report.charts.theme import LABEL_SIZE, SMALL_SIZE
from rooflens.report.rooflines import ChartPoint
from rooflens.report.words import Words
from rooflens.units import format_flops_per_s, format_rate, format_share

_MOST_DETAILED = 6  # points with their figures in the label; more get their names only
_ANGLES_SLOPE = (35, 60, 10, 85, 110, -60, 215, 180)  # right and below first: the roof is above, to the left
_ANGLES_FLAT = (60, 90, 45, 120, 30, 135, -60, -90, -120)
_NEXT_TO = 12.5  # pixels from a point: a label any further away gets a leader line
_SHAPES = {"decode": "circle", "prefill": "square", "given": "diamond", "measured": "triangle-up"}


def reserve_points(canvas: RooflineCanvas) -> None:
    """Keep words off the points and their ranges, which are drawn last."""
    for point in canvas.points:
        x, y = canvas.at(point.intensity_flops_per_byte, point.flops_per_s)
        canvas.taken.append(Box(x - 8, y - 8, x + 8, y + 8))
        if point.low_flops_per_s is not None and point.high_flops_per_s is not None:
            high, low = canvas.y.pixel(point.high_flops_per_s), canvas.y.pixel(point.low_flops_per_s)
            canvas.taken += [Box(x - 1, y, x + 1, high), Box(x - 7, high - 3, x + 7, low + 3)]


def draw_points(canvas: RooflineCanvas) -> None:
    """All points; nothing where there are none."""
    if not canvas.points:
        return
    rows = [_row(canvas, point) for point in canvas.points]
    _draw_ranges(canvas, [row for row in rows if row["low"] is not None])
    _draw_labels(canvas)
    _draw_markers(canvas, rows)


def _colors(canvas: RooflineCanvas) -> dict[str, str]:
    theme = canvas.theme
    return {
        "decode": theme.memory,
        "prefill": theme.compute,
        "given": theme.quiet,
        "measured": theme.good,
    }


def _draw_ranges(canvas: RooflineCanvas, rows: list[dict[str, Any]]) -> None:
    """From low to high a bar, at the likely rate a tick."""
    if not rows:
        return
    alt, colors, title = canvas.alt, _colors(canvas), canvas.say("chart.rate")
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    color = alt.Color("kind:N", scale=scale, legend=None)
    stem = canvas.data(rows).mark_rule(strokeWidth=1, strokeDash=[2, 2])
    bar = canvas.data(rows).mark_rule(strokeWidth=5, opacity=0.45, strokeCap="round")
    low = {**canvas.axes(), "y": alt.Y("low:Q", title=title)}
    tick = canvas.data(rows).mark_tick(orient="horizontal", thickness=2, size=12)
    likely = {**canvas.axes(), "y": alt.Y("likely:Q", title=title)}
    canvas.layers += [
        stem.encode(**canvas.axes(), y2="high:Q", color=color),
        bar.encode(**low, y2="high:Q", color=color),
        tick.encode(**likely, color=color),
    ]


def _draw_markers(canvas: RooflineCanvas, rows: list[dict[str, Any]]) -> None:
    alt, say, colors = canvas.alt, canvas.say, _colors(canvas)
    shape = alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values()))
    color = alt.Scale(domain=list(colors), range=list(colors.values()))
    mark = canvas.data(rows).mark_point(
        filled=True, size=110, stroke=canvas.theme.background, strokeWidth=1.5, opacity=1
    )
    layer = mark.encode(
        **canvas.axes(),
        color=alt.Color("kind:N", scale=color, legend=None),
        shape=alt.Shape("kind:N", scale=shape, legend=None),
        tooltip=[
            alt.Tooltip("name:N", title=say("chart.point")),
            alt.Tooltip("intensity:N", title=say("chart.intensity")),
            alt.Tooltip("rate:N", title=say("roofline.attainable")),
            alt.Tooltip("share:N", title=say("roofline.share")),
            alt.Tooltip("range:N", title=say("evidence.estimate")),
        ],
    )
    canvas.layers.append(layer.properties(name="points"))


def _row(canvas: RooflineCanvas, point: ChartPoint) -> dict[str, Any]:
    low, high = point.low_flops_per_s, point.high_flops_per_s
    span = ""
    if low is not None and high is not None:
        span = canvas.say("range", low=format_flops_per_s(low), high=format_flops_per_s(high))
    return {
        "x": point.intensity_flops_per_byte,
        "y": point.flops_per_s,
        "kind": point.kind,
        "name": point_name(point, canvas.say),
        "low": low,
        "likely": point.likely_flops_per_s,
        "high": high,
        "intensity": format_rate(point.intensity_flops_per_byte),
        "rate": format_flops_per_s(point.flops_per_s),
        "share": format_share(point.flops_per_s / canvas.peak),
        "range": span,
    }


def point_name(point: ChartPoint, say: Words) -> str:
    """The phase and what tells it apart."""
    if point.kind == "given":
        return point.label or f"{format_rate(point.intensity_flops_per_byte)} FLOP/B"
    name = say(f"point.{point.kind}")
    return say("point.of", name=name, label=point.label) if point.label else name


def _draw_labels(canvas: RooflineCanvas) -> None:
    """A label beside every point, where it covers nothing; a leader line where it is not next to it."""
    area = Box(4, 4, WIDTH - 4, HEIGHT - 4)
    anchors = [canvas.at(p.intensity_flops_per_byte, p.flops_per_s) for p in canvas.points]
    detailed = len(canvas.points) <= _MOST_DETAILED
    texts = []
    wanted = []
    for anchor, point in zip(anchors, canvas.points, strict=True):
        share = format_share(point.flops_per_s / canvas.peak)
        figure = f"{format_flops_per_s(point.flops_per_s)} · {share}"
        lines = [point_name(point, canvas.say), figure] if detailed else [point_name(point, canvas.say)]
        room = text_box(lines, LABEL_SIZE, left=0, top=0)
        flat = point.intensity_flops_per_byte >= canvas.ridge
        texts.append(lines)
        wanted.append(Label((room.right, room.bottom), anchor, _ANGLES_FLAT if flat else _ANGLES_SLOPE))
    boxes = place_all(wanted, area, canvas.taken)
    names: dict[str, list[tuple[Point, str]]] = {"left": [], "right": []}
    figures: dict[str, list[tuple[Point, str]]] = {"left": [], "right": []}
    leaders: list[Segment] = []
    for anchor, lines, box in zip(anchors, texts, boxes, strict=True):
        # Words end at the leader line, on whichever side it comes from.
        side, x = ("right", box.right) if box.right < anchor[0] else ("left", box.left)
        names[side].append(((x, box.top), lines[0]))
        figures[side] += [((x, box.top + LABEL_SIZE * 1.25), line) for line in lines[1:]]
        touch = box.grown(2).nearest(anchor)
        if math.dist(touch, anchor) > _NEXT_TO:
            leaders.append((anchor, touch))
    if leaders:
        canvas.lines(leaders, color=canvas.theme.quiet, strokeWidth=1)
    for side in ("left", "right"):
        _write(canvas, names[side], align=side, fontWeight="bold")
        _write(canvas, figures[side], align=side, fontSize=SMALL_SIZE)


def _write(canvas: RooflineCanvas, spots: list[tuple[Point, str]], **style: Any) -> None:
    """Words with the background around them, so that lines behind them do not disturb."""
    if spots:
        theme = canvas.theme
        halo = {"stroke": theme.background, "strokeWidth": 3, "strokeJoin": "round", "strokeOpacity": 0.85}
        canvas.words(spots, baseline="top", **halo, **style)
        canvas.words(spots, baseline="top", color=theme.text, **style)
