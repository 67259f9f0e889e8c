"""The fixed parts of a roofline chart: the two regimes, the roofs with their names, the ridge."""

from __future__ import annotations

import math

from rooflens.report.charts.geometry import Box, Point, hatch, line_boxes, text_width
from rooflens.report.charts.roofline_canvas import HEIGHT, WIDTH, RooflineCanvas
from rooflens.report.charts.theme import LABEL_SIZE, SMALL_SIZE
from rooflens.units import format_bandwidth, format_flops_per_s, format_rate

_REGION_SIZE = 15
_HATCH_GAP = 13
_SHARES = (0.42, 0.34, 0.5, 0.26, 0.58, 0.18, 0.66, 0.74, 0.1, 0.82)  # places for a name along a roof


def draw_regions(canvas: RooflineCanvas) -> None:
    """Memory-bound: tinted and hatched. Compute-bound: tinted another way, not hatched. Both named."""
    x, y, theme = canvas.x, canvas.y, canvas.theme
    roof = [
        {"x": x.low, "y": canvas.attainable(x.low), "y2": y.low},
        {"x": canvas.ridge, "y": canvas.peak, "y2": y.low},
    ]
    flat = [{"x": value, "y": canvas.peak, "y2": y.low} for value in (canvas.ridge, x.high)]
    for rows, color in ((roof, theme.memory), (flat, theme.compute)):
        area = canvas.data(rows).mark_area(color=color, opacity=0.09, line=False)
        canvas.layers.append(area.encode(**canvas.axes(), y2="y2:Q"))
    foot = float(HEIGHT)
    corners = [
        canvas.at(x.low, max(canvas.attainable(x.low), y.low)),
        canvas.at(canvas.ridge, canvas.peak),
        (x.pixel(canvas.ridge), foot),
        (0.0, foot),
    ]
    canvas.lines(list(hatch(corners, gap=_HATCH_GAP)), color=theme.memory, opacity=0.16, strokeWidth=1)
    middle = foot - 20
    ridge = x.pixel(canvas.ridge)
    for key, center, color in (
        ("limited.memory", ridge * 0.62, theme.memory),
        ("limited.compute", (ridge + WIDTH) / 2, theme.compute),
    ):
        name = canvas.say(key)
        room = text_width(name, _REGION_SIZE) / 2
        canvas.words(
            [((center, middle), name)], color=color, fontSize=_REGION_SIZE, fontWeight="bold", opacity=0.9
        )
        canvas.taken.append(Box(center - room - 4, middle - 12, center + room + 4, middle + 12))


def draw_roofs(canvas: RooflineCanvas) -> None:
    """The sloped and the flat roof with their names along them."""
    theme, say = canvas.theme, canvas.say
    start = canvas.at(canvas.x.low, canvas.attainable(canvas.x.low))
    top = canvas.at(canvas.ridge, canvas.peak)
    end = canvas.at(canvas.x.high, canvas.peak)
    canvas.lines([(start, top)], color=theme.memory, strokeWidth=3.5, strokeCap="round")
    canvas.lines([(top, end)], color=theme.compute, strokeWidth=3.5, strokeCap="round")
    canvas.taken += line_boxes((start, top)) + line_boxes((top, end))
    name = say("level.device memory")
    _along(canvas, f"{name} {format_bandwidth(canvas.bandwidth)}", canvas.bandwidth, theme.memory, bold=True)
    peak = say("roofline.peak", dtype=canvas.view.compute_dtype)
    text = f"{peak} {format_flops_per_s(canvas.peak)}"
    spot = (WIDTH - 6.0, top[1] - 9)
    canvas.words([(spot, text)], color=theme.compute, align="right", baseline="bottom", fontWeight="bold")
    canvas.taken.append(Box(spot[0] - text_width(text, LABEL_SIZE), spot[1] - 16, spot[0], spot[1]))


def draw_spec(canvas: RooflineCanvas) -> None:
    """The vendor's roofs behind measured ones, thin and dotted; the subtitle has their figures."""
    if canvas.spec is None:
        return
    peak, bandwidth = canvas.spec
    theme, ridge = canvas.theme, peak / bandwidth
    corner = canvas.at(min(ridge, canvas.x.high), min(peak, canvas.x.high * bandwidth))
    style = {"strokeWidth": 1.6, "strokeDash": [2, 3]}
    canvas.lines([(canvas.at(canvas.x.low, canvas.x.low * bandwidth), corner)], color=theme.memory, **style)
    end = canvas.at(canvas.x.high, peak)
    canvas.lines([(corner, end)], color=theme.compute, **style)
    canvas.taken += line_boxes((corner, end), thickness=2)


def draw_caches(canvas: RooflineCanvas) -> None:
    """The faster levels as dashed roofs: what data that stays on chip could reach."""
    for name, bandwidth in canvas.caches:
        low = max(canvas.x.low, canvas.y.low / bandwidth)
        start, top = canvas.at(low, low * bandwidth), canvas.at(canvas.peak / bandwidth, canvas.peak)
        if top[0] - start[0] < 40:
            continue
        canvas.lines([(start, top)], color=canvas.theme.outline, strokeWidth=1.3, strokeDash=[6, 4])
        canvas.taken += line_boxes((start, top), thickness=2)
        label = f"{canvas.say.term('level', name)} {format_bandwidth(bandwidth)}"
        _along(canvas, label, bandwidth, canvas.theme.quiet, bold=False)


def _along(canvas: RooflineCanvas, text: str, bandwidth: float, color: str, *, bold: bool) -> None:
    """A roof's name along its slope, just above it, in the lower half."""
    tilt = math.atan2(-canvas.y.pixels_per_decade, canvas.x.pixels_per_decade)
    low = max(canvas.x.low, canvas.y.low / bandwidth)
    start, top = canvas.at(low, low * bandwidth), canvas.at(canvas.peak / bandwidth, canvas.peak)
    size = LABEL_SIZE if bold else SMALL_SIZE
    room = text_width(text, size) * 0.5
    length = math.hypot(top[0] - start[0], top[1] - start[1])
    lift = 6 + size / 2
    reach = (room * math.cos(tilt), room * math.sin(tilt))

    def band(share: float) -> tuple[Point, list[Box]]:
        """Where the text would be, and the room it takes."""
        x = start[0] + (top[0] - start[0]) * share - lift * math.sin(tilt)
        y = start[1] + (top[1] - start[1]) * share - lift * math.cos(tilt)
        ends = (x - reach[0], y + reach[1]), (x + reach[0], y - reach[1])
        return (x, y), line_boxes(ends, thickness=size + 2)

    margin = (room + 8) / length
    shares = [share for share in _SHARES if margin <= share <= 1 - margin] or [0.5]
    share = min(shares, key=lambda s: sum(b.overlap(t) for b in band(s)[1] for t in canvas.taken))
    (x, y), room_taken = band(share)
    canvas.words(
        [((x, y), text)],
        color=color,
        angle=360 - math.degrees(tilt),
        fontSize=size,
        baseline="middle",
        fontWeight="bold" if bold else "normal",
    )
    canvas.taken += room_taken


def draw_ridge(canvas: RooflineCanvas) -> None:
    """The ridge point, a dashed line down from it, and its intensity."""
    theme = canvas.theme
    top = canvas.at(canvas.ridge, canvas.peak)
    canvas.lines([(top, (top[0], float(HEIGHT)))], color=theme.text, strokeWidth=1.2, strokeDash=[3, 3])
    dot = [{"x": canvas.ridge, "y": canvas.peak}]
    mark = {"shape": "circle", "size": 90, "filled": True, "fill": theme.background, "opacity": 1}
    canvas.layers.append(
        canvas.data(dot)
        .mark_point(stroke=theme.text, strokeWidth=2, **mark)
        .encode(**canvas.axes())
        .properties(name="ridge")
    )
    text = canvas.say("chart.ridge", ridge=format_rate(canvas.ridge))
    canvas.words([((top[0], top[1] - 12), text)], color=theme.text, baseline="bottom", fontWeight="bold")
    room = text_width(text, LABEL_SIZE) / 2
    canvas.taken.append(Box(top[0] - room, top[1] - 30, top[0] + room, top[1] - 10))
    canvas.taken += line_boxes((top, (top[0], float(HEIGHT))), thickness=2)
