"""Accelerators of this machine, from each vendor's own tool, else from the PCI bus; never raises."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rooflens.hardware.shell import Runner, run
from rooflens.units import MIB

NVIDIA_FIELDS = (
    "index", "name", "memory.total", "driver_version", "power.limit", "compute_cap", "mig.mode.current",
)  # fmt: skip
_OLD_NVIDIA_FIELDS = NVIDIA_FIELDS[:4]
_PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_PCI_DISPLAY, _PCI_ACCELERATOR = "0x03", "0x12"
_TOOLS = {"NVIDIA": "nvidia-smi", "AMD": "amd-smi or rocm-smi", "Intel": "xpu-smi"}


@dataclass(frozen=True, slots=True)
class Found:
    """An accelerator as its tool describes it; ``problem`` says why that is not enough, if it is not."""

    vendor: str
    name: str
    index: int
    source: str
    memory_bytes: int | None = None
    unified_memory: bool = False
    cores: int | None = None
    driver: str | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None
    problem: str | None = None


def find_accelerators(
    *, runner: Runner = run, root: Path = Path("/"), platform: str = sys.platform
) -> list[Found]:
    """Every accelerator that a vendor's tool or the PCI bus shows."""
    if platform == "darwin":
        return apple(runner)
    found = [*nvidia(runner), *amd(runner), *intel(runner)]
    answered = {device.vendor for device in found}
    return [*found, *(device for device in pci(root) if device.vendor not in answered)]


def nvidia(runner: Runner) -> list[Found]:
    """NVIDIA devices from ``nvidia-smi --query-gpu``, or from NVML where only its library is there."""
    for fields in (NVIDIA_FIELDS, _OLD_NVIDIA_FIELDS):
        output = runner(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        if output.ok:
            return parse_nvidia_smi(output.text, fields)
        if not output.installed:
            return _nvml()
        if "not a valid field" not in output.why:
            break
    return [Found("NVIDIA", "NVIDIA GPU", 0, "nvidia-smi", problem=output.why)]


def parse_nvidia_smi(text: str, fields: tuple[str, ...]) -> list[Found]:
    """Rows of ``--format=csv,noheader,nounits``; memory there is MiB, ``[N/A]`` where not known."""
    found = []
    for line in text.splitlines():
        cells = dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False))
        if not cells.get("name"):
            continue
        memory = _figure(cells.get("memory.total"))
        mig = cells.get("mig.mode.current") == "Enabled"
        found.append(
            Found(
                vendor="NVIDIA",
                name=cells["name"],
                index=int(_figure(cells.get("index")) or 0),
                source="nvidia-smi",
                memory_bytes=None if memory is None else round(memory * MIB),
                driver=_stated(cells.get("driver_version")),
                compute_capability=_stated(cells.get("compute_cap")),
                power_limit_w=_figure(cells.get("power.limit")),
                problem="MIG is enabled: a slice does not have the whole card's figures" if mig else None,
            )
        )
    return found


def _nvml() -> list[Found]:
    """NVML through its Python binding, if that is installed; its errors have no common public base."""
    found = []
    try:
        pynvml: Any = import_module("pynvml")
        pynvml.nvmlInit()
    except Exception:
        return []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            name = name.decode() if isinstance(name, bytes) else str(name)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(Found("NVIDIA", name, index, "nvml", memory_bytes=memory))
        pynvml.nvmlShutdown()
    except Exception as error:
        if not found:
            return [Found("NVIDIA", "NVIDIA GPU", 0, "nvml", problem=f"NVML failed: {error}")]
    return found


def amd(runner: Runner) -> list[Found]:
    """AMD devices from amd-smi, else rocm-smi."""
    output = runner(["amd-smi", "static", "--asic", "--vram", "--json"])
    if output.ok and (found := parse_amd_smi(output.text)):
        return found
    older = runner(["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"])
    if older.ok and (found := parse_rocm_smi(older.text)):
        return found
    for tool in (output, older):
        if tool.installed:
            return [Found("AMD", "AMD GPU", 0, "amd-smi", problem=tool.why or "the tool listed no device")]
    return []


def parse_amd_smi(text: str) -> list[Found]:
    """``amd-smi static --json``: a list, or an object with ``gpu_data``; its MB are MiB."""
    data = _json(text)
    rows = data.get("gpu_data") if isinstance(data, dict) else data
    found = []
    for row in rows if isinstance(rows, list) else []:
        asic, vram = _object(row, "asic"), _object(row, "vram")
        name = _stated(asic.get("market_name"))
        if name is None:
            continue
        size = vram.get("size")
        value = _figure(str(size.get("value") if isinstance(size, dict) else size))
        cores = _figure(str(asic.get("num_compute_units", "")))
        found.append(
            Found(
                vendor="AMD",
                name=name,
                index=int(_figure(str(row.get("gpu"))) or 0),
                source="amd-smi",
                memory_bytes=None if value is None else round(value * MIB),
                cores=None if cores is None else int(cores),
                compute_capability=_stated(asic.get("target_graphics_version")),
            )
        )
    return found


def parse_rocm_smi(text: str) -> list[Found]:
    """``rocm-smi --json``: one object per ``cardN``; key spelling changed case between releases."""
    data = _json(text)
    found = []
    for card, row in data.items() if isinstance(data, dict) else []:
        number = re.fullmatch(r"card(\d+)", card)
        if number is None or not isinstance(row, dict):
            continue
        cells = {key.lower(): str(value) for key, value in row.items()}
        names = (_stated(cells.get(key)) for key in ("card series", "card model", "device name"))
        name = next((name for name in names if name and not name.startswith("0x")), None)
        memory = _figure(cells.get("vram total memory (b)"))
        found.append(
            Found(
                vendor="AMD",
                name=name or "AMD GPU",
                index=int(number[1]),
                source="rocm-smi",
                memory_bytes=None if memory is None else round(memory),
                compute_capability=_stated(cells.get("gfx version")),
                problem=None if name else "rocm-smi gave no product name",
            )
        )
    return found


def intel(runner: Runner) -> list[Found]:
    """Intel devices from xpu-smi."""
    output = runner(["xpu-smi", "discovery", "-j"])
    if not output.installed:
        return []
    found = []
    for device_id, name in parse_xpu_smi(output.text) if output.ok else []:
        detail = _json(runner(["xpu-smi", "discovery", "-d", str(device_id), "-j"]).text)
        size = detail.get("memory_physical_size_byte") if isinstance(detail, dict) else None
        memory = _figure(str(size)) if size is not None else None
        found.append(
            Found("Intel", name, device_id, "xpu-smi", memory_bytes=None if memory is None else round(memory))
        )
    return found or [
        Found("Intel", "Intel GPU", 0, "xpu-smi", problem=output.why or "xpu-smi listed no device")
    ]


def parse_xpu_smi(text: str) -> list[tuple[int, str]]:
    """Ids and names of ``xpu-smi discovery -j``."""
    data = _json(text)
    rows = data.get("device_list") if isinstance(data, dict) else None
    return [
        (int(row["device_id"]), str(row["device_name"]))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and "device_name" in row and str(row.get("device_id", "")).isdigit()
    ]


def apple(runner: Runner) -> list[Found]:
    """The Apple GPU from system_profiler; its memory is the machine's."""
    return parse_system_profiler(runner(["system_profiler", "SPDisplaysDataType", "-json"]).text)


def parse_system_profiler(text: str) -> list[Found]:
    """``system_profiler SPDisplaysDataType -json``: only GPUs of Apple's own chips."""
    data = _json(text)
    rows = data.get("SPDisplaysDataType") if isinstance(data, dict) else None
    found = []
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        name = _stated(row.get("sppci_model") or row.get("_name")) if isinstance(row, dict) else None
        if name is None or not name.startswith("Apple"):
            continue
        cores = _figure(str(row.get("sppci_cores", "")))
        found.append(
            Found(
                "Apple",
                name,
                index,
                "system_profiler",
                unified_memory=True,
                cores=None if cores is None else int(cores),
            )
        )
    return found


def pci(root: Path) -> Iterator[Found]:
    """Display and processing accelerators on the PCI bus; the amdgpu driver also gives name and memory."""
    for index, folder in enumerate(sorted((root / "sys/bus/pci/devices").glob("*"))):
        kind, vendor, device = (_read(folder / name) for name in ("class", "vendor", "device"))
        maker = _PCI_VENDORS.get(vendor)
        if maker is None or not kind.startswith((_PCI_DISPLAY, _PCI_ACCELERATOR)):
            continue
        name, memory = _read(folder / "product_name"), _figure(_read(folder / "mem_info_vram_total"))
        problem = f"only seen on the PCI bus: install {_TOOLS[maker]} to identify it"
        yield Found(
            maker,
            name or f"{maker} PCI device {device}",
            index,
            "pci",
            memory_bytes=round(memory) if name and memory else None,
            problem=None if name and memory else problem,
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _json(text: str) -> Any:
    """JSON that may follow warnings on earlier lines; None if there is none."""
    match = re.search(r"^[\[{]", text, re.MULTILINE)
    if match is None:
        return None
    try:
        return json.loads(text[match.start() :])
    except ValueError:
        return None


def _object(row: Any, key: str) -> dict[str, Any]:
    value = row.get(key) if isinstance(row, dict) else None
    return value if isinstance(value, dict) else {}


def _stated(text: Any) -> str | None:
    """A text, unless it is blank or one of the ways to say that there is none."""
    if not isinstance(text, str):
        return None
    text = text.strip()
    return None if text.strip("[]").upper() in ("", "N/A", "NOT SUPPORTED", "UNKNOWN ERROR") else text


def _figure(text: str | None) -> float | None:
    match = re.match(r"\d+(?:\.\d+)?", text or "")
    return float(match[0]) if match else None
