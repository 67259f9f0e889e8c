"""The environment a measurement was taken in: read, recorded, never changed."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rooflens
from rooflens.hardware.local_cpu import CpuInfo, read_cpu
from rooflens.hardware.shell import Runner, run
from rooflens.units import KIB, KILO, MEGA, MIB

VARIABLES = (
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "CUDA_LAUNCH_BLOCKING", "PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD",
    "ROOFLENS_NATIVE", "ROOFLENS_PIN",
)  # fmt: skip
"""Settings of the process that move figures; no other variable is recorded."""

_NVIDIA_STATE = (
    "driver_version", "power.limit", "power.draw", "clocks.sm", "clocks.max.sm", "clocks.mem",
    "temperature.gpu", "utilization.gpu", "ecc.mode.current", "mig.mode.current", "persistence_mode",
    "clocks_throttle_reasons.active",
)  # fmt: skip


def fingerprint(
    *,
    torch: Any = None,
    threads: int | None = None,
    cpu: CpuInfo | None = None,
    accelerator: dict[str, Any] | None = None,
    root: Path = Path("/"),
) -> dict[str, Any]:
    """Everything at hand that figures depend on, as JSON; null where the system does not say.

    ``torch`` is the imported module, if one is used; ``accelerator`` what is known of the device measured.
    """
    cpu = read_cpu(root=root) if cpu is None else cpu
    return {
        "rooflens": rooflens.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "torch": _torch(torch),
        "cpu": {**asdict(cpu), "flags": list(cpu.flags), "caches": dict(cpu.caches)},
        "threads": threads,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_available_bytes": available_memory_bytes(root=root),
        "governor": _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "boost": _text(root / "sys/devices/system/cpu/cpufreq/boost"),
        "clock_hz": cpu_clock_hz(root=root),
        "virtual_machine": _virtual_machine(root),
        "transparent_huge_pages": _chosen(_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "numa_balancing": _text(root / "proc/sys/kernel/numa_balancing"),
        "on_battery": _on_battery(root),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "accelerator": accelerator,
    }


def nvidia_state(index: str, *, runner: Runner = run) -> dict[str, Any] | None:
    """Driver, clocks, power, throttling and other processes of one NVIDIA device; None without the tool.

    ``index`` is the number or UUID that nvidia-smi knows the device by. Clocks in Hz, power in watts.
    """
    output = runner(
        ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(_NVIDIA_STATE)}",
         "--format=csv,noheader,nounits"]
    )  # fmt: skip
    if not output.ok:
        return None
    cells = [cell.strip() for cell in output.text.strip().split(",")]
    state: dict[str, Any] = {}
    for field, cell in zip(_NVIDIA_STATE, cells, strict=False):
        known = None if cell.strip("[]") in ("", "N/A", "Not Supported") else cell
        name = field.replace(".", "_")
        if field.startswith("clocks.") and known is not None:
            state[f"{name}_hz"] = float(known) * MEGA
        elif field.startswith("power.") and known is not None:
            state[f"{name}_w"] = float(known)
        else:
            state[name] = known
    state["other_processes"] = _nvidia_processes(index, runner)
    return state


def _nvidia_processes(index: str, runner: Runner) -> list[dict[str, Any]] | None:
    output = runner(
        ["nvidia-smi", f"--id={index}", "--query-compute-apps=pid,process_name,used_memory",
         "--format=csv,noheader,nounits"]
    )  # fmt: skip
    if not output.ok:
        return None
    found = []
    for line in output.text.splitlines():
        pid, _, rest = line.partition(",")
        name, _, memory = rest.rpartition(",")
        if pid.strip().isdigit() and int(pid) != os.getpid():
            used = memory.strip()
            found.append(
                {"name": Path(name.strip()).name, "bytes": int(used) * MIB if used.isdigit() else None}
            )
    return found


def available_memory_bytes(*, root: Path = Path("/")) -> int | None:
    """Bytes this process may still take: the kernel's estimate, and what its cgroup's limit leaves."""
    known = _kib(root / "proc/meminfo", "MemAvailable")
    if limit := read_cpu(root=root).memory_limit_bytes:
        known += [max(0, limit - own) for own in _kib(root / "proc/self/status", "VmRSS") or [0]]
    return min(known, default=None)


def _kib(path: Path, field: str) -> list[int]:
    """The bytes of a field that a /proc file gives in kB (which are KiB there)."""
    lines = (_text(path) or "").splitlines()
    return [int(line.split()[1]) * KIB for line in lines if line.startswith(f"{field}:")]


def cpu_clock_hz(*, root: Path = Path("/")) -> float | None:
    """The fastest core's clock now: cpufreq, else what /proc/cpuinfo prints; None where neither says."""
    clocks = [
        float(text) * KILO
        for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        if (text := _text(path)) and text.isdigit()
    ]
    if not clocks:
        lines = (_text(root / "proc/cpuinfo") or "").splitlines()
        clocks = [float(line.partition(":")[2]) * MEGA for line in lines if line.startswith("cpu MHz")]
    return max(clocks, default=None)


def _torch(torch: Any) -> dict[str, Any] | None:
    if torch is None:
        return None
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": bool(torch.backends.mkldnn.is_available()),
        "mkl": bool(torch.backends.mkl.is_available()),
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _chosen(options: str | None) -> str | None:
    """The bracketed one of ``always [madvise] never``."""
    if options is None or "[" not in options:
        return options
    return options.partition("[")[2].partition("]")[0]


def _virtual_machine(root: Path) -> bool | None:
    text = _text(root / "proc/cpuinfo")
    if text is None or sys.platform != "linux":
        return None
    return any("hypervisor" in line.split() for line in text.splitlines() if line.startswith("flags"))


def _on_battery(root: Path) -> bool | None:
    """Whether a laptop runs from its battery: mains present but off; None for machines without either."""
    online = [
        _text(folder / "online")
        for folder in (root / "sys/class/power_supply").glob("*")
        if _text(folder / "type") == "Mains"
    ]
    return None if not online else not any(value == "1" for value in online)
