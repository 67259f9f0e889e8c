"""What a device was measured to reach, apart from what its data sheet says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.hardware.device import Device

BANDWIDTH = "bandwidth_bytes_per_s"
# The catalogue's names of measured matrix-multiply rates, sustained ones before bursts.
_GEMM = ("{dtype}_sustained_flops_per_s", "{dtype}_flops_per_s", "{dtype}_burst_flops_per_s")
_SAME_WIDTH = {"fp16": "bf16"}


@dataclass(frozen=True)
class MeasuredRate:
    """One rate: what the data sheet says and what was measured, low to high, in the same SI unit."""

    name: str
    spec: float
    low: float
    high: float
    source: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON; shares of the data sheet's figure."""
        return {
            "spec": self.spec,
            "low": self.low,
            "high": self.high,
            "low_share": self.low / self.spec,
            "high_share": self.high / self.spec,
            "source": self.source,
        }


def measured_rates(device: Device, compute_dtype: str) -> tuple[MeasuredRate, ...]:
    """Measured bandwidth and matrix-multiply rate beside the data sheet's, as far as both are known.

    A device described by the user's own probe compares that with its data sheet, another the published
    measurements that the catalogue holds.
    """
    if device.spec is not None:
        return tuple(_own(device, device.spec, compute_dtype))
    published = dict(device.measured)
    source = device.measured_source or "published"
    found = []
    bandwidth = published.get(BANDWIDTH)
    if bandwidth and bandwidth.low and bandwidth.high and device.bandwidth_bytes_per_s:
        rate = MeasuredRate(BANDWIDTH, device.bandwidth_bytes_per_s, bandwidth.low, bandwidth.high, source)
        found.append(rate)
    peak = device.peaks_flops_per_s.get(compute_dtype)
    dtypes = (compute_dtype, _SAME_WIDTH.get(compute_dtype, compute_dtype))
    for name in (form.format(dtype=dtype) for dtype in dtypes for form in _GEMM):
        gemm = published.get(name)
        if peak and gemm and gemm.low and gemm.high:
            found.append(MeasuredRate("peak_flops_per_s", peak, gemm.low, gemm.high, source))
            break
    return tuple(found)


def _own(device: Device, spec: Device, compute_dtype: str) -> list[MeasuredRate]:
    source = "the device's own probe"
    found = []
    if device.bandwidth_bytes_per_s and spec.bandwidth_bytes_per_s:
        own = device.bandwidth_bytes_per_s
        found.append(MeasuredRate(BANDWIDTH, spec.bandwidth_bytes_per_s, own, own, source))
    peak, own_peak = (one.peaks_flops_per_s.get(compute_dtype) for one in (spec, device))
    if peak and own_peak:
        found.append(MeasuredRate("peak_flops_per_s", peak, own_peak, own_peak, source))
    return found
