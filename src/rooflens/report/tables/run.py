"""What ``rooflens run`` prints under the answer: times, and with a profile where they went."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.bench.run import Run
from rooflens.report.tables.account import accounts_sections, explained_reading, times_only
from rooflens.report.tables.layout import QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_run import run_words
from rooflens.runtime.profile.guessing import Guessing
from rooflens.units import format_bytes, format_rate, format_seconds, format_share


def run_report(run: Run, say: Words) -> RenderableType:
    """The whole answer but its text; with a profile the account of both phases, memory and the reading."""
    own = run_words(say)
    parts: list[RenderableType] = [_title(run, own)]
    if run.backend.tokenizer is None:
        parts.append(Text(own("noise"), style=QUIET))
    if not run.modules:
        return Group(*parts)
    explained = run.explained
    if explained is None:
        parts += [times_only(run.profile, say), _memory(run, own), Text(), Text(own("no_roof"))]
        return Group(*parts)
    parts += accounts_sections(explained, say)
    parts += [_memory(run, own), explained_reading(explained, say)]
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
    lines = [Text(), heading(title, held), Text(" · ".join(first), style=QUIET), Text(" · ".join(times))]
    guessing = run.profile.guessing
    if guessing is not None:
        lines.append(Text(_guesses(guessing, say)))
    return Group(*lines)


def _guesses(guessing: Guessing, say: Words) -> str:
    parts = [
        say(
            "guesses",
            accepted=f"{guessing.accepted_tokens:,}",
            drafted=f"{guessing.drafted_tokens:,}",
            share=format_share(guessing.acceptance),
            tokens=format_rate(guessing.tokens_per_step),
        )
    ]
    if guessing.gain is not None:
        parts.append(say("guesses.gain", gain=format_rate(guessing.gain)))
    return " · ".join(parts)


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
