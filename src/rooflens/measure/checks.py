"""Sanity flags: measured figures beside the vendor's, and what is likely amiss when they are far apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.errors import RooflensError
from rooflens.hardware import Device
from rooflens.measure.records import ProbeRecord
from rooflens.measure.roofs import Roofs, roofs, spec_device
from rooflens.units import format_bandwidth, format_flops_per_s, format_share

BANDWIDTH_CEILING = 1.05
"""Memory cannot beat its clock; 5 % is for rounding and overclocked modules."""
RATE_CEILING = 1.10
"""Rates may: consumer cards boost up to 7 % past the clock that their peak is quoted at."""
FLOOR = 0.5
"""Under half of the data sheet something other than the device was measured."""

_TOO_FAST_BANDWIDTH = "data came from a cache, or the catalogue's entry is another variant of this device"
_TOO_FAST_RATE = "the catalogue's entry is another variant of this device, or work was left out"
_TOO_SLOW = "the device is throttled, limited in power, busy with other work, or lacks a fast kernel here"


@dataclass(frozen=True, slots=True)
class Against:
    """A measured figure beside the data sheet's, in bytes/s or FLOP/s; ``cause`` is None if plausible."""

    figure: str
    measured: float
    spec: float
    cause: str | None

    @property
    def ratio(self) -> float:
        """Measured over spec."""
        return self.measured / self.spec

    def sentence(self) -> str:
        """The flag with numbers, likely cause and next action."""
        show = format_bandwidth if self.figure.endswith("bandwidth") else format_flops_per_s
        return (
            f"{self.figure} is {format_share(self.ratio)} of the data sheet "
            f"({show(self.measured)} of {show(self.spec)}): probably {self.cause}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "figure": self.figure,
            "measured": self.measured,
            "spec": self.spec,
            "ratio": self.ratio,
            "cause": self.cause,
        }


def against_spec(found: Roofs, spec: Device | None) -> list[Against]:
    """Every measured roof that the data sheet has a figure for."""
    if spec is None:
        return []
    rows = []
    if found.read_bytes_per_s is not None and spec.bandwidth_bytes_per_s is not None:
        rows.append(
            _row(
                "read bandwidth", found.read_bytes_per_s, spec.bandwidth_bytes_per_s,
                BANDWIDTH_CEILING, _TOO_FAST_BANDWIDTH,
            )
        )  # fmt: skip
    known = spec.peaks_flops_per_s
    for dtype, rate in found.peaks.items():
        if dtype in known:
            rows.append(_row(f"{dtype} rate", rate, known[dtype], RATE_CEILING, _TOO_FAST_RATE))
    return rows


def sanity_flags(record: ProbeRecord) -> list[Against]:
    """The figures too far from the data sheet to be believed as they stand."""
    try:
        spec = spec_device(record)
    except RooflensError:  # a record may name a device that another version's catalogue had
        spec = None
    return [row for row in against_spec(roofs(record), spec) if row.cause is not None]


def _row(figure: str, measured: float, spec: float, ceiling: float, too_fast: str) -> Against:
    ratio = measured / spec
    cause = too_fast if ratio > ceiling else _TOO_SLOW if ratio < FLOOR else None
    return Against(figure, measured, spec, cause)
