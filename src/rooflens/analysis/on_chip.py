"""What a chip keeps from one step to the next need not be read again from its memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rooflens.analysis.roofline import StepTimes
from rooflens.hardware.device import Device
from rooflens.units import GIGA, format_bytes


def cache_bytes(device: Device) -> float:
    """The most that a device can keep on chip: shared memory, L2 and last-level cache; 0 where unknown."""
    shared = (device.smem_bytes_per_sm or 0) * (device.sm_count or 0)
    return float((device.l2_bytes or 0) + (device.llc_bytes or 0) + shared)


def cache_bandwidth(device: Device) -> float:
    """The rate of the outermost cache in bytes/s; infinite where unknown, so that the bound stays one."""
    for name in ("llc_gb_per_s", "l2_gb_per_s"):
        fact = device.on_chip_fact(name)
        if fact is not None:
            return fact.value * GIGA
    return inf


def stays_on_chip(device: Device, stages: Sequence[StepTimes]) -> bool:
    """Whether everything that a decode step touches on the fullest device fits in the caches."""
    return max(float(times.cost.moved_bytes) for times in stages) <= cache_bytes(device)


def on_chip_note(device: Device, decode: StepTimes) -> tuple[str, ...]:
    """Said where a decode step's bound counts no reads from memory."""
    if not stays_on_chip(device, [decode]):
        return ()
    moved, cache = format_bytes(float(decode.cost.moved_bytes)), format_bytes(cache_bytes(device))
    return (
        f"a decode step's {moved} fit in the {cache} of caches of {device.id}: the bound of decode counts no "
        "reads from device memory, the estimate still does",
    )
