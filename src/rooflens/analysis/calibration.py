"""What kernels and engines reach, by kind of device, format, engine and link: fitted figures with defaults.

The table ``data/calibration.json`` is written by ``benchmarks/fit_estimates.py`` from published
measurements. A device, engine or format that no measurement covers takes the default of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflens.analysis.kernels import KernelRates
from rooflens.analysis.numeric import Quantity
from rooflens.analysis.workload import GGUF_PREFIXES
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec

TABLE = Path(__file__).parent / "data" / "calibration.json"

NVIDIA_HBM, NVIDIA_GDDR, AMD, INTEL, APPLE, UNIFIED, CPU, OTHER = (
    "nvidia-hbm", "nvidia-gddr", "amd", "intel", "apple", "unified", "cpu", "other",
)  # fmt: skip
DEVICE_CLASSES = (NVIDIA_HBM, NVIDIA_GDDR, AMD, INTEL, APPLE, UNIFIED, CPU, OTHER)
MEASURED = "measured"
"""A device whose bandwidth its own probe has measured: kernels are judged against what it reaches."""

FORMATS = ("16-bit", "8-bit", "4-bit", "gguf-8-bit", "gguf-4-bit")
LLAMA_CPP_ON = {NVIDIA_HBM: "llama.cpp on nvidia-hbm", APPLE: "llama.cpp on apple"}
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", *LLAMA_CPP_ON.values(), "gpt-fast", "rooflens")
DEFAULT = "default"
NVLINK, PCIE, NETWORK = "nvlink", "pcie", "network"
LINKS = (NVLINK, PCIE, NETWORK)

_ENGINE_ALIASES = {"ollama": "llama.cpp", "trt-llm": "tensorrt-llm", "none": DEFAULT}


def device_class(device: Device) -> str:
    """Which class's figures apply to a device by its data sheet."""
    vendor = (device.vendor or "").lower()
    if device.kind == "cpu":
        return CPU
    if vendor == "apple":
        return APPLE
    memory = device.memory_type or ""
    if "DDR" in memory and "GDDR" not in memory:
        return UNIFIED
    if vendor == "nvidia":
        return NVIDIA_HBM if "HBM" in memory else NVIDIA_GDDR
    return vendor if vendor in (AMD, INTEL) else OTHER


def engine_class(engine: str, device: str) -> str:
    """The engine whose figures apply on a class of device; the default for one without figures.

    llama.cpp's kernels for NVIDIA are written for consumer cards and those for Apple in the GPU's own
    language, so data-centre parts and Apple's have figures of their own.
    """
    name = engine.strip().lower()
    name = _ENGINE_ALIASES.get(name, name)
    if name == "llama.cpp" and device in LLAMA_CPP_ON:
        return LLAMA_CPP_ON[device]
    return name if name in ENGINES else DEFAULT


@lru_cache(maxsize=256)
def format_class(spec: ModelSpec) -> str:
    """Bits a weight and whose kernels read them."""
    from rooflens.models.accounting import count_parameters, weights_bytes
    from rooflens.units import BITS_PER_BYTE

    quantised = (spec.quantization or "").lower()
    gguf = "gguf-" if quantised.startswith(GGUF_PREFIXES) else ""
    bits = weights_bytes(spec) * BITS_PER_BYTE / max(1, count_parameters(spec).total)
    if bits > 12:
        return FORMATS[0]
    return f"{gguf}{'8-bit' if bits > 6.5 else '4-bit'}"


def link_class(device: Device) -> str:
    """How devices of this kind talk to each other within a machine."""
    if device.link is None:
        return PCIE
    name = device.link.name.lower()
    return NETWORK if any(word in name for word in ("gbe", "roce", "ethernet", "connectx")) else NVLINK


@dataclass(frozen=True)
class EngineRates:
    """What an engine adds to its kernels, in seconds.

    ``enqueue_s`` a kernel that is started one by one (prefill; decode steps replay a graph); ``host_s`` a
    step and ``host_per_sequence_s`` each of its sequences (scheduling, sampling, detokenising);
    ``request_s`` before a request's first step.
    """

    enqueue_s: Quantity
    host_s: Quantity
    host_per_sequence_s: Quantity
    request_s: Quantity


@dataclass(frozen=True)
class LinkRates:
    """Share of a link's rate that collectives reach, and seconds an all-reduce takes at least."""

    share: Quantity
    latency_s: Quantity
    crowding: Quantity
    """Exponent of how the rate falls and the latency grows with more than two devices."""


@dataclass(frozen=True)
class Calibration:
    """One consistent set of figures."""

    table: Mapping[str, Any]

    def kernel_rates(self, device: str, engine: str, weights: str) -> KernelRates:
        """The kernels of an engine on a class of device for a class of formats."""
        general = self.table["general"]
        of_device, of_format = self.table["devices"][device], self.table["formats"][weights]
        of_engine = self._engine(engine)
        bandwidth = of_device["bandwidth"] * of_format["bandwidth"] * of_engine["bandwidth"]
        compute = of_device["compute"] * of_format["compute"] * of_engine["compute"]
        launch = of_device["launch_s"] * of_engine["launch"]
        return KernelRates(
            bandwidth=bandwidth,
            compute=compute,
            expert_bandwidth=bandwidth * general["expert_bandwidth"],
            expert_compute=compute * general["expert_compute"],
            kv_bandwidth=of_device["bandwidth"] * general["kv_bandwidth"] * of_engine["attention"],
            attention_compute=of_device["compute"] * general["attention_compute"] * of_engine["attention"],
            activation_bandwidth=general["activation_bandwidth"],
            launch_s=launch,
            small_launch_s=launch * general["small_launch"],
            padding_rows=general["padding_rows"],
            sharpness=general["sharpness"],
        )

    def engine_rates(self, engine: str) -> EngineRates:
        """What an engine adds around its kernels."""
        found = self._engine(engine)
        names = ("enqueue_s", "host_s", "host_per_sequence_s", "request_s")
        return EngineRates(**{name: found[name] for name in names})

    def link_rates(self, link: str) -> LinkRates:
        """What collectives reach on a kind of link."""
        return LinkRates(**self.table["links"][link])

    def widths(self) -> dict[str, tuple[float, float]]:
        """By kind of figure: logarithms of low and high over the likely time."""
        return {name: (low, high) for name, (low, high) in self.table["widths"].items()}

    def _engine(self, engine: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.table["engines"].get(engine) or self.table["engines"][DEFAULT]
        return found


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """The figures that come with the product; read once, when first needed."""
    return Calibration(json.loads(TABLE.read_text(encoding="utf-8")))
