"""What ``rooflens roofline`` prints: the roofs, and the attainable rate and regime of each point."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.points import RooflinePoint, RooflineView
from rooflens.report.tables.layout import KEY, Bar, Head, heading, legend, section, table, tag
from rooflens.report.words import Words
from rooflens.units import format_bandwidth, format_flops_per_s, format_rate, format_share


def roofline_report(view: RooflineView, say: Words) -> RenderableType:
    """Both roofs, their meeting point, and one line per point."""
    used: set[str | None] = set()
    parts: list[RenderableType] = [
        Text(f"{roofline_title(view, say)}, {view.compute_dtype}", style="bold"),
        Text(ridge_sentence(view, say)),
        _roofs(view, say, used),
    ]
    if view.points:
        used.add("bound")
        used |= {"estimate"} if any(point.estimate_flops_per_s for point in view.points) else set()
        parts.append(_points(view, say))
    parts.append(legend(say, used))
    return Group(*parts)


def roofline_title(view: RooflineView, say: Words) -> str:
    """The device, and the model where its phases are shown."""
    device = say("device.by_hand") if view.device.name == "by hand" else view.device.name
    if view.model is None:
        return say("roofline.title", device=device)
    return say("roofline.title.model", device=device, model=view.model)


def ridge_sentence(view: RooflineView, say: Words) -> str:
    """What the ridge point means."""
    return say(
        "roofline.sentence",
        ridge=format_rate(view.ridge_flops_per_byte),
        peak=format_flops_per_s(view.peak_flops_per_s),
        bandwidth=format_bandwidth(view.bandwidth_bytes_per_s),
    )


def _roofs(view: RooflineView, say: Words, used: set[str | None]) -> RenderableType:
    """The peak, then every memory level whose bandwidth is known, fastest first."""
    peak = view.device.peak(view.compute_dtype)
    used.add(peak.evidence)
    rows: list[tuple[RenderableType, ...]] = [
        (
            say("roofline.peak", dtype=view.compute_dtype),
            format_flops_per_s(view.peak_flops_per_s),
            "",
            tag(say, peak.evidence),
        )
    ]
    for level in view.device.memory_levels():
        bandwidth = level.bandwidth_bytes_per_s
        if bandwidth is None:
            continue
        used.add(level.bandwidth_evidence)
        rows.append(
            (
                say.term("level", level.name),
                format_bandwidth(bandwidth),
                format_rate(view.peak_flops_per_s / bandwidth),
                tag(say, level.bandwidth_evidence),
            )
        )
    heads = [
        Head(say("roofline.roof")),
        Head(say("roofline.rate"), number=True),
        Head(say("roofline.ridge"), number=True),
        Head(say("evidence")),
    ]
    return section(heading(say("roofline.roofs")), table(heads, rows))


def _points(view: RooflineView, say: Words) -> RenderableType:
    likely = any(point.estimate_flops_per_s is not None for point in view.points)
    rows = [
        (
            point_label(point, say),
            format_rate(point.intensity_flops_per_byte),
            Text(format_flops_per_s(point.attainable_flops_per_s), style=KEY),
            format_share(point.share_of_peak),
            *([_likely(point)] if likely else [Bar(point.share_of_peak, width=12)]),
            say(f"limited.{point.regime}"),
        )
        for point in view.points
    ]
    heads = [
        Head(),
        Head(say("roofline.intensity"), number=True),
        Head(say("roofline.attainable"), number=True),
        Head(say("roofline.share"), number=True),
        Head(say("roofline.likely"), number=True) if likely else Head(),
        Head(say("roofline.regime")),
    ]
    return section(heading(say("roofline.points")), table(heads, rows))


def _likely(point: RooflinePoint) -> str:
    likely = point.estimate_flops_per_s
    return "-" if likely is None else format_flops_per_s(float(likely.mid))


def point_label(point: RooflinePoint, say: Words) -> str:
    """The phase with its batch; a bare intensity is called given."""
    if point.phase is None:
        return say("roofline.given")
    name = say(point.phase.value)
    if point.batch is None:
        return name
    return say("point.of", name=name, label=say("point.batch", batch=f"{point.batch:,}"))
