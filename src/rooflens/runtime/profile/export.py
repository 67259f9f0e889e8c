"""A profile as files: JSON, CSV, and a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rooflens.runtime.engine.records import PHASES, RequestRecord
from rooflens.runtime.profile.engine import EngineProfile, ProfiledStep
from rooflens.units import MEGA

_STEPS, _REQUESTS = 1, 2  # the trace's two processes
#: Parts of a microsecond that times of a trace are rounded to. Eighths are exact as floats and as whole
#: nanoseconds, so slices nest as they did: Perfetto drops one that ends a nanosecond after the one around it.
_PARTS = 8


class Document(Protocol):
    """What has a JSON form: an ``EngineProfile``, or a ``RunProfile`` with its accounts."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        ...


def write_json(profile: Document, path: Path) -> None:
    """The whole profile, schema ``rooflens.profile/1``."""
    path.write_text(json.dumps(profile.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_csv(profile: EngineProfile, *, steps: Path, requests: Path) -> None:
    """Two tables: a row for each step (its memory beside it), and one for each answer."""
    rows = [
        step.record.to_dict() | ({} if step.memory is None else _memory_columns(step))
        for step in profile.steps
    ]
    _write_rows(steps, rows)
    answers = []
    for request in profile.requests:
        row = request.to_dict()
        row["itl_s"] = " ".join(f"{value:.9g}" for value in row["itl_s"])
        answers.append(row)
    _write_rows(requests, answers)


def _memory_columns(step: ProfiledStep) -> dict[str, Any]:
    assert step.memory is not None
    return {name: value for name, value in step.memory.to_dict().items() if name != "step"}


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_trace(profile: EngineProfile, path: Path) -> None:
    """Trace events: steps with their parts and modules, answers on rows of their own, counters."""
    document = {"traceEvents": list(trace_events(profile)), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


def trace_events(profile: EngineProfile) -> Iterator[dict[str, Any]]:
    """The events of the Trace Event Format; times are microseconds since the first thing that happened."""
    starts = [step.record.started_s for step in profile.steps]
    origin = min([*starts, *(request.arrival_s for request in profile.requests)], default=0.0)

    def at(seconds: float) -> float:
        return round((seconds - origin) * MEGA * _PARTS) / _PARTS

    def slice_of(name: str, start: float, end: float, row: int, process: int, **args: Any) -> dict[str, Any]:
        return {
            "name": name,
            "ph": "X",
            "ts": at(start),
            "dur": max(0.0, at(end) - at(start)),
            "pid": process,
            "tid": row,
            "args": args,
        }

    for process, name in ((_STEPS, "engine"), (_REQUESTS, "answers")):
        yield {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}
    for step in profile.steps:
        record = step.record
        yield slice_of(
            f"{record.phase} step", record.started_s, record.started_s + record.total_s, 0, _STEPS,
            **record.to_dict(),
        )  # fmt: skip
        start, last = record.started_s, record.started_s + record.total_s
        for phase in PHASES:
            end = min(start + getattr(record, phase), last)
            if end > start:
                yield slice_of(phase.removesuffix("_s"), start, end, 0, _STEPS)
            start = end
        if step.modules is not None:
            for module, begun, ended in step.modules.calls():
                yield slice_of(module, begun, ended, 0, _STEPS)
        yield from _counters(step, at(record.started_s + record.total_s))
    for row, request in enumerate(profile.requests):
        for name, start, end in _stages(request):
            yield slice_of(name, start, end, row, _REQUESTS, request_id=request.request_id)


def _counters(step: ProfiledStep, when: float) -> Iterator[dict[str, Any]]:
    record = step.record
    series: dict[str, dict[str, int]] = {
        "KV blocks": {
            "used": record.kv_blocks_used,
            "cached": record.kv_blocks_cached,
            "free": record.kv_blocks_free,
        },
        "sequences": {"running": record.running, "waiting": record.waiting},
        "tokens of a step": {"prefill": record.prefill_tokens, "decode": record.decode_tokens},
    }
    if step.memory is not None and step.memory.rss_bytes is not None:
        series["resident bytes"] = {"rss": step.memory.rss_bytes}
    for name, values in series.items():
        yield {"name": name, "ph": "C", "ts": when, "pid": _STEPS, "tid": 0, "args": values}


def _stages(request: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) of what an answer went through."""
    scheduled = request.finished_s if request.scheduled_s is None else request.scheduled_s
    first = request.token_times_s[0][0] if request.token_times_s else request.finished_s
    yield "queued", request.arrival_s, scheduled
    if request.scheduled_s is not None:
        yield "prefill", scheduled, first
        if request.token_times_s:
            yield f"decode, {request.output_tokens} tokens", first, request.finished_s
