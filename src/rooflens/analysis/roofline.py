"""The roofline: attainable rate, ridge point, and the times that nothing can beat.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflens.analysis.costs import Cost
from rooflens.analysis.numeric import Quantity, maximum, minimum
from rooflens.analysis.step import Op, total_cost

COMPUTE, MEMORY, COMMUNICATION = "compute", "memory", "communication"


def attainable_flops_per_s(
    *, intensity_flops_per_byte: Quantity, peak_flops_per_s: float, bandwidth_bytes_per_s: float
) -> Quantity:
    """min(peak, intensity x bandwidth): the rate that a kernel of this intensity can reach."""
    slope = intensity_flops_per_byte * bandwidth_bytes_per_s
    return minimum(slope, peak_flops_per_s)


def ridge_flops_per_byte(*, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """peak / bandwidth: the intensity at which memory and compute take equally long."""
    return peak_flops_per_s / bandwidth_bytes_per_s


def regime(*, intensity_flops_per_byte: float, ridge_flops_per_byte: float) -> str:
    """``memory`` below the ridge, ``compute`` from it on."""
    return MEMORY if intensity_flops_per_byte < ridge_flops_per_byte else COMPUTE


@dataclass(frozen=True)
class Roof:
    """The rates of one device that bound a step: peak by dtype, memory and link bandwidth.

    ``link_bytes_per_s`` is one direction of one device's link to its peers, None where unknown.
    """

    peaks_flops_per_s: dict[str, float]
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class StepTimes:
    """What bounds one step on one device. Every field is in seconds and may be an array.

    ``bound_s`` is the larger of compute, memory and communication time, as if all overlapped
    perfectly; ``op_roofline_s`` adds up the operators one by one, each with its inputs and outputs in
    memory. ``weights_s`` and ``kv_s`` are the parts of ``memory_s``.
    """

    cost: Cost
    compute_s: Quantity
    memory_s: Quantity
    communication_s: Quantity
    weights_s: Quantity
    kv_s: Quantity
    op_roofline_s: Quantity

    @property
    def bound_s(self) -> Quantity:
        """The time that nothing can beat."""
        return maximum(maximum(self.compute_s, self.memory_s), self.communication_s)

    @property
    def limited_by(self) -> str:
        """Which of the three is the bound (plain numbers only)."""
        if self.communication_s > self.compute_s and self.communication_s > self.memory_s:
            return COMMUNICATION
        return COMPUTE if self.compute_s >= self.memory_s else MEMORY


def time_ops(ops: Iterable[Op], roof: Roof, *, communication_bytes: Quantity = 0) -> StepTimes:
    """Bound and op-by-op roofline of a step's operators.

    ``communication_bytes`` are sent by this device over its link during the step. Units: seconds.
    """
    ops = tuple(ops)
    bandwidth = roof.bandwidth_bytes_per_s
    compute_s: Quantity = 0.0
    op_roofline_s: Quantity = 0.0
    for op in ops:
        cost, count = op.cost, op.count
        memory_s = cost.operator_bytes / bandwidth
        if isinstance(cost.flops, int) and cost.flops == 0:
            op_roofline_s = op_roofline_s + memory_s * count
            continue
        op_compute_s = cost.flops / roof.peaks_flops_per_s[op.compute_dtype]
        compute_s = compute_s + op_compute_s * count
        op_roofline_s = op_roofline_s + maximum(op_compute_s, memory_s) * count
    total = total_cost(ops)
    link = roof.link_bytes_per_s
    communication_s = communication_bytes / link if link else 0.0 * communication_bytes
    return StepTimes(
        cost=total,
        compute_s=compute_s,
        memory_s=total.moved_bytes / bandwidth,
        communication_s=communication_s,
        weights_s=total.weight_bytes / bandwidth,
        kv_s=(total.kv_read_bytes + total.kv_write_bytes) / bandwidth,
        op_roofline_s=op_roofline_s + communication_s,
    )
