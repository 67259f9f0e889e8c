"""The arithmetic guard: a dense peak is SMs x clock x FLOP per clock per SM, so a sparse one stands out.

Two sides, neither of which reads the peak it checks: the formula that came with the row, and the rates that
architecture documents print (``data/rates.csv``). A 2:4-sparse figure is 100 % off, a wrong clock a few.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from rooflens.hardware.device import DTYPES, Device
from rooflens.hardware.tables import read_rows
from rooflens.units import MEGA

FORMULA_TOLERANCE = 0.013
"""Largest distance between a peak and the row's own formula."""
RATE_TOLERANCE = 0.2
"""Vector fp32 peaks are printed at a higher clock than tensor peaks (H100 NVL: 15 %)."""
KNOWN_RESIDUALS = {"gb10": 0.05}
"""Devices whose vendor figure is rounded further from the arithmetic, with the distance allowed."""

_PREFIX = re.compile(rf"({'|'.join(sorted([*DTYPES, 'fp16_acc32'], key=len, reverse=True))})\s*=")
_FACTOR = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class PeakCheck:
    """A peak beside what arithmetic says it should be, both in FLOP/s."""

    device_id: str
    dtype: str
    peak_flops_per_s: float
    expected_flops_per_s: float
    tolerance: float
    basis: str

    @property
    def residual(self) -> float:
        """Expected over printed, less one."""
        return self.expected_flops_per_s / self.peak_flops_per_s - 1

    @property
    def ok(self) -> bool:
        return abs(self.residual) <= self.tolerance


def check_peaks(device: Device) -> tuple[PeakCheck, ...]:
    """Every check that the device's data allow; empty where SM count, clock or rates are unknown."""
    formula = check_formula(device)
    return (*((formula,) if formula else ()), *check_rates(device))


def check_formula(device: Device) -> PeakCheck | None:
    """The row's ``check_formula`` recomputed against the peak it names; None without one.

    Reads ``bf16=2048FLOP/clk/SM x 108 x 1410MHz = 311.9 vs 312``: the product of the leading numbers, the
    clock in MHz. A formula that names no dtype is about bf16, or int8 if it says so.
    """
    text = device.check_formula
    if text is None:
        return None
    named = _PREFIX.match(text)
    dtype = named[1] if named else "int8" if "int8" in text else "bf16"
    dtype = "fp16" if dtype == "fp16_acc32" else dtype
    product = text[named.end() :] if named else text
    expected = float(MEGA)
    for factor in product.partition("=")[0].split("x"):
        number = _FACTOR.match(factor.strip())
        expected *= float(number[0]) if number else 1.0
    if dtype not in device.peaks_flops_per_s:
        return None
    tolerance = KNOWN_RESIDUALS.get(device.id, FORMULA_TOLERANCE)
    return PeakCheck(device.id, dtype, device.peaks_flops_per_s[dtype], expected, tolerance, "formula")


def check_rates(device: Device) -> tuple[PeakCheck, ...]:
    """Each peak against the rates of its kind of chip; empty if the chip, SM count or clock is unknown."""
    rates = _rates().get(device.id)
    if rates is None or device.sm_count is None or device.clock_hz is None:
        return ()
    return tuple(
        PeakCheck(
            device.id,
            peak.dtype,
            peak.flops_per_s,
            rates[peak.dtype] * device.sm_count * device.clock_hz,
            RATE_TOLERANCE,
            "rates",
        )
        for peak in device.peaks
        if peak.dtype in rates
    )


@cache
def _rates() -> dict[str, dict[str, float]]:
    """FLOP per clock per SM by device id and dtype."""
    found: dict[str, dict[str, float]] = {}
    for row in read_rows("rates.csv"):
        rates = {dtype: float(row[dtype]) for dtype in DTYPES if row[dtype]}
        for device_id in row["devices"].split("|"):
            found[device_id] = rates
    return found
