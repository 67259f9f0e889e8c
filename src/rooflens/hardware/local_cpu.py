"""The CPU of this machine: model, cores this process may use, instruction sets, caches, memory limits.

Linux is read from /proc and /sys, macOS from sysctl; ``root`` lets tests read a captured tree.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rooflens.hardware.shell import Runner, run
from rooflens.hardware.topology import allowed_cpus, core_of, cpu_numbers
from rooflens.units import KIB

FLAGS = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",
    "asimd", "asimddp", "sve", "sve2", "bf16", "i8mm", "sme",
)  # fmt: skip
"""The instruction sets that matter to matrix arithmetic; others are left out."""

_ARM_PARTS = {"0xd40": "Neoverse-V1", "0xd0c": "Neoverse-N1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
_UNLIMITED = 2**60
_SYSCTL_FEATURES = {"hw.optional.arm.FEAT_BF16": "bf16", "hw.optional.arm.FEAT_I8MM": "i8mm"}


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """What the operating system says about the CPU; sizes in bytes, None where it does not say.

    ``usable_cores`` counts physical cores within this process's affinity and its cgroup's quota;
    ``machine_cores`` all of them. ``caches`` holds the total of each level over the usable cores. ``family``
    and ``model`` are the x86 numbers: a virtual machine's name may say no more than the vendor's.
    """

    name: str | None
    machine_cores: int | None
    usable_cores: int | None
    usable_threads: int | None
    quota_cpus: float | None
    sockets: int | None
    flags: tuple[str, ...]
    caches: tuple[tuple[str, int], ...]
    memory_total_bytes: int | None
    memory_limit_bytes: int | None
    family: int | None = None
    model: int | None = None

    @property
    def usable_memory_bytes(self) -> int | None:
        """The smaller of the machine's memory and the cgroup's limit."""
        known = [size for size in (self.memory_total_bytes, self.memory_limit_bytes) if size is not None]
        return min(known, default=None)


def read_cpu(*, root: Path = Path("/"), runner: Runner = run, platform: str = sys.platform) -> CpuInfo:
    """The CPU of this machine; never raises, unknown things are None."""
    if platform == "darwin":
        return _read_macos(runner)
    if platform.startswith("linux"):
        return _read_linux(root)
    return CpuInfo(_plain_name(), None, None, os.cpu_count(), None, None, (), (), None, None)


def _plain_name() -> str | None:
    import platform

    return platform.processor() or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _read_linux(root: Path) -> CpuInfo:
    cpuinfo = _text(root / "proc/cpuinfo")
    fields = dict(re.findall(r"^([^\t:\n]+?)\s*:[ \t]*(.*)$", cpuinfo, re.MULTILINE))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    every = list(cpu_numbers(root))
    allowed = allowed_cpus(every, root)
    quota = _cgroup_quota(root)
    physical = _physical_cores(root, allowed)
    # A virtual machine may hide its topology: then each CPU counts as a core.
    usable = len(physical) or len(allowed) or None
    if usable is not None and quota is not None:
        usable = max(1, min(usable, int(quota)))
    return CpuInfo(
        name=fields.get("model name") or _arm_name(fields, root),
        machine_cores=len(_physical_cores(root, every)) or None,
        usable_cores=usable,
        usable_threads=len(allowed) or None,
        quota_cpus=quota,
        sockets=len({package for package, _ in _physical_cores(root, every)}) or None,
        flags=tuple(flag for flag in FLAGS if flag in flags),
        caches=_caches(root, allowed),
        memory_total_bytes=_memory_total(root),
        memory_limit_bytes=_cgroup_memory(root),
        family=_integer(fields.get("cpu family", "")),
        model=_integer(fields.get("model", "")),
    )


def _arm_name(fields: dict[str, str], root: Path) -> str | None:
    """An ARM core's name; whose chip it is comes from the firmware (``Neoverse-V2 (Graviton4)``)."""
    core = _ARM_PARTS.get(fields.get("CPU part", ""))
    if core is None:
        return fields.get("Hardware") or None
    board = f"{_text(root / 'sys/class/dmi/id/sys_vendor')} {_text(root / 'sys/class/dmi/id/product_name')}"
    if core == "Neoverse-V2" and "Amazon EC2" in board:
        return f"{core} (Graviton4)"
    if core == "Neoverse-V2" and re.search(r"NVIDIA|Grace", board):
        return f"{core} (Grace)"
    return core


def _physical_cores(root: Path, cpus: list[int]) -> set[tuple[str, str]]:
    """Distinct (socket, core) pairs of the given CPUs."""
    return {core for cpu in cpus if (core := core_of(root, cpu)) is not None}


def _caches(root: Path, cpus: list[int]) -> tuple[tuple[str, int], ...]:
    """Total bytes of L1d, L2 and L3 over the given CPUs, a shared cache counted once."""
    shared: dict[str, dict[str, int]] = {}
    for cpu in cpus:
        for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
            level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
            match = re.fullmatch(r"(\d+)K", size)
            if match is None or kind == "Instruction":
                continue
            name = f"L{level}{'d' if level == '1' else ''}"
            sharers = _text(index / "shared_cpu_list") or str(cpu)
            shared.setdefault(name, {})[sharers] = int(match[1]) * KIB
    return tuple((name, sum(sizes.values())) for name, sizes in sorted(shared.items()))


def _memory_total(root: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * KIB if match else None


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroup, innermost first: version 2, else the version 1 controller.

    Inside a container the path that /proc names may not be mounted; its mount point is read then.
    """
    mount, path = None, PurePosixPath("/")
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, name = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            mount, path = root / "sys/fs/cgroup" / controller, PurePosixPath(name)
            break
        if number == "0" and controllers == "":
            mount, path = root / "sys/fs/cgroup", PurePosixPath(name)
    if mount is None:
        return []
    inner = [part for part in (path, *path.parents) if part != PurePosixPath("/")]
    return [*(mount / str(part).lstrip("/") for part in inner), mount]


def _cgroup_quota(root: Path) -> float | None:
    """CPUs that the tightest enclosing cgroup allows; None without a limit."""
    found = []
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        q, p = _integer(quota), _integer(period)
        if q is not None and p is not None and q > 0 and p > 0:
            found.append(q / p)
    return min(found, default=None)


def _cgroup_memory(root: Path) -> int | None:
    """Bytes that the tightest enclosing cgroup allows; None without a limit."""
    found = []
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _integer(_text(folder / name))
            if limit is not None and 0 < limit < _UNLIMITED:
                found.append(limit)
    return min(found, default=None)


def _read_macos(runner: Runner) -> CpuInfo:
    keys = (
        "machdep.cpu.brand_string", "hw.memsize", "hw.physicalcpu", "hw.logicalcpu", "hw.packages",
        "hw.perflevel0.l2cachesize", "hw.l2cachesize", "hw.l3cachesize", "hw.l1dcachesize",
        "machdep.cpu.features", "machdep.cpu.leaf7_features", *_SYSCTL_FEATURES,
    )  # fmt: skip
    # sysctl prints the keys it knows and fails for the rest, so its exit status says nothing.
    known = dict(re.findall(r"^([\w.]+): (.*)$", runner(["sysctl", *keys]).text, re.MULTILINE))

    def whole(key: str) -> int | None:
        return _integer(known.get(key, ""))

    x86 = f"{known.get('machdep.cpu.features', '')} {known.get('machdep.cpu.leaf7_features', '')}".lower()
    flags = set(x86.split()) | {flag for key, flag in _SYSCTL_FEATURES.items() if known.get(key) == "1"}
    sizes = {
        "L1d": whole("hw.l1dcachesize"),
        "L2": whole("hw.perflevel0.l2cachesize") or whole("hw.l2cachesize"),
        "L3": whole("hw.l3cachesize"),
    }
    return CpuInfo(
        name=known.get("machdep.cpu.brand_string"),
        machine_cores=whole("hw.physicalcpu"),
        usable_cores=whole("hw.physicalcpu"),
        usable_threads=whole("hw.logicalcpu"),
        quota_cpus=None,
        sockets=whole("hw.packages"),
        flags=tuple(flag for flag in FLAGS if flag in flags),
        caches=tuple((name, size) for name, size in sizes.items() if size),
        memory_total_bytes=whole("hw.memsize"),
        memory_limit_bytes=None,
    )
