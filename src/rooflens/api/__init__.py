"""The Python API: names in, one answer out. The command line, the page and notebooks call these."""

from __future__ import annotations

from rooflens.api.measurements import calibrate, validate
from rooflens.api.planning import compare, inspect, plan, roofline, serving, sweep
from rooflens.api.sources import (
    LOCAL,
    DeviceSource,
    ModelSource,
    detected_devices,
    read_spec_of,
    resolve_device,
)
from rooflens.api.steady_state import search, serving_of
from rooflens.models.free_form import dense

__all__ = [
    "LOCAL",
    "DeviceSource",
    "ModelSource",
    "calibrate",
    "compare",
    "dense",
    "detected_devices",
    "inspect",
    "plan",
    "read_spec_of",
    "resolve_device",
    "roofline",
    "search",
    "serving",
    "serving_of",
    "sweep",
    "validate",
]
