"""The device that a probe measures: named, checked, with its clock, memory and caches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rooflens.errors import CapacityError, InputError, NotFoundError
from rooflens.hardware import Device, LocalDevice, detect_local
from rooflens.hardware.local_cpu import CpuInfo, read_cpu
from rooflens.measure.environment import available_memory_bytes, nvidia_state
from rooflens.measure.records import ProbedDevice
from rooflens.measure.timer import DeviceClock, EventClock, WallClock
from rooflens.units import GIB, MIB, format_bytes

MIN_WORKING_SET_BYTES = GIB
"""What a bandwidth probe reads in one pass, at least."""
CPU_CACHE_MULTIPLE = 4
DEVICE_CACHE_MULTIPLE = 8
"""Passes this many times the last-level cache leave next to nothing of the last pass in it."""
ASSUMED_CACHE_BYTES = 64 * MIB
"""Last-level cache assumed where neither driver nor catalogue knows one."""
_HEADROOM = 2  # the largest probe holds the working set, and for a moment a copy of it


@dataclass(frozen=True)
class Target:
    """One device to measure. ``threads`` and ``cpus`` (one to pin each thread to) are a CPU's alone.

    ``kind``: cpu, cuda, rocm, xpu or mps. ``caches`` maps level names to bytes in all.
    """

    device: torch.device
    kind: str
    name: str
    memory_bytes: int | None
    available_bytes: int | None
    caches: Mapping[str, int] = field(default_factory=dict)
    cores: int | None = None
    threads: int | None = None
    cpus: tuple[int, ...] = ()
    spec: Device | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether the host itself is measured."""
        return self.kind == "cpu"

    @property
    def torch_module(self) -> Any:
        """torch's module of this kind of device: ``torch.cuda``, ``torch.xpu``, ``torch.mps``."""
        return getattr(torch, self.device.type)

    @property
    def clock(self) -> DeviceClock:
        """How work on this device is timed."""
        if self.is_cpu:
            return WallClock()
        if self.kind == "mps":
            return WallClock(torch.mps.synchronize)
        return EventClock(self.torch_module, self.device)

    @property
    def last_level_cache_bytes(self) -> int:
        """The largest cache known, else a generous assumption."""
        return max(self.caches.values(), default=ASSUMED_CACHE_BYTES)

    @property
    def working_set_bytes(self) -> int:
        """Bytes far beyond the caches: what a bandwidth probe must read."""
        multiple = CPU_CACHE_MULTIPLE if self.is_cpu else DEVICE_CACHE_MULTIPLE
        return max(MIN_WORKING_SET_BYTES, multiple * self.last_level_cache_bytes)

    @property
    def rotation_bytes(self) -> int:
        """Bytes of operands that take turns: when the first comes round again, no cache holds it."""
        return DEVICE_CACHE_MULTIPLE * self.last_level_cache_bytes

    def level_of(self, size_bytes: int) -> str:
        """The cache that a working set (per thread on a CPU) lies well inside.

        That is at most half of it, and at least twice the level before. Empty near a border, where two
        levels share the work, and beyond the last level.
        """
        below = 0
        for name, limit in sorted(self.capacities.items(), key=lambda item: item[1]):
            if 2 * below <= size_bytes <= limit // 2:
                return name
            below = limit
        return ""

    @property
    def capacities(self) -> dict[str, int]:
        """Bytes of each cache level that one swept working set may take: a core's share on a CPU."""
        sharers = (self.cores or 1) if self.is_cpu else 1
        return {name: size // sharers for name, size in self.caches.items()}

    def check_memory(self) -> None:
        """Refuse before any work if the working set does not fit. Raises CapacityError."""
        needed = _HEADROOM * self.working_set_bytes
        if self.available_bytes is not None and self.available_bytes < needed:
            raise CapacityError(
                f"not enough free memory to measure bandwidth beyond the caches of {self.name}",
                value=format_bytes(self.available_bytes, binary=True),
                allowed=f"at least {format_bytes(needed, binary=True)} free",
                next="close other programs and measure again",
            )

    def describe(self) -> ProbedDevice:
        """The device as the record names it."""
        return ProbedDevice(
            target=str(self.device),
            kind=self.kind,
            name=self.name,
            memory_bytes=self.memory_bytes,
            spec=None if self.spec is None else self.spec.id,
            threads=self.threads,
            cores=self.cores,
            caches=dict(self.caches),
        )

    def state(self) -> dict[str, Any] | None:
        """What the driver says about an accelerator now; None for a CPU or without a tool that says."""
        if self.kind != "cuda":
            return None
        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return nvidia_state(f"GPU-{uuid}" if uuid is not None else str(self.device.index or 0))

    def empty_cache(self) -> None:
        """Give freed memory back, so that the next probe starts from the same state."""
        if not self.is_cpu:
            self.torch_module.empty_cache()


def open_target(name: str | None = None, *, threads: int | None = None) -> Target:
    """The device called ``name`` (torch's spelling; default: the best there is), ready to measure.

    Raises NotFoundError for a device that is not here, InputError for a name that cannot be or a number of
    threads that this process does not have.
    """
    device = _torch_device(name)
    cpu = read_cpu()
    if device.type == "cpu":
        return _cpu_target(device, cpu, threads)
    if threads is not None:
        raise InputError("--threads is for the CPU", value=threads, next="leave it out, or add --device cpu")
    return _accelerator_target(device, cpu)


def present_devices() -> list[str]:
    """torch's names of the devices of this machine, best first; the CPU always."""
    found = []
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found += [f"{kind}:{index}" for index in range(module.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def _torch_device(name: str | None) -> torch.device:
    present = present_devices()
    if name is None:
        return torch.device(present[0])
    kind, _, index = name.strip().lower().partition(":")
    # torch calls ROCm devices cuda.
    kind = "cuda" if kind in ("rocm", "hip") else kind
    wanted = f"{kind}:{index or 0}" if kind in ("cuda", "xpu") else f"{kind}:{index}" if index else kind
    if wanted not in present:
        raise NotFoundError(
            "device is not in this machine, or this PyTorch cannot use it",
            value=name,
            allowed=", ".join(present),
        )
    return torch.device(wanted)


def _cpu_target(device: torch.device, cpu: CpuInfo, threads: int | None) -> Target:
    usable = cpu.usable_threads or os.cpu_count() or 1
    default = cpu.usable_cores or usable
    if threads is not None and not 1 <= threads <= usable:
        raise InputError(
            "--threads is not usable", value=threads, allowed=f"1 to {usable} (what this process may use)"
        )
    count = default if threads is None else threads
    local = next(item for item in detect_local(cpu=cpu, accelerators=[]) if item.cpu is not None)
    # The catalogue's figures are the whole chip's: they say nothing about a part of it.
    whole = count >= default
    return Target(
        device=device,
        kind="cpu",
        name=cpu.name or "CPU",
        memory_bytes=cpu.usable_memory_bytes,
        available_bytes=available_memory_bytes(),
        caches={name.removesuffix("d"): size for name, size in cpu.caches},
        cores=default,
        threads=count,
        cpus=choose_cpus(count),
        spec=local.catalogue if whole else None,
    )


def choose_cpus(threads: int, *, root: Path = Path("/")) -> tuple[int, ...]:
    """A CPU for each thread to stay on: different physical cores first, then their second threads.

    Empty where the system does not let a thread choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ()
    seen: dict[str, int] = {}
    ranked = []
    for cpu in sorted(os.sched_getaffinity(0)):
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            core = path.read_text().strip()
        except OSError:
            core = str(cpu)
        seen[core] = seen.get(core, -1) + 1
        ranked.append((seen[core], cpu))
    return tuple(cpu for _, cpu in sorted(ranked)[:threads])


def _accelerator_target(device: torch.device, cpu: CpuInfo) -> Target:
    kind = "rocm" if device.type == "cuda" and torch.version.hip else device.type
    if kind == "mps":
        local = _match(None)
        return Target(
            device=device,
            kind=kind,
            name=(local.name if local and local.name else cpu.name) or "Apple GPU",
            memory_bytes=torch.mps.recommended_max_memory(),
            available_bytes=available_memory_bytes(),
            spec=local.catalogue if local else None,
            caches=_catalogue_caches(local.catalogue if local else None),
        )
    module: Any = getattr(torch, device.type)
    properties = module.get_device_properties(device)
    free, total = _memory(module, device, properties)
    local = _match(properties.name)
    spec = local.catalogue if local else None
    caches = _catalogue_caches(spec)
    if size := getattr(properties, "L2_cache_size", 0):
        caches["L2"] = int(size)
    return Target(
        device=device,
        kind=kind,
        name=properties.name,
        memory_bytes=total,
        available_bytes=free,
        caches=caches,
        # XPUs count their cores under another name.
        cores=getattr(properties, "multi_processor_count", None) or getattr(properties, "gpu_eu_count", None),
        spec=spec,
    )


def _memory(module: Any, device: torch.device, properties: Any) -> tuple[int | None, int]:
    """(free, total) bytes; some XPU drivers cannot say how much is free."""
    try:
        free, total = module.mem_get_info(device)
    except RuntimeError:
        return None, int(properties.total_memory)
    return int(free), int(total)


def _match(name: str | None) -> LocalDevice | None:
    """The detected accelerator of that name (any, for the one GPU of an Apple chip)."""
    for item in detect_local():
        if item.cpu is None and (name is None or item.name == name):
            return item
    return None


def _catalogue_caches(spec: Device | None) -> dict[str, int]:
    if spec is None:
        return {}
    sizes = {"L2": spec.l2_bytes, "last-level cache": spec.llc_bytes}
    return {name: size for name, size in sizes.items() if size}
