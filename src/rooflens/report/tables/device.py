"""What ``rooflens devices NAME`` prints: memory pyramid, peaks with ridge points, links and sources."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.hardware.device import Device, MemoryLevel, Published
from rooflens.report.tables.layout import QUIET, Head, heading, indented, legend, section, table, tag
from rooflens.report.words import Words
from rooflens.units import (
    MEGA,
    format_bandwidth,
    format_bytes,
    format_flops_per_s,
    format_rate,
    format_seconds,
    format_share,
)

UNKNOWN = "-"
_PLAIN = re.compile(r"[\d.\s–-]+")


def device_report(device: Device, say: Words) -> RenderableType:
    """One device: its memory pyramid, peaks with ridge points, links, published measurements, sources."""
    used: set[str | None] = set()
    parts: list[RenderableType] = [_title(device, say), _pyramid(device, say, used)]
    if device.peaks:
        parts.append(_peaks(device, say, used))
    parts.append(_more(device, say))
    if device.measured:
        parts.append(_published(device, say))
    if device.notes or device.clock_note:
        remarks = [Text(text) for text in (device.notes, device.clock_note) if text]
        parts.append(section(heading(say("notes")), *remarks))
    if device.sources:
        parts.append(_sources(device, say))
    parts.append(legend(say, used))
    return Group(*parts)


def _title(device: Device, say: Words) -> Text:
    made = Text(device.name, style="bold")
    facts = [device.id, device.vendor, device.arch, device.isa, str(device.year or "")]
    made.append("\n" + " · ".join(fact for fact in facts if fact), style=f"not bold {QUIET}")
    if device.aliases:
        also = say("devices.aliases", names=", ".join(device.aliases))
        made.append(f"\n{also}", style=f"not bold {QUIET}")
    missing = device.missing_figures()
    if missing:
        listed = say("list_gap").join(say(f"devices.figure.{name}") for name in missing)
        made.append("\n" + say("devices.missing", figures=listed), style="not bold yellow")
    return made


def _pyramid(device: Device, say: Words, used: set[str | None]) -> RenderableType:
    """Levels fastest first, each line wider than the one above it, as the pyramid is drawn."""
    levels = device.memory_levels()
    rows = []
    for number, level in enumerate(levels):
        used |= {level.size_evidence, level.bandwidth_evidence, level.latency_evidence}
        rows.append(
            (
                Text(_step(number, len(levels)), style="cyan"),
                say.term("level", level.name),
                _size(level, say),
                _rate(level, say),
                _latency(level),
                _level_tags(level, say),
            )
        )
    heads = [
        Head(),
        Head(say("level")),
        Head(say("level.size"), number=True),
        Head(say("level.bandwidth"), number=True),
        Head(say("level.latency"), number=True),
        Head(say("evidence")),
    ]
    return section(heading(say("level.title")), table(heads, rows))


def _step(number: int, count: int) -> str:
    """A triangle of lines: two more marks a level, centred."""
    return ("▄" * (2 * number + 1)).center(2 * count - 1)


def _size(level: MemoryLevel, say: Words) -> str:
    if level.bytes is None:
        return UNKNOWN
    # Caches and SRAM are built in powers of two; device memory is sold in powers of ten.
    total = format_bytes(level.bytes, binary=level.name != "device memory")
    if level.units is None or level.bytes_per_unit is None:
        return total
    each = format_bytes(level.bytes_per_unit, binary=True)
    return f"{total}\n{say('level.each', units=f'{level.units:,}', each=each)}"


def _rate(level: MemoryLevel, say: Words) -> str:
    if level.bandwidth_bytes_per_s is None:
        return UNKNOWN
    rate = format_bandwidth(level.bandwidth_bytes_per_s)
    return rate if level.directions == 1 else f"{rate}\n{say('level.each_way')}"


def _latency(level: MemoryLevel) -> str:
    if level.latency_s is None:
        return UNKNOWN
    return format_seconds(level.latency_s)


def _level_tags(level: MemoryLevel, say: Words) -> Text:
    """Size / bandwidth / latency in that order, once where all agree."""
    tags = [level.size_evidence, level.bandwidth_evidence, level.latency_evidence]
    known = [say(f"evidence.{name}") for name in tags if name is not None]
    return Text(" / ".join(dict.fromkeys(known)), style=QUIET)


def _peaks(device: Device, say: Words, used: set[str | None]) -> RenderableType:
    bandwidth = device.bandwidth_bytes_per_s
    rows = []
    for peak in device.peaks:
        used.add(peak.evidence)
        ridge = UNKNOWN if bandwidth is None else format_rate(peak.flops_per_s / bandwidth)
        accumulate = say.term("accumulate", peak.dtype)
        rows.append(
            (
                Text(peak.dtype, style="bold"),
                format_flops_per_s(peak.flops_per_s),
                ridge,
                tag(say, peak.evidence),
                Text("" if accumulate == peak.dtype else accumulate, style=QUIET),
            )
        )
    heads = [
        Head(say("peaks.dtype")),
        Head(say("peaks.dense"), number=True),
        Head(say("peaks.ridge"), number=True),
        Head(say("evidence")),
        Head(),
    ]
    return section(heading(say("peaks.title"), say("peaks.aside")), table(heads, rows))


def _more(device: Device, say: Words) -> RenderableType:
    rows: list[tuple[str, str]] = []
    if device.sm_count is not None:
        rows.append((say("more.units"), f"{device.sm_count:,}"))
    if device.clock_hz is not None:
        rows.append((say("more.clock"), say("more.clock.value", mhz=f"{device.clock_hz / MEGA:,.0f}")))
    for key, link in (("more.link", device.link), ("more.host_link", device.host_link)):
        if link is not None:
            rate = link.bytes_per_s_per_direction
            shown = UNKNOWN if rate is None else say("more.link.value", rate=format_bandwidth(rate))
            rows.append((say(key), f"{link.name}, {shown}"))
    if device.tdp_w is not None:
        rows.append((say("more.power"), f"{device.tdp_w:,.0f} W"))
    if device.reported_memory_bytes is not None:
        rows.append((say("more.reported"), format_bytes(device.reported_memory_bytes, binary=True)))
    if device.check_formula:
        residual = "" if device.check_residual is None else f" ({format_share(abs(device.check_residual))})"
        rows.append((say("more.check"), device.check_formula + residual))
    if device.confidence:
        listed = ", ".join(f"{say.term('source', group)} {how}" for group, how in device.confidence)
        rows.append((say("more.confidence"), listed))
    return section(heading(say("more.title")), table([Head(), Head()], rows)) if rows else Group()


def _published(device: Device, say: Words) -> RenderableType:
    rows = [(say.term("published", name), _figure(name, figure)) for name, figure in device.measured]
    body: list[RenderableType] = [table([Head(), Head(number=True)], rows)]
    if device.measured_source:
        body.append(Text(device.measured_source, style=QUIET, overflow="fold"))
    return section(heading(say("published.title")), *body)


def _figure(name: str, figure: Published) -> str:
    """The published figure or range, and the text it was found in where that says more."""
    if figure.low is None:
        return figure.text
    unit = format_bandwidth if name.startswith("bandwidth") else format_flops_per_s
    low = unit(figure.low)
    shown = low if figure.high in (None, figure.low) else f"{low} – {unit(figure.high or figure.low)}"
    return shown if _PLAIN.fullmatch(figure.text) else f"{shown}  ({figure.text})"


def _sources(device: Device, say: Words) -> RenderableType:
    """Each source once, with what it was read for."""
    groups: dict[str, list[str]] = {}
    for group, source in device.sources:
        groups.setdefault(source, []).append(say.term("source", group))
    lines: list[RenderableType] = [Text(), heading(say("sources.title"))]
    for source, names in groups.items():
        lines.append(indented(Text(", ".join(names) + ":", style=QUIET)))
        # An address in one piece can be followed and searched for: the terminal wraps it, not we.
        whole = source.startswith("http")
        line = Text(f"  {source}", style=QUIET, no_wrap=True, overflow="ignore")
        lines.append(line if whole else indented(Text(source, style=QUIET, overflow="fold")))
    if device.verified:
        lines.append(indented(Text(say("sources.verified", how=device.verified), style=QUIET)))
    return Group(*lines)
