"""What a device is: its peaks by dtype, memory, bandwidth, levels and links, each with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rooflens.display import Displayed
from rooflens.dtypes import spelt
from rooflens.errors import InputError, UnsupportedError

Evidence = Literal["spec", "derived", "measured", "given"]
"""``spec``: printed by the vendor or quoting it; ``derived``: arithmetic on such figures."""

DTYPES = (
    "fp32", "tf32", "bf16", "fp16", "fp16_acc16", "fp8", "fp8_acc16", "mxfp8", "int8", "fp4", "int4",
)  # fmt: skip
"""Compute dtypes of a peak. Products accumulate in fp32 (int32) unless the name ends in ``_acc16``."""

ANY_DTYPE = "any"
"""The dtype of a peak given by hand: it answers for whichever dtype is asked."""

# The matrix units compute both 4-bit formats at one rate.
_FOUR_BIT = {"nvfp4": "fp4", "mxfp4": "fp4"}


def compute_dtype_name(dtype: str) -> str:
    """The catalogue's name of a compute dtype (``bfloat16`` is ``bf16``); InputError if there is none."""
    name = spelt(dtype)
    name = _FOUR_BIT.get(name, name)
    if name not in DTYPES:
        raise InputError("compute dtype is unknown", value=dtype, allowed=", ".join(DTYPES))
    return name


@dataclass(frozen=True, slots=True)
class Peak:
    """The dense rate of one compute dtype."""

    dtype: str
    flops_per_s: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Link:
    """A link to other devices or to the host; bandwidth counts one direction, None where unknown."""

    name: str
    bytes_per_s_per_direction: float | None


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One step of the memory pyramid; sizes in bytes, None where unknown.

    ``bytes`` counts the whole device, ``bytes_per_unit`` one of ``units`` SMs (CUs, cores) where each has
    its own. ``bandwidth_bytes_per_s`` is the aggregate; of ``directions`` = 2 it is one direction's.
    """

    name: str
    bytes: int | None = None
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None
    latency_cycles: float | None = None
    units: int | None = None
    bytes_per_unit: int | None = None
    directions: int = 1
    size_evidence: Evidence | None = None
    bandwidth_evidence: Evidence | None = None
    latency_evidence: Evidence | None = None
    sources: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The level as JSON: SI units, null where unknown."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "bytes_per_unit": self.bytes_per_unit,
            "units": self.units,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "directions": self.directions,
            "latency_s": self.latency_s,
            "latency_cycles": self.latency_cycles,
            "evidence": {
                "size": self.size_evidence,
                "bandwidth": self.bandwidth_evidence,
                "latency": self.latency_evidence,
            },
            "sources": list(self.sources),
        }


@dataclass(frozen=True, slots=True)
class OnChipFact:
    """One line of ``onchip.csv``; ``clock_hz`` is the clock that a latency in cycles was counted at."""

    name: str
    value: float
    clock_hz: float | None
    evidence: Evidence
    source: str


@dataclass(frozen=True, slots=True)
class Published:
    """A published measurement: the text as found, and the range it opens with (SI units, None if none)."""

    text: str
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Device(Displayed):
    """One device of the catalogue, given by hand, or measured; frozen, SI units, None where unknown.

    A package that software sees as several devices has ``devices_in_package`` > 1; one of those devices is
    an entry of its own, ``part_of`` the package's id.
    """

    id: str
    name: str
    vendor: str | None = None
    kind: str = "device"
    arch: str | None = None
    isa: str | None = None
    year: int | None = None
    aliases: tuple[str, ...] = ()
    memory_bytes: int | None = None
    memory_type: str | None = None
    memory_evidence: Evidence | None = None
    reported_memory_bytes: int | None = None
    reported_memory_source: str | None = None
    bandwidth_bytes_per_s: float | None = None
    bandwidth_evidence: Evidence | None = None
    peaks: tuple[Peak, ...] = ()
    sm_count: int | None = None
    clock_hz: float | None = None
    clock_note: str | None = None
    l2_bytes: int | None = None
    llc_bytes: int | None = None
    smem_bytes_per_sm: int | None = None
    on_chip: tuple[OnChipFact, ...] = ()
    link: Link | None = None
    host_link: Link | None = None
    tdp_w: float | None = None
    devices_in_package: int = 1
    part_of: str | None = None
    confidence: tuple[tuple[str, str], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    verified: str | None = None
    check_formula: str | None = None
    check_residual: float | None = None
    measured: tuple[tuple[str, Published], ...] = ()
    measured_source: str | None = None
    notes: str | None = None
    measured_levels: tuple[MemoryLevel, ...] = ()
    spec: Device | None = None
    """What the vendor says, beside a measured device."""

    @property
    def peaks_flops_per_s(self) -> dict[str, float]:
        """Dense FLOP/s by dtype; a peak given by hand is under ``any``."""
        return {peak.dtype: peak.flops_per_s for peak in self.peaks}

    def peak(self, compute_dtype: str) -> Peak:
        """The peak of a dtype, with its evidence.

        Raises InputError for a dtype that does not exist, UnsupportedError for one without a figure here:
        another dtype's peak is never put in its place.
        """
        dtype = compute_dtype_name(compute_dtype)
        for peak in self.peaks:
            if peak.dtype in (dtype, ANY_DTYPE):
                return peak
        known = ", ".join(peak.dtype for peak in self.peaks)
        raise UnsupportedError(
            f"{self.name} ({self.id}) has no known {dtype} peak",
            value=compute_dtype,
            allowed=known or None,
            next="choose one of these dtypes, or give the peak by hand with --peak"
            if known
            else "no peak of this device is known: measure it with `rooflens probe`, or give it with --peak",
        )

    def peak_flops_per_s(self, compute_dtype: str) -> float:
        """Dense FLOP/s of a compute dtype. Raises as ``peak``."""
        return self.peak(compute_dtype).flops_per_s

    def bandwidth(self) -> float:
        """Device memory bandwidth in bytes/s; UnsupportedError where unknown."""
        if self.bandwidth_bytes_per_s is None:
            raise UnsupportedError(
                f"{self.name} ({self.id}) has no known memory bandwidth",
                next="measure it with `rooflens probe`, or give it with --bandwidth",
            )
        return self.bandwidth_bytes_per_s

    def ridge_flops_per_byte(self, compute_dtype: str) -> float:
        """Ridge point P / B in FLOP per byte: below it a kernel is memory-bound. Raises as ``peak``."""
        return self.peak_flops_per_s(compute_dtype) / self.bandwidth()

    def missing_figures(self) -> tuple[str, ...]:
        """Which of ``peak``, ``bandwidth`` and ``memory`` are unknown."""
        have = {
            "peak": bool(self.peaks),
            "bandwidth": self.bandwidth_bytes_per_s is not None,
            "memory": self.memory_bytes is not None,
        }
        return tuple(name for name, known in have.items() if not known)

    def on_chip_fact(self, name: str) -> OnChipFact | None:
        """The on-chip fact of that name, if known."""
        return next((fact for fact in self.on_chip if fact.name == name), None)

    def memory_levels(self) -> tuple[MemoryLevel, ...]:
        """The memory pyramid from registers to the host link, fastest first."""
        from rooflens.hardware.levels import memory_levels

        return memory_levels(self)

    @property
    def on_chip_cache_bytes(self) -> int | None:
        """Shared memory, L2 and last-level cache together; None unless the first two are known."""
        size = {level.name: level.bytes for level in self.memory_levels()}
        shared, l2 = size.get("shared memory"), size.get("L2")
        if shared is None or l2 is None:
            return None
        return shared + l2 + (size.get("last-level cache") or 0)

    def to_dict(self) -> dict[str, Any]:
        """The device as JSON: SI units in the key names, null where unknown, never NaN."""
        bandwidth = self.bandwidth_bytes_per_s
        return {
            "id": self.id,
            "name": self.name,
            "aliases": list(self.aliases),
            "vendor": self.vendor,
            "kind": self.kind,
            "arch": self.arch,
            "isa": self.isa,
            "year": self.year,
            "memory_bytes": self.memory_bytes,
            "memory_type": self.memory_type,
            "reported_memory_bytes": self.reported_memory_bytes,
            "bandwidth_bytes_per_s": bandwidth,
            "peaks_flops_per_s": self.peaks_flops_per_s,
            "ridge_flops_per_byte": {
                peak.dtype: peak.flops_per_s / bandwidth if bandwidth else None for peak in self.peaks
            },
            "memory_levels": [level.to_dict() for level in self.memory_levels()],
            "sm_count": self.sm_count,
            "clock_hz": self.clock_hz,
            "clock_note": self.clock_note,
            "l2_bytes": self.l2_bytes,
            "llc_bytes": self.llc_bytes,
            "smem_bytes_per_sm": self.smem_bytes_per_sm,
            "link": _link_dict(self.link),
            "host_link": _link_dict(self.host_link),
            "tdp_w": self.tdp_w,
            "devices_in_package": self.devices_in_package,
            "part_of": self.part_of,
            "confidence": dict(self.confidence),
            "evidence": {
                "memory_bytes": self.memory_evidence,
                "bandwidth_bytes_per_s": self.bandwidth_evidence,
                "peaks_flops_per_s": {peak.dtype: peak.evidence for peak in self.peaks},
            },
            "sources": dict(self.sources),
            "verified": self.verified,
            "reported_memory_source": self.reported_memory_source,
            "check": {"formula": self.check_formula, "residual": self.check_residual},
            "measured": {
                name: {"text": item.text, "low": item.low, "high": item.high} for name, item in self.measured
            },
            "measured_source": self.measured_source,
            "notes": self.notes,
            "spec": None if self.spec is None else self.spec.to_dict(),
        }


def _link_dict(link: Link | None) -> dict[str, Any] | None:
    if link is None:
        return None
    return {"name": link.name, "bytes_per_s_per_direction": link.bytes_per_s_per_direction}
