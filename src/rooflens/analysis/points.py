"""Points under a device's roof: given intensities, and the phases of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooflens.analysis.plan import Plan
from rooflens.analysis.roofline import attainable_flops_per_s, regime
from rooflens.hardware.device import Device


@dataclass(frozen=True)
class RooflinePoint:
    """One intensity under the roof: ``label`` is empty for a given one, else the phase's name."""

    label: str
    intensity_flops_per_byte: float
    attainable_flops_per_s: float
    share_of_peak: float
    regime: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "label": self.label or None,
            "intensity_flops_per_byte": self.intensity_flops_per_byte,
            "attainable_flops_per_s": self.attainable_flops_per_s,
            "share_of_peak": self.share_of_peak,
            "regime": self.regime,
        }


@dataclass(frozen=True)
class RooflineView:
    """The roof of one device for one compute type, and points under it."""

    device: Device
    compute_dtype: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    points: tuple[RooflinePoint, ...]

    @property
    def ridge_flops_per_byte(self) -> float:
        """Intensity at which both roofs meet."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": "rooflens.roofline/1",
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
    intensities: Sequence[float],
    plans: Sequence[tuple[str, Plan]] = (),
    dtype: str | None = None,
) -> RooflineView:
    """The roof of ``device`` with points at ``intensities`` and at both phases of each labelled plan.

    Raises UnsupportedError where the device has no peak for the type or no bandwidth.
    """
    dtype = dtype or (plans[0][1].rates.compute_dtype if plans else default_dtype(device))
    peak, bandwidth = device.peak_flops_per_s(dtype), device.bandwidth()

    def point(label: str, intensity: float) -> RooflinePoint:
        rate = attainable_flops_per_s(
            intensity_flops_per_byte=intensity, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth
        )
        side = regime(intensity_flops_per_byte=intensity, ridge_flops_per_byte=peak / bandwidth)
        return RooflinePoint(label, intensity, rate, rate / peak, side)

    points = [point("", intensity) for intensity in intensities]
    for label, plan in plans:
        for phase in (plan.prefill, plan.decode):
            points.append(point(f"{phase.phase.value}{label}", phase.intensity_flops_per_byte))
    return RooflineView(device, dtype, peak, bandwidth, tuple(points))
