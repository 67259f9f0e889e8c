"""What ``rooflens devices local`` prints: the devices of this machine and their catalogue entries."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.hardware.local import LocalDevice
from rooflens.report.tables.layout import QUIET, Head, heading, indented, table
from rooflens.report.words import Words
from rooflens.units import format_bytes

UNKNOWN = "-"


def local_report(found: Sequence[LocalDevice], say: Words) -> RenderableType:
    """One block per device: what it is, where that was read, its catalogue entry or what is missing."""
    parts: list[RenderableType] = []
    for device in found:
        rows = [
            (say("local.kind"), " ".join(filter(None, (device.vendor, device.kind)))),
            (say("local.memory"), _size(device.memory_bytes)),
            (say("local.catalogue"), UNKNOWN if device.catalogue is None else device.catalogue.id),
            (say("local.source"), device.source),
        ]
        if device.missing:
            rows.append((say("local.missing"), device.missing))
        name = heading(device.name or UNKNOWN, f"#{device.index}" if device.kind != "cpu" else "")
        parts += [name, indented(table([Head(style=QUIET), Head()], rows)), Text()]
    return Group(*parts[:-1])


def _size(size: int | None) -> str:
    return UNKNOWN if size is None else format_bytes(size, binary=True)
