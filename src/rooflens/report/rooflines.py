"""What a roofline chart shows, as data: points with their likely ranges, whatever they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rooflens.analysis.points import RooflinePoint, RooflineView
from rooflens.report.words import Words

PointKind = Literal["prefill", "decode", "given", "measured"]


@dataclass(frozen=True)
class ChartPoint:
    """A piece of work under the roof, per device: rates in FLOP/s.

    ``flops_per_s`` is the limit (for ``measured`` what the clock said); ``low`` to ``high`` is the likely
    range, None where there is no estimate. ``label`` follows the phase's name.
    """

    kind: PointKind
    intensity_flops_per_byte: float
    flops_per_s: float
    label: str = ""
    low_flops_per_s: float | None = None
    likely_flops_per_s: float | None = None
    high_flops_per_s: float | None = None


def view_points(view: RooflineView, say: Words) -> tuple[ChartPoint, ...]:
    """The points of a view: phases at their bounds, given intensities at the roof."""
    return tuple(_chart_point(point, say) for point in view.points)


def _chart_point(point: RooflinePoint, say: Words) -> ChartPoint:
    if point.phase is None or point.bound_flops_per_s is None:
        return ChartPoint("given", point.intensity_flops_per_byte, point.attainable_flops_per_s)
    likely = point.estimate_flops_per_s
    return ChartPoint(
        kind=point.phase.value,
        intensity_flops_per_byte=point.intensity_flops_per_byte,
        flops_per_s=point.bound_flops_per_s,
        label="" if point.batch is None else say("point.batch", batch=f"{point.batch:,}"),
        low_flops_per_s=None if likely is None else float(likely.low),
        likely_flops_per_s=None if likely is None else float(likely.mid),
        high_flops_per_s=None if likely is None else float(likely.high),
    )
