"""The memory pyramid of a device, from what the catalogue knows and nothing else."""

from __future__ import annotations

from rooflens.hardware.device import Device, Evidence, MemoryLevel, OnChipFact
from rooflens.units import GIGA, KIB

REGISTERS, SHARED_MEMORY, L1, L2, L3 = "registers", "shared memory", "L1", "L2", "L3"
LAST_LEVEL_CACHE, DEVICE_MEMORY, HOST_LINK = "last-level cache", "device memory", "host link"
LEVEL_NAMES = (REGISTERS, SHARED_MEMORY, L1, L2, L3, LAST_LEVEL_CACHE, DEVICE_MEMORY, HOST_LINK)
"""Every name a level may have, fastest first. A CPU has L1, L2 and L3."""

_UNIFIED = "unified"


def memory_levels(device: Device) -> tuple[MemoryLevel, ...]:
    """Levels fastest first; a GPU always lists registers, shared memory and L2, known or not.

    A measured level takes the place of the one of the same name.
    """
    levels = [_registers(device), _shared_memory(device), _l2(device), _last_level(device)]
    if device.kind not in ("gpu", "soc"):
        levels = [level for level in levels if level.bytes is not None]
    elif device.llc_bytes is None:
        levels.remove(levels[-1])
    levels.append(_device_memory(device))
    if device.host_link is not None and device.host_link.name != _UNIFIED:
        levels.append(_host_link(device))
    measured = {level.name: level for level in device.measured_levels}
    merged = [measured.pop(level.name, level) for level in levels]
    order = {name: position for position, name in enumerate(LEVEL_NAMES)}
    return tuple(sorted([*merged, *measured.values()], key=lambda level: order.get(level.name, len(order))))


def _latency(fact: OnChipFact | None) -> tuple[float | None, float | None, Evidence | None]:
    """Seconds, cycles and evidence of a latency."""
    if fact is None or fact.clock_hz is None:
        return None, None, None
    return fact.value / fact.clock_hz, fact.value, fact.evidence


def _sources(*facts: OnChipFact | None, also: str | None = None) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(fact.source for fact in facts if fact), *([also] if also else [])]))


def _total(per_unit: int | None, units: int | None) -> int | None:
    return None if per_unit is None or units is None else per_unit * units


def _source(device: Device, group: str) -> str | None:
    return dict(device.sources).get(group)


def _registers(device: Device) -> MemoryLevel:
    fact = device.on_chip_fact("registers_kib_per_sm")
    per_sm = None if fact is None else round(fact.value * KIB)
    return MemoryLevel(
        REGISTERS,
        bytes=_total(per_sm, device.sm_count),
        units=device.sm_count if fact else None,
        bytes_per_unit=per_sm,
        size_evidence=fact.evidence if fact else None,
        sources=_sources(fact),
    )


def _shared_memory(device: Device) -> MemoryLevel:
    """The unified L1 and shared memory where its size is known, else the shared memory (LDS) alone."""
    unified = device.on_chip_fact("l1_kib_per_sm")
    per_sm = round(unified.value * KIB) if unified else device.smem_bytes_per_sm
    rate = device.on_chip_fact("smem_bytes_per_clk_per_sm")
    bandwidth = None
    if rate is not None and device.sm_count is not None and device.clock_hz is not None:
        bandwidth = rate.value * device.sm_count * device.clock_hz
    latency = device.on_chip_fact("l1_latency_cycles")
    latency_s, cycles, latency_evidence = _latency(latency)
    size_source = None if unified or per_sm is None else _source(device, "arch")
    return MemoryLevel(
        SHARED_MEMORY,
        bytes=_total(per_sm, device.sm_count),
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency_s,
        latency_cycles=cycles,
        units=device.sm_count if per_sm is not None else None,
        bytes_per_unit=per_sm,
        size_evidence=None if per_sm is None else "spec",
        bandwidth_evidence=rate.evidence if rate and bandwidth is not None else None,
        latency_evidence=latency_evidence,
        sources=_sources(unified, rate if bandwidth is not None else None, latency, also=size_source),
    )


def _cache(
    device: Device, name: str, size: int | None, rate: OnChipFact | None, latency: OnChipFact | None
) -> MemoryLevel:
    latency_s, cycles, latency_evidence = _latency(latency)
    return MemoryLevel(
        name,
        bytes=size,
        bandwidth_bytes_per_s=rate.value * GIGA if rate else None,
        latency_s=latency_s,
        latency_cycles=cycles,
        size_evidence=None if size is None else "spec",
        bandwidth_evidence=rate.evidence if rate else None,
        latency_evidence=latency_evidence,
        sources=_sources(rate, latency, also=None if size is None else _source(device, "arch")),
    )


def _l2(device: Device) -> MemoryLevel:
    rate, latency = device.on_chip_fact("l2_gb_per_s"), device.on_chip_fact("l2_latency_cycles")
    return _cache(device, L2, device.l2_bytes, rate, latency)


def _last_level(device: Device) -> MemoryLevel:
    name = L3 if device.kind == "cpu" else LAST_LEVEL_CACHE
    return _cache(device, name, device.llc_bytes, device.on_chip_fact("llc_gb_per_s"), None)


def _device_memory(device: Device) -> MemoryLevel:
    latency = device.on_chip_fact("memory_latency_cycles")
    latency_s, cycles, latency_evidence = _latency(latency)
    return MemoryLevel(
        DEVICE_MEMORY,
        bytes=device.memory_bytes,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        latency_s=latency_s,
        latency_cycles=cycles,
        size_evidence=device.memory_evidence,
        bandwidth_evidence=device.bandwidth_evidence,
        latency_evidence=latency_evidence,
        sources=_sources(latency, also=_source(device, "memory")),
    )


def _host_link(device: Device) -> MemoryLevel:
    link = device.host_link
    bandwidth = None if link is None else link.bytes_per_s_per_direction
    return MemoryLevel(
        HOST_LINK,
        bandwidth_bytes_per_s=bandwidth,
        directions=2,
        bandwidth_evidence=None if bandwidth is None else "spec",
        sources=() if link is None else (link.name,),
    )
