"""The roofline: both roofs, the ridge, the two regimes, and where the work lies under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflens.analysis.points import RooflineView
from rooflens.report.charts.roofline_canvas import HEIGHT, WIDTH, RooflineCanvas
from rooflens.report.charts.roofline_points import draw_points, reserve_points
from rooflens.report.charts.roofline_roofs import draw_caches, draw_regions, draw_ridge, draw_roofs, draw_spec
from rooflens.report.charts.theme import DARK, LIGHT, Theme, finish
from rooflens.report.rooflines import ChartPoint, view_points
from rooflens.report.tables.roofline import roofline_title
from rooflens.report.words import Words
from rooflens.units import format_bandwidth, format_flops_per_s, format_rate


def roofline_chart(
    view: RooflineView,
    points: Sequence[ChartPoint],
    say: Words,
    *,
    dark: bool = False,
    caches: bool = True,
    title: str | None = None,
) -> Any:
    """An Altair chart of a device's roofs and the points under them.

    ``caches`` draws the faster levels as dashed roofs; ``title`` replaces the device's name. Raises
    DependencyError without the extra ``plot``.
    """
    theme = DARK if dark else LIGHT
    panel, subtitle = roofline_panel(view, points, say, theme, caches=caches)
    head = title or roofline_title(view, say)
    return finish(panel, theme, head, *subtitle)


def view_chart(view: RooflineView, say: Words, *, dark: bool = False) -> Any:
    """The chart of a view with the points that it has itself."""
    return roofline_chart(view, view_points(view, say), say, dark=dark)


def roofline_panel(
    view: RooflineView, points: Sequence[ChartPoint], say: Words, theme: Theme, *, caches: bool = True
) -> tuple[Any, list[str]]:
    """The chart without title and configuration, and the lines that explain it."""
    canvas = RooflineCanvas(view, points, say, theme, caches)
    draw_regions(canvas)
    reserve_points(canvas)
    draw_caches(canvas)
    draw_spec(canvas)
    draw_roofs(canvas)
    draw_ridge(canvas)
    draw_points(canvas)
    explained = [
        say(
            "chart.roofline.roofs",
            peak=format_flops_per_s(canvas.peak),
            dtype=view.compute_dtype,
            bandwidth=format_bandwidth(canvas.bandwidth),
            ridge=format_rate(canvas.ridge),
        )
    ]
    if canvas.spec is not None:
        peak, bandwidth = canvas.spec
        explained.append(
            say("chart.spec", peak=format_flops_per_s(peak), bandwidth=format_bandwidth(bandwidth))
        )
    if any(point.low_flops_per_s for point in points):
        explained.append(say("chart.roofline.legend"))
    return canvas.alt.layer(*canvas.layers).properties(width=WIDTH, height=HEIGHT), explained
