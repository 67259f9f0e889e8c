"""What is in this machine, matched to the catalogue, and the device that ``--device local`` means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflens.errors import NotFoundError, UnsupportedError
from rooflens.hardware.catalogue import devices, find_device, suggestions
from rooflens.hardware.device import Device
from rooflens.hardware.local_cpu import CpuInfo, read_cpu
from rooflens.hardware.local_gpu import Found, find_accelerators
from rooflens.units import format_bytes

MEMORY_TOLERANCE = 0.1
"""Drivers report 2 to 8 % more than the decimal GB on the box (it is GiB, less what the driver keeps)."""

MEASURE_OR_GIVE = "`rooflens probe` measures it, or --peak --bandwidth --memory give it"


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """One device of this machine: what was detected, its catalogue entry or what is missing for one.

    ``memory_bytes`` is what the driver reports, for a CPU what this process may use.
    """

    kind: str
    vendor: str | None
    name: str | None
    index: int
    source: str
    memory_bytes: int | None
    catalogue: Device | None
    missing: str | None
    accelerator: Found | None = None
    cpu: CpuInfo | None = None

    def to_dict(self) -> dict[str, Any]:
        """The detected device as JSON, null where unknown."""
        cpu, found = self.cpu, self.accelerator
        return {
            "kind": self.kind,
            "vendor": self.vendor,
            "name": self.name,
            "index": self.index,
            "source": self.source,
            "memory_bytes": self.memory_bytes,
            "catalogue": None if self.catalogue is None else self.catalogue.id,
            "missing": self.missing,
            "driver": None if found is None else found.driver,
            "compute_capability": None if found is None else found.compute_capability,
            "power_limit_w": None if found is None else found.power_limit_w,
            "cpu": None
            if cpu is None
            else {
                "machine_cores": cpu.machine_cores,
                "usable_cores": cpu.usable_cores,
                "usable_threads": cpu.usable_threads,
                "quota_cpus": cpu.quota_cpus,
                "sockets": cpu.sockets,
                "flags": list(cpu.flags),
                "caches_bytes": dict(cpu.caches),
                "memory_total_bytes": cpu.memory_total_bytes,
                "memory_limit_bytes": cpu.memory_limit_bytes,
            },
        }


def detect_local(
    *, cpu: CpuInfo | None = None, accelerators: Sequence[Found] | None = None
) -> list[LocalDevice]:
    """Every device of this machine, accelerators first, the CPU always; never raises for what it meets."""
    cpu = read_cpu() if cpu is None else cpu
    found = find_accelerators() if accelerators is None else accelerators
    return [*(_accelerator(item, cpu) for item in found), _cpu(cpu)]


def local_device(probe: Device | None = None, *, found: Sequence[LocalDevice] | None = None) -> Device:
    """The device that ``local`` means: a saved probe, else the fastest accelerator, else the CPU.

    The catalogue's figures, with the memory that this machine reports. Raises UnsupportedError naming the
    figures that are missing; an accelerator that cannot be described is not passed over for the CPU.
    """
    if probe is not None:
        return probe
    detected = detect_local() if found is None else found
    accelerators = [item for item in detected if item.cpu is None and _answers(item)]
    described = [item for item in accelerators if item.catalogue is not None]
    chosen = max(described, key=_speed) if described else next(iter(accelerators), None)
    if chosen is None:
        chosen = next((item for item in detected if item.cpu is not None), None)
    if chosen is None:
        raise NotFoundError("no device was found in this machine", next=MEASURE_OR_GIVE)
    if chosen.catalogue is None:
        raise UnsupportedError(
            f"this machine's {chosen.kind} has no usable peak and bandwidth figures: {chosen.missing}",
            value=chosen.name,
            next=MEASURE_OR_GIVE,
        )
    device = _as_here(chosen, chosen.catalogue)
    if lacking := device.missing_figures():
        raise UnsupportedError(
            f"the catalogue has no {' and no '.join(lacking)} for this machine's {device.name}",
            value=chosen.name,
            next=MEASURE_OR_GIVE,
        )
    return device


def _answers(item: LocalDevice) -> bool:
    """Whether a driver stands behind an accelerator: a bare PCI entry or a broken tool does not."""
    return item.catalogue is not None or item.memory_bytes is not None


def _speed(item: LocalDevice) -> float:
    return 0.0 if item.catalogue is None else item.catalogue.bandwidth_bytes_per_s or 0.0


def _as_here(item: LocalDevice, device: Device) -> Device:
    """The catalogue's device with this machine's memory: nominal size kept where the card has its own."""
    if item.memory_bytes is None:
        return device
    if item.cpu is not None or device.kind == "soc":
        return replace(device, memory_bytes=item.memory_bytes, memory_evidence="measured")
    return replace(device, reported_memory_bytes=item.memory_bytes, reported_memory_source=item.source)


def _accelerator(found: Found, cpu: CpuInfo) -> LocalDevice:
    memory = found.memory_bytes
    if found.problem is None and (found.unified_memory or _is_unified(found.name)):
        # A chip that shares the host's memory reports none, or the part set aside for graphics.
        memory = max((size for size in (memory, cpu.memory_total_bytes) if size), default=None)
    device, missing = _match(found, memory)
    return LocalDevice(
        kind=device.kind if device else "gpu",
        vendor=found.vendor,
        name=found.name,
        index=found.index,
        source=found.source,
        memory_bytes=memory,
        catalogue=device,
        missing=missing,
        accelerator=found,
    )


def _is_unified(name: str) -> bool:
    """Whether a name is a catalogued chip that shares the host's memory."""
    device = _lookup(name)
    return device is not None and device.kind == "soc"


def _lookup(name: str) -> Device | None:
    try:
        return find_device(name)
    except NotFoundError:
        return None


def _match(found: Found, memory_bytes: int | None) -> tuple[Device | None, str | None]:
    """The catalogue entry for a detected accelerator, or what is missing.

    Cards of one name differ in memory (RTX 4060 Ti), halves of a package answer to the whole's name
    (MI250X), and bins of one chip in cores (M3 Max): each must agree before the figures are used.
    """
    if found.problem is not None:
        return None, found.problem
    device = _lookup(found.name)
    if device is None:
        nearest = ", ".join(suggestions(found.name, count=3))
        return None, f"'{found.name}' is not in the catalogue" + (f" (nearest: {nearest})" if nearest else "")
    if device.kind == "soc":
        if found.cores is not None and device.sm_count not in (None, found.cores):
            return None, f"the catalogue's {device.name} has {device.sm_count} GPU cores, not {found.cores}"
        return device, None
    if memory_bytes is None:
        return device, None
    candidates = [device, *(d for d in devices() if d.part_of == device.id)]
    for candidate in candidates:
        nominal = candidate.memory_bytes
        if nominal is None or abs(memory_bytes / nominal - 1) <= MEMORY_TOLERANCE:
            return candidate, None
    return None, (
        f"the catalogue's {device.name} has {format_bytes(device.memory_bytes or 0)}, "
        f"this one reports {format_bytes(memory_bytes)}: another card of the same name"
    )


def _cpu(cpu: CpuInfo) -> LocalDevice:
    device, missing = _match_cpu(cpu)
    return LocalDevice(
        kind="cpu",
        vendor=device.vendor if device else None,
        name=cpu.name,
        index=0,
        source="operating system",
        memory_bytes=cpu.usable_memory_bytes,
        catalogue=device,
        missing=missing,
        cpu=cpu,
    )


def _match_cpu(cpu: CpuInfo) -> tuple[Device | None, str | None]:
    """A CPU's catalogue figures are for one whole socket, so a part of it or two of them have none."""
    if cpu.name is None:
        return None, "the operating system names no CPU model"
    device = _lookup(cpu.name)
    if device is None or device.kind != "cpu":
        return None, f"CPU '{cpu.name}' is not in the catalogue"
    if cpu.sockets not in (None, 1):
        return None, f"the figures for {device.name} are one socket's, this machine has {cpu.sockets}"
    if cpu.usable_cores is not None and cpu.usable_cores != device.sm_count:
        return None, (
            f"the catalogue's figures for {device.name} are for {device.sm_count} cores, "
            f"this process may use {cpu.usable_cores}"
        )
    return device, None
