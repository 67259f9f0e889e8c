"""What ``rooflens run`` prints under the answer: times, and with a profile where they went."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.bench.joined import PhaseRun, phase_runs
from rooflens.bench.run import Run
from rooflens.hardware.device import Device
from rooflens.report.tables.layout import KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_run import run_words
from rooflens.units import format_bytes, format_rate, format_seconds, format_share

#: Within this share of the bound there is little left to gain.
NEAR_BOUND = 0.85


def run_report(run: Run, say: Words, *, device: Device | None = None) -> RenderableType:
    """The whole answer but its text; with a profile the account of both phases, memory and the verdict."""
    say = run_words(say)
    parts: list[RenderableType] = [_title(run, say)]
    if run.backend.tokenizer is None:
        parts.append(Text(say("noise"), style=QUIET))
    if not run.modules:
        return Group(*parts)
    phases = phase_runs(run.profile, run.backend.spec, kv_dtype=run.backend.kv_dtype, device=device)
    parts.append(_phases(phases, say))
    parts += [_modules(phase, say) for phase in phases]
    parts.append(_memory(run, say))
    parts.append(section(heading(say("verdict")), Text(_verdict(run, phases, device, say), style=KEY)))
    return Group(*parts)


def _title(run: Run, say: Words) -> RenderableType:
    backend, request = run.backend, run.profile.requests[0]
    counts = say("tokens", prompt=f"{request.prompt_tokens:,}", output=f"{request.output_tokens:,}")
    first = [counts, say(f"finish.{request.finish_reason}")]
    times = [say("loaded", s=format_seconds(backend.report.load_s))]
    if request.ttft_s is not None:
        times.append(say("first", s=format_seconds(request.ttft_s)))
    if request.tpot_s:
        times.append(say("rate", rate=format_rate(1 / request.tpot_s), tpot=format_seconds(request.tpot_s)))
    held = f"{backend.dtype_name}, KV {backend.kv_dtype}"
    title = say("title", model=run.name, device=backend.device)
    return Group(Text(), heading(title, held), Text(" · ".join(first), style=QUIET), Text(" · ".join(times)))


def _phases(phases: tuple[PhaseRun, ...], say: Words) -> RenderableType:
    heads = [
        Head(say("phase")), Head(say("steps"), number=True), Head(say("per_step"), number=True),
        Head(say("measured"), number=True), Head(say("bound"), number=True), Head(say("ratio"), number=True),
        Head(say("mfu"), number=True), Head(say("mbu"), number=True),
    ]  # fmt: skip
    rows = [
        (
            say(f"phase.{phase.phase}"),
            f"{phase.steps:,}",
            f"{phase.tokens:,.0f}",
            format_seconds(phase.step_s),
            _seconds(phase.bound_s),
            _ratio(phase.step_s, phase.bound_s),
            _share(phase.mfu),
            _share(phase.mbu),
        )
        for phase in phases
    ]
    return section(heading(say("phases"), say("phases.aside")), table(heads, rows))


def _modules(phase: PhaseRun, say: Words) -> RenderableType:
    heads = [
        Head(say("module")), Head(say("roofline"), number=True), Head(say("measured"), number=True),
        Head(say("ratio"), number=True), Head(say("share"), number=True),
    ]  # fmt: skip
    rows: list[tuple[RenderableType, ...]] = []
    timed = 0.0
    for row in phase.rows:
        name = row.name.replace("layers.{i}.", "")
        timed += row.measured_s or 0.0
        rows.append(
            (
                name if row.count == 1 else f"{name} × {row.count}",
                _seconds(row.roofline_s),
                _seconds(row.measured_s),
                _ratio(row.measured_s, row.roofline_s),
                _share(None if row.measured_s is None else row.measured_s / phase.step_s),
            )
        )
    rest = {say("between"): phase.parts_s["model_s"] - timed}
    rest |= {say(f"part.{part}"): seconds for part, seconds in phase.parts_s.items() if part != "model_s"}
    for name, seconds in rest.items():
        if seconds > 0:
            share = _share(seconds / phase.step_s)
            rows.append((Text(name, style=QUIET), "", format_seconds(seconds), "", share))
    rows.append(
        (
            Text(say("whole"), style=KEY),
            _seconds(phase.bound_s),
            format_seconds(phase.step_s),
            _ratio(phase.step_s, phase.bound_s),
            "",
        )
    )
    aside = "modules.bare" if phase.bound_s is None else "modules.aside"
    parts: list[RenderableType] = [table(heads, rows)]
    one_sided = [row.name for row in phase.rows if row.measured_s is None]
    if phase.bound_s is not None:
        one_sided += [row.name for row in phase.rows if row.roofline_s is None]
    if one_sided:
        parts.append(Text(say("unmatched", names=", ".join(one_sided)), style=QUIET))
    title = say("modules", phase=say(f"phase.{phase.phase}"))
    return section(heading(title, say(aside, tokens=f"{phase.tokens:,.0f}")), *parts)


def _memory(run: Run, say: Words) -> RenderableType:
    records = [step.memory for step in run.profile.steps if step.memory is not None]
    if not records:
        return Group()
    last = records[-1]
    figures = {
        "memory.weights": last.weights_bytes,
        "memory.kv_used": max(record.kv_used_bytes for record in records),
        "memory.kv_total": last.kv_total_bytes,
        "memory.allocated": last.allocated_bytes,
        "memory.reserved": last.reserved_bytes,
        "memory.rss": last.rss_bytes,
    }
    rows = [(say(name), format_bytes(value)) for name, value in figures.items() if value is not None]
    return section(heading(say("memory")), table([Head(), Head(number=True)], rows))


def _verdict(run: Run, phases: tuple[PhaseRun, ...], device: Device | None, say: Words) -> str:
    """One sentence on what is in the way of decode (of prefill, where nothing was decoded)."""
    if not phases:
        return ""
    phase = phases[-1]
    if phase.bound_s is None or phase.limited_by is None:
        if device is None:
            return say("no_roof")
        return say("no_peak", device=device.name, dtype=run.backend.dtype_name)
    cause, share = say(f"cause.{phase.limited_by}"), format_share(phase.bound_s / phase.step_s)
    name = say(f"phase.{phase.phase}").capitalize()
    if phase.step_s < phase.bound_s:
        return say("verdict.beats", phase=name)
    if phase.bound_s / phase.step_s >= NEAR_BOUND:
        return say("verdict.fast", phase=name, share=share, cause=cause)
    gaps = {row.name: (row.measured_s or 0.0) - (row.roofline_s or 0.0) for row in phase.rows}
    outside = phase.step_s - sum(row.measured_s or 0.0 for row in phase.rows)
    worst = max(gaps, key=lambda name: gaps[name], default=None)
    shared = {
        "phase": name,
        "ratio": f"{phase.step_s / phase.bound_s:.2f}",
        "cause": cause,
        "whole": format_seconds(phase.step_s),
    }
    if worst is None or outside > gaps[worst]:
        return say("verdict.host", gap=format_seconds(outside), **shared)
    module = worst.replace("layers.{i}.", "")
    return say("verdict.module", module=module, gap=format_seconds(gaps[worst]), **shared)


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


def _share(value: float | None) -> str:
    return "" if value is None else format_share(value)


def _ratio(measured: float | None, predicted: float | None) -> str:
    return "" if not measured or not predicted else f"{measured / predicted:.2f}"
