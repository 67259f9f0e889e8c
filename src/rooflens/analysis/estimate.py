"""From the bound to the likely: achievable shares of the peaks, launch and host time, as ranges.

The bound says what is impossible; the estimate says what a well-made engine reaches on this kind of
device, low to high. Without a probe of the device the shares are those published for its kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflens.analysis.numeric import Quantity, maximum
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Op
from rooflens.hardware.device import Device


@dataclass(frozen=True)
class Range:
    """Low, likely and high of one figure; the unit is the figure's own."""

    low: Quantity
    mid: Quantity
    high: Quantity

    def to_dict(self) -> dict[str, Quantity]:
        """As JSON."""
        return {"low": self.low, "mid": self.mid, "high": self.high}


@dataclass(frozen=True)
class Efficiency:
    """What a kind of device reaches: shares of its peaks, seconds per operator and per step.

    ``low`` is always the pessimistic share but the optimistic time, as in any Range.
    """

    bandwidth: Range
    compute: Range
    link: Range
    launch_s: Range
    host_s: Range
    source: str


_GRAPHS = Range(1.0e-6, 2.0e-6, 5.0e-6)  # kernel gaps: replayed in a graph, to launched one by one
_HOST = Range(0.2e-3, 0.5e-3, 2.0e-3)  # scheduling, sampling and detokenisation of a serving engine
_LINK = Range(0.5, 0.7, 0.9)

_HBM = Range(0.70, 0.83, 0.93)
_GDDR = Range(0.75, 0.88, 0.96)
_DDR = Range(0.55, 0.75, 0.92)

_PUBLISHED = "published kernel and GEMM measurements by kind of device, see docs/accuracy.md"

_KINDS: dict[str, Efficiency] = {
    "nvidia-hbm": Efficiency(_HBM, Range(0.45, 0.70, 0.85), _LINK, _GRAPHS, _HOST, _PUBLISHED),
    "nvidia-gddr": Efficiency(_GDDR, Range(0.50, 0.75, 0.97), _LINK, _GRAPHS, _HOST, _PUBLISHED),
    "amd": Efficiency(_HBM, Range(0.35, 0.55, 0.68), _LINK, _GRAPHS, _HOST, _PUBLISHED),
    "intel": Efficiency(_GDDR, Range(0.50, 0.75, 0.97), _LINK, _GRAPHS, _HOST, _PUBLISHED),
    "soc": Efficiency(_DDR, Range(0.40, 0.65, 0.90), _LINK, _GRAPHS, _HOST, _PUBLISHED),
    "cpu": Efficiency(
        _DDR, Range(0.30, 0.55, 0.85), _LINK, Range(1e-6, 3e-6, 10e-6), Range(0.1e-3, 0.3e-3, 1e-3),
        _PUBLISHED,
    ),
    "other": Efficiency(_HBM, Range(0.35, 0.65, 0.90), _LINK, _GRAPHS, _HOST, _PUBLISHED),
    # Measured figures are what kernels reach already; what is left is how engines use them.
    "measured": Efficiency(
        Range(0.75, 0.90, 1.0), Range(0.65, 0.85, 1.0), _LINK, _GRAPHS, Range(0.05e-3, 0.3e-3, 1e-3),
        "the device's own probe",
    ),
}  # fmt: skip


def efficiency_for(device: Device) -> Efficiency:
    """The shares that apply to a device: its own probe's, else those of its kind."""
    if device.bandwidth_evidence == "measured":
        return _KINDS["measured"]
    vendor = (device.vendor or "").lower()
    if device.kind == "cpu":
        return _KINDS["cpu"]
    memory = device.memory_type or ""
    if "DDR" in memory and "GDDR" not in memory:
        return _KINDS["soc"]
    if vendor == "nvidia":
        return _KINDS["nvidia-hbm" if "HBM" in memory else "nvidia-gddr"]
    return _KINDS[vendor] if vendor in ("amd", "intel") else _KINDS["other"]


def estimate_s(
    ops: Iterable[Op], roof: Roof, efficiency: Efficiency, *, communication_bytes: Quantity = 0
) -> Range:
    """Likely time of a step: every operator at the achievable rates, one after the other.

    Sum over operators of max(FLOPs / (share x peak), bytes / (share x bandwidth)), plus one launch each,
    the host's time per step and the communication. Experts count as many as uniform routing visits.
    """
    ops = tuple(ops)
    return Range(
        _one(ops, roof, efficiency, "high", "low", communication_bytes),
        _one(ops, roof, efficiency, "mid", "mid", communication_bytes),
        _one(ops, roof, efficiency, "low", "high", communication_bytes),
    )


def _one(
    ops: tuple[Op, ...], roof: Roof, efficiency: Efficiency, share: str, time: str, communication: Quantity
) -> Quantity:
    bandwidth = roof.bandwidth_bytes_per_s * getattr(efficiency.bandwidth, share)
    compute = getattr(efficiency.compute, share)
    launch_s = getattr(efficiency.launch_s, time)
    total: Quantity = getattr(efficiency.host_s, time)
    for op in ops:
        # Activations between neighbouring operators mostly stay in cache or are fused: weights and
        # cache are what streams from memory.
        moved = op.cost.moved_bytes
        if op.expected_weight_bytes is not None:
            moved = moved - op.cost.weight_bytes + op.expected_weight_bytes
        compute_s = op.cost.flops / (roof.peaks_flops_per_s[op.compute_dtype] * compute)
        total = total + (maximum(compute_s, moved / bandwidth) + launch_s) * op.count
    if roof.link_bytes_per_s:
        total = total + communication / (roof.link_bytes_per_s * getattr(efficiency.link, share))
    return total
