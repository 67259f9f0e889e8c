"""What ``rooflens bench`` prints: a row for each case, what was skipped and why, the knee."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.bench.grid import DONE, Bench
from rooflens.report.tables.account import reading_lines
from rooflens.report.tables.bench_speculative import COLUMNS, gain_range, guesses_of, speculative_parts
from rooflens.report.tables.layout import BAD, QUIET, Head, heading, indented, table
from rooflens.report.words import Words
from rooflens.report.words_bench import bench_words
from rooflens.units import format_bytes, format_rate, format_seconds, format_share

_COLUMNS: dict[str, tuple[str, ...]] = {
    "baseline": (
        "requests", "batch", "prompt", "output", "ttft_s", "tpot_s", "tokens_per_s", "prefill_step_s",
        "decode_step_s",
    ),
    "memory": (
        "batch", "prompt", "output", "weights_bytes", "kv_needed_bytes", "kv_peak_bytes",
        "allocated_peak_bytes", "rss_peak_bytes",
    ),
    "batch": (
        "batch", "prompt", "decode_step_s", "bound_s", "times_bound", "tokens_per_s", "mfu", "mbu",
    ),
    "prefix": ("prompt", "shared", "hit_share", "ttft_miss_s", "ttft_hit_s", "saving", "times_faster"),
    "speculative": COLUMNS,
}  # fmt: skip
_SHOW: dict[str, Callable[[float], str]] = {
    "tokens_per_s": format_rate,
    "times_bound": format_rate,
    "times_faster": format_rate,
    "mfu": format_share,
    "mbu": format_share,
    "hit_share": format_share,
    "saving": format_share,
    "acceptance": format_share,
    "offered": format_share,
    "tokens_per_step": format_rate,
    "plain_tokens_per_s": format_rate,
    "gain": format_rate,
    "gain_predicted": format_rate,
}


def bench_report(bench: Bench, say: Words) -> RenderableType:
    """The whole answer."""
    own = bench_words(say)
    settings = bench.settings
    aside = own(
        "aside",
        size=bench.size,
        dtype=settings["dtype"],
        kv_dtype=settings["kv_dtype"],
        device=settings["compared_with"] or settings["device"],
    )
    if bench.kind == "speculative":
        aside = own("guesses.aside", aside=aside, guesses=guesses_of(bench, own))
    done = [point for point in bench.points if point["status"] == DONE]
    names = [name for name in _COLUMNS[bench.kind] if any(_value(name, point) is not None for point in done)]
    rows = [[_cell(name, point, own) for name in names] for point in done]
    heads = [Head(own(f"column.{name}"), number=name != "text") for name in names]
    parts: list[RenderableType] = [heading(own(f"title.{bench.kind}", model=bench.model), aside)]
    if rows:
        parts.append(indented(table(heads, rows)))
    if bench.kind == "speculative":
        parts += speculative_parts(bench, done, say, own)
    for point in bench.points:
        if point["status"] != DONE:
            case = _case(point, own)
            text = own(f"status.{point['status']}", case=case, reason=point["reason"])
            parts.append(Text(text, style=QUIET if point["status"] == "skipped" else BAD))
    if bench.resumed:
        parts.append(Text(own("resumed", count=bench.resumed), style=QUIET))
    if not bench.finished:
        parts.append(Text(own("unfinished", done=len(bench.points), all=bench.cases), style=BAD))
    if bench.kind == "memory":
        parts.append(Text(own("memory.steps"), style=QUIET))
    if bench.kind in ("batch", "speculative") and settings["compared_with"] is None:
        parts.append(Text(own("no_roof"), style=QUIET))
    parts.append(reading_lines(bench.reading, (), say))
    return Group(*parts)


def _case(point: Mapping[str, Any], own: Words) -> str:
    if "guesses" in point:
        text = own(f"text.{point['text']}")
        return own("speculative.case", text=text, guesses=point["guesses"], batch=point["batch"])
    return own("case", batch=point["batch"], prompt=point["prompt"], output=point["output"])


def _value(name: str, point: Mapping[str, Any]) -> Any:
    if name == "times_bound":
        bound, step = point.get("bound_s"), point.get("decode_step_s")
        return step / bound if bound and step else None
    if name == "gain_range":
        return gain_range(point)
    return point.get(name)


def _cell(name: str, point: Mapping[str, Any], own: Words) -> str:
    value = _value(name, point)
    if value is None:
        return ""
    if name in _SHOW:
        return _SHOW[name](value)
    if name == "text":
        return own(f"text.{value}")
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return format_bytes(value)
    return format_seconds(value) if name.endswith("_s") else f"{value:,}"
