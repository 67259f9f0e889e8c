"""Rooflens: how fast could a language model go, how fast does it go, and what is in the way.

>>> import rooflens
>>> rooflens.plan("Qwen/Qwen2.5-7B-Instruct", "rtx-4090", batch=8).decode.limited_by
'memory'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "calibrate",
    "compare",
    "dense",
    "device_by_hand",
    "devices",
    "display_options",
    "find_device",
    "inspect",
    "plan",
    "roofline",
    "search",
    "serving",
    "sweep",
    "validate",
]

if TYPE_CHECKING:
    from rooflens.api import (
        calibrate,
        compare,
        dense,
        inspect,
        plan,
        roofline,
        search,
        serving,
        sweep,
        validate,
    )
    from rooflens.display import display_options
    from rooflens.hardware import device_by_hand, devices, find_device

_HOMES = {
    "device_by_hand": "rooflens.hardware",
    "devices": "rooflens.hardware",
    "display_options": "rooflens.display",
    "find_device": "rooflens.hardware",
}


def __getattr__(name: str) -> Any:
    """Import the API when it is first used, so that ``import rooflens`` stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'rooflens' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "rooflens.api")), name)
