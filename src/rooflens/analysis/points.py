"""Points under a device's roof: given intensities, and the phases of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflens.analysis.estimate import Range
from rooflens.analysis.plan import Plan
from rooflens.analysis.roofline import attainable_flops_per_s, regime
from rooflens.analysis.step import Phase
from rooflens.display import Displayed
from rooflens.hardware.device import Device


@dataclass(frozen=True)
class RooflinePoint:
    """One intensity under the roof, of one device; a phase of a plan also has its ``batch`` and its rates.

    ``attainable_flops_per_s`` is the roof at this intensity, ``bound_flops_per_s`` what the phase's bound
    leaves of it, ``estimate_flops_per_s`` the likely rate. ``phase`` is None for a given intensity.
    """

    intensity_flops_per_byte: float
    attainable_flops_per_s: float
    share_of_peak: float
    regime: str
    phase: Phase | None = None
    batch: int | None = None
    bound_flops_per_s: float | None = None
    estimate_flops_per_s: Range | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        estimate = self.estimate_flops_per_s
        return {
            "label": None if self.phase is None else self.phase.value,
            "batch": self.batch,
            "intensity_flops_per_byte": self.intensity_flops_per_byte,
            "attainable_flops_per_s": self.attainable_flops_per_s,
            "share_of_peak": self.share_of_peak,
            "regime": self.regime,
            "bound_flops_per_s": self.bound_flops_per_s,
            "estimate_flops_per_s": None if estimate is None else estimate.to_dict(),
        }


@dataclass(frozen=True)
class RooflineView(Displayed):
    """The roof of one device for one compute type, and points under it (of ``model`` where one is named)."""

    device: Device
    compute_dtype: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    points: tuple[RooflinePoint, ...]
    model: str | None = None

    @property
    def ridge_flops_per_byte(self) -> float:
        """Intensity at which both roofs meet."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": "rooflens.roofline/1",
            "model": self.model,
            "device": self.device.id,
            "compute_dtype": self.compute_dtype,
            "peak_flops_per_s": self.peak_flops_per_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "ridge_flops_per_byte": self.ridge_flops_per_byte,
            "points": [point.to_dict() for point in self.points],
        }


def default_dtype(device: Device) -> str:
    """The type whose roof is drawn when none is asked: bf16, else fp16, else the device's first."""
    known = [peak.dtype for peak in device.peaks]
    for dtype in ("bf16", "fp16"):
        if dtype in known:
            return dtype
    return known[0] if known and known[0] != "any" else "bf16"


def roofline_view(
    device: Device,
    *,
    intensities: Sequence[float] = (),
    plans: Sequence[Plan] = (),
    dtype: str | None = None,
) -> RooflineView:
    """The roof of ``device`` with points at ``intensities``, and at phases of one model's plans.

    The plans differ by their batch: the prefill of the first and the decode of each become points.
    Raises UnsupportedError where the device has no peak for the type or no bandwidth.
    """
    dtype = dtype or (plans[0].rates.compute_dtype if plans else default_dtype(device))
    peak, bandwidth = device.peak_flops_per_s(dtype), device.bandwidth()

    def point(intensity: float) -> RooflinePoint:
        rate = attainable_flops_per_s(
            intensity_flops_per_byte=intensity, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth
        )
        side = regime(intensity_flops_per_byte=intensity, ridge_flops_per_byte=peak / bandwidth)
        return RooflinePoint(intensity, rate, rate / peak, side)

    points = [point(intensity) for intensity in intensities]
    phases = [(plan.prefill, plan) for plan in plans[:1]] + [(plan.decode, plan) for plan in plans]
    for phase, plan in phases:
        flops, likely = phase.flops / phase.devices, phase.estimate
        points.append(
            replace(
                point(phase.intensity_flops_per_byte),
                phase=phase.phase,
                batch=plan.workload.batch,
                bound_flops_per_s=flops / phase.bound_s,
                estimate_flops_per_s=Range(flops / likely.high, flops / likely.mid, flops / likely.low),
            )
        )
    model = plans[0].spec.name if plans else None
    return RooflineView(device, dtype, peak, bandwidth, tuple(points), model)
