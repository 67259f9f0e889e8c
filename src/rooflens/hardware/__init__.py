"""Devices: the catalogue, devices given by hand or measured, and what is in this machine.

Names are loaded on first use, so that a plan for a named device pays for the catalogue alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflens.hardware.catalogue import devices, filter_devices, find_device, suggestions
    from rooflens.hardware.device import (
        ANY_DTYPE,
        DTYPES,
        Device,
        Evidence,
        Link,
        MemoryLevel,
        Peak,
        compute_dtype_name,
    )
    from rooflens.hardware.given import device_by_hand, device_from_measurement, device_with
    from rooflens.hardware.guard import PeakCheck, check_peaks
    from rooflens.hardware.local import LocalDevice, detect_local, local_device

__all__ = [
    "ANY_DTYPE",
    "DTYPES",
    "Device",
    "Evidence",
    "Link",
    "LocalDevice",
    "MemoryLevel",
    "Peak",
    "PeakCheck",
    "check_peaks",
    "compute_dtype_name",
    "detect_local",
    "device_by_hand",
    "device_from_measurement",
    "device_with",
    "devices",
    "filter_devices",
    "find_device",
    "local_device",
    "suggestions",
]

_HOMES = {
    "catalogue": ("devices", "filter_devices", "find_device", "suggestions"),
    "device": (
        "ANY_DTYPE", "DTYPES", "Device", "Evidence", "Link", "MemoryLevel", "Peak", "compute_dtype_name",
    ),
    "given": ("device_by_hand", "device_from_measurement", "device_with"),
    "guard": ("PeakCheck", "check_peaks"),
    "local": ("LocalDevice", "detect_local", "local_device"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
