"""What a roofline chart shows, as data: points with their likely ranges, from plans or from a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rooflens.analysis.plan import PhaseResult, Plan
from rooflens.analysis.points import RooflineView, roofline_view

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


def view_points(view: RooflineView) -> tuple[ChartPoint, ...]:
    """The points of a view: given intensities and phases, at the roof."""
    return tuple(
        ChartPoint(
            _kind(point.label),
            point.intensity_flops_per_byte,
            point.attainable_flops_per_s,
            point.label.removeprefix(_kind(point.label)).strip(" ,"),
        )
        for point in view.points
    )


def _kind(label: str) -> PointKind:
    """A view names its points by phase, then by what tells them apart."""
    if label.startswith("prefill"):
        return "prefill"
    return "decode" if label.startswith("decode") else "given"


def plans_view(plans: Sequence[Plan]) -> RooflineView:
    """The roof of the first plan's device, for the type that most of its arithmetic runs in."""
    return roofline_view(plans[0].device, intensities=(), dtype=plans[0].rates.compute_dtype)


def plan_points(plans: Sequence[Plan], *, labels: Sequence[str] | None = None) -> tuple[ChartPoint, ...]:
    """Both phases of each plan; ``labels`` (default: none for one plan) tell several plans apart."""
    named = labels if labels is not None else [""] * len(plans)
    return tuple(
        _phase_point(phase, label)
        for plan, label in zip(plans, named, strict=True)
        for phase in (plan.prefill, plan.decode)
    )


def _phase_point(phase: PhaseResult, label: str) -> ChartPoint:
    flops = phase.flops / phase.devices
    return ChartPoint(
        kind=phase.phase.value,
        intensity_flops_per_byte=phase.intensity_flops_per_byte,
        flops_per_s=flops / phase.bound_s,
        label=label,
        low_flops_per_s=flops / float(phase.estimate.high),
        likely_flops_per_s=flops / float(phase.estimate.mid),
        high_flops_per_s=flops / float(phase.estimate.low),
    )
