"""Devices that are not the catalogue's: given by hand, corrected by hand, or measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rooflens.errors import InputError
from rooflens.hardware.device import ANY_DTYPE, Device, MemoryLevel, Peak, compute_dtype_name


def device_by_hand(
    *,
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
    memory_bytes: float | None = None,
    name: str = "by hand",
    compute_dtype: str | None = None,
) -> Device:
    """A device from figures the user gave, in FLOP/s, bytes/s and bytes.

    The peak answers for every dtype asked, unless ``compute_dtype`` says which one it is for. Raises
    InputError for a figure that is not finite or below one unit.
    """
    return Device(
        id=name,
        name=name,
        memory_bytes=None if memory_bytes is None else round(_positive(memory_bytes, "memory")),
        memory_evidence=None if memory_bytes is None else "given",
        bandwidth_bytes_per_s=_positive(bandwidth_bytes_per_s, "bandwidth"),
        bandwidth_evidence="given",
        peaks=(_given_peak(peak_flops_per_s, compute_dtype),),
    )


def device_with(
    device: Device,
    *,
    peak_flops_per_s: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    memory_bytes: float | None = None,
    compute_dtype: str | None = None,
) -> Device:
    """A device with some of its figures replaced by the user's; raises as ``device_by_hand``."""
    if peak_flops_per_s is not None:
        given = _given_peak(peak_flops_per_s, compute_dtype)
        kept = () if given.dtype == ANY_DTYPE else device.peaks
        device = replace(device, peaks=(given, *(p for p in kept if p.dtype != given.dtype)))
    if bandwidth_bytes_per_s is not None:
        device = replace(
            device,
            bandwidth_bytes_per_s=_positive(bandwidth_bytes_per_s, "bandwidth"),
            bandwidth_evidence="given",
        )
    if memory_bytes is not None:
        device = replace(
            device,
            memory_bytes=round(_positive(memory_bytes, "memory")),
            memory_evidence="given",
            reported_memory_bytes=None,
            reported_memory_source=None,
        )
    return device


def device_from_measurement(
    spec: Device | None,
    *,
    bandwidth_bytes_per_s: float,
    peaks: Mapping[str, float],
    memory_bytes: float | None,
    levels: Sequence[MemoryLevel] = (),
    name: str | None = None,
    source: str | None = None,
) -> Device:
    """A device whose bandwidth, peaks and memory were measured, with the vendor's figures in ``.spec``.

    ``peaks`` maps dtypes to FLOP/s; a dtype that was not measured keeps the vendor's figure, which its
    evidence shows. ``memory_bytes`` is what the machine lets one process use. ``levels`` replace levels of
    the same name in the pyramid. Without ``spec``, ``name`` is needed. Raises InputError for figures that
    are not positive and finite, unknown dtypes, or no peak at all.
    """
    measured = tuple(
        Peak(compute_dtype_name(dtype), _positive(rate, f"peak of {dtype}"), "measured")
        for dtype, rate in peaks.items()
    )
    if spec is None and name is None:
        raise InputError("a measured device without a catalogue entry needs a name")
    if not measured:
        raise InputError("no peak was measured", allowed="at least one compute dtype")
    base = spec if spec is not None else Device(id=str(name), name=str(name))
    done = {peak.dtype for peak in measured}
    return replace(
        base,
        name=name or base.name,
        memory_bytes=base.memory_bytes if memory_bytes is None else round(_positive(memory_bytes, "memory")),
        memory_evidence=base.memory_evidence if memory_bytes is None else "measured",
        reported_memory_bytes=base.reported_memory_bytes if memory_bytes is None else None,
        reported_memory_source=base.reported_memory_source if memory_bytes is None else None,
        bandwidth_bytes_per_s=_positive(bandwidth_bytes_per_s, "bandwidth"),
        bandwidth_evidence="measured",
        peaks=(*measured, *(peak for peak in base.peaks if peak.dtype not in done)),
        measured_levels=tuple(levels),
        measured_source=source or base.measured_source,
        spec=spec,
    )


def _given_peak(peak_flops_per_s: float, compute_dtype: str | None) -> Peak:
    dtype = ANY_DTYPE if compute_dtype is None else compute_dtype_name(compute_dtype)
    return Peak(dtype, _positive(peak_flops_per_s, "peak"), "given")


def _positive(value: float, field: str) -> float:
    if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise InputError(f"{field} must be positive and finite", value=value)
    # Below one byte or FLOP (a second) every time would leave the range of floating-point numbers.
    if value < 1:
        raise InputError(f"{field} is too small", value=value, allowed="1 or more, in SI units")
    return float(value)
