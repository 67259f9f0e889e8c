"""What ``rooflens devices`` prints: the catalogue as a list, one line per device."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.hardware.device import Device, Peak
from rooflens.report.tables.layout import QUIET, Head, table
from rooflens.report.words import Words
from rooflens.units import format_bandwidth, format_bytes, format_flops_per_s, format_rate

# What matrix multiplies of a 16-bit model run in: the list shows the first of these that is known.
_LISTED = ("bf16", "fp16", "fp32", "any")
UNKNOWN = "-"


def devices_report(devices: Sequence[Device], say: Words) -> RenderableType:
    """One line per device: memory, bandwidth, 16-bit peak and its ridge point."""
    heads = [
        Head(say("devices.id"), style="bold"),
        Head(say("devices.memory"), number=True),
        Head(say("devices.bandwidth"), number=True),
        Head(say("devices.peak"), number=True),
        Head(),
        Head(say("devices.ridge"), number=True),
        Head(say("devices.vendor"), style=QUIET),
    ]
    if not devices:
        return Text(say("devices.none"))
    body = table(heads, [_line(device) for device in devices])
    return Group(body, Text(), Text(say("devices.more", count=f"{len(devices):,}"), style=QUIET))


def _line(device: Device) -> tuple[str, ...]:
    peak = listed_peak(device)
    bandwidth = device.bandwidth_bytes_per_s
    return (
        device.id,
        UNKNOWN if device.memory_bytes is None else format_bytes(device.memory_bytes),
        UNKNOWN if bandwidth is None else format_bandwidth(bandwidth),
        UNKNOWN if peak is None else format_flops_per_s(peak.flops_per_s),
        "" if peak is None else peak.dtype,
        UNKNOWN if peak is None or bandwidth is None else format_rate(peak.flops_per_s / bandwidth),
        device.vendor or "",
    )


def listed_peak(device: Device) -> Peak | None:
    """The peak that 16-bit models run at: bf16, else fp16, else fp32."""
    known = {peak.dtype: peak for peak in device.peaks}
    return next((known[dtype] for dtype in _LISTED if dtype in known), None)
