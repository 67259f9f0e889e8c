"""A benchmark as a chart: speeds, memory, the batch curve over its bound, the prefix cache, guesses."""

from __future__ import annotations

from typing import Any

from rooflens.bench.grid import DONE, Bench
from rooflens.report.charts.bench_speculative import speculative_chart
from rooflens.report.charts.geometry import even_ticks
from rooflens.report.charts.theme import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    finish,
    require_altair,
    ticks,
)
from rooflens.report.words import Words
from rooflens.report.words_bench import bench_words
from rooflens.units import format_bytes, format_seconds

WIDTH, HEIGHT = 620, 320
_PANEL = 190
_LINES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)
_ROW = 30


def bench_chart(bench: Bench, say: Words, *, dark: bool = False) -> Any:
    """The chart of a benchmark's kind. Cases that were skipped or failed are left out.

    Raises DependencyError without the extra ``plot``.
    """
    own = bench_words(say)
    points = [point for point in bench.points if point["status"] == DONE]
    draw = {
        "baseline": _baseline,
        "memory": _memory,
        "batch": _batch,
        "prefix": _prefix,
        "speculative": speculative_chart,
    }[bench.kind]
    sentence = []
    if bench.kind == "baseline":
        sentence = [own("chart.lines")]
    elif bench.kind == "speculative":
        sentence = [own("chart.spread")]
    elif bench.reading is not None and own.language == "en":
        sentence = [bench.reading.sentence]
    title = own(f"title.{bench.kind}", model=bench.model)
    return finish(draw(points, own), DARK if dark else LIGHT, title, *sentence)


def _baseline(points: list[dict[str, Any]], say: Words) -> Any:
    """Rate, TTFT and TPOT over the batch, one above the other."""
    alt = require_altair()
    rows = [
        point
        | {
            "line": say(
                "chart.line",
                prompt=point["prompt"],
                output=point["output"],
                waves=point["requests"] // point["batch"],
            )
        }
        for point in points
    ]
    lines = list(dict.fromkeys(row["line"] for row in rows))
    colors = [_LINES[number % len(_LINES)] for number in range(len(lines))]
    color = alt.Color("line:N", scale=alt.Scale(domain=lines, range=colors), legend=alt.Legend(columns=4))
    batches = sorted({row["batch"] for row in rows})
    panels = []
    for field, key in (("tokens_per_s", "rate"), ("ttft_s", "ttft"), ("tpot_s", "tpot")):
        values = [row[field] for row in rows if row[field] is not None]
        marks = even_ticks(max(values, default=1.0))
        shown = {"values": marks} if field == "tokens_per_s" else ticks(marks, format_seconds)
        panels.append(
            alt.Chart(alt.Data(values=rows), width=WIDTH, height=_PANEL)
            .mark_line(point=True)
            .encode(
                x=alt.X(
                    "batch:Q",
                    scale=alt.Scale(type="log", nice=False),
                    axis=alt.Axis(title=say("chart.batch"), values=batches),
                ),
                y=alt.Y(f"{field}:Q", axis=alt.Axis(title=say(f"chart.{key}"), **shown)),
                color=color,
                strokeDash=alt.StrokeDash("line:N", sort=lines, legend=None),
            )
        )
    return alt.vconcat(*panels, spacing=16)


def _memory(points: list[dict[str, Any]], say: Words) -> Any:
    """Every case as a bar: weights, KV blocks, and what else the process held at its highest."""
    alt = require_altair()
    parts = {"weights": BLUE, "kv": ORANGE, "rest": GREY}
    rows = []
    for point in points:
        known = {"weights": point["weights_bytes"], "kv": point["kv_peak_bytes"]}
        whole = max(point["rss_peak_bytes"] or 0, point["allocated_peak_bytes"] or 0)
        case = say("chart.case", batch=point["batch"], prompt=point["prompt"], output=point["output"])
        at = 0
        for name, size in (known | {"rest": max(0, whole - sum(known.values()))}).items():
            rows.append({"case": case, "part": say(f"chart.{name}"), "start": at, "end": at + size})
            at += size
    longest = max((row["end"] for row in rows), default=1)
    cases = list(dict.fromkeys(row["case"] for row in rows))
    axis = alt.Axis(title=say("chart.bytes"), **ticks(even_ticks(longest), format_bytes))
    domain = [say(f"chart.{name}") for name in parts]
    return (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=_ROW * max(1, len(cases)))
        .mark_bar(size=_ROW * 0.6)
        .encode(
            x=alt.X("start:Q", axis=axis),
            x2="end:Q",
            y=alt.Y("case:N", sort=cases, title=None),
            color=alt.Color("part:N", scale=alt.Scale(domain=domain, range=list(parts.values()))),
        )
    )


def _batch(points: list[dict[str, Any]], say: Words) -> Any:
    """Decode step against batch, both logarithmic: measured and bound, a line for each prompt length."""
    alt = require_altair()
    rows = [
        {"batch": point["batch"], "seconds": point[field], "line": say(key), "prompt": point["prompt"]}
        for point in points
        for field, key in (("decode_step_s", "chart.measured"), ("bound_s", "chart.bound"))
        if point[field] is not None
    ]
    color = alt.Scale(domain=[say("chart.measured"), say("chart.bound")], range=[ORANGE, BLUE])
    batches = sorted({row["batch"] for row in rows})
    return (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=HEIGHT)
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "batch:Q",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(title=say("chart.batch"), values=batches),
            ),
            y=alt.Y(
                "seconds:Q", scale=alt.Scale(type="log"), axis=alt.Axis(title=say("chart.step"), format="~s")
            ),
            color=alt.Color("line:N", scale=color, legend=alt.Legend(title=None)),
            detail="prompt:N",
        )
    )


def _prefix(points: list[dict[str, Any]], say: Words) -> Any:
    """Time to first token of a prompt whose beginning is cached, beside that of a new one."""
    alt = require_altair()
    colors = {say("chart.miss"): GREY, say("chart.hit"): GREEN}
    rows = [
        {
            "case": say("chart.shared.value", shared=f"{point['shared']:,}", prompt=f"{point['prompt']:,}"),
            "which": say(key),
            "seconds": point[field],
        }
        for point in points
        for field, key in (("ttft_miss_s", "chart.miss"), ("ttft_hit_s", "chart.hit"))
    ]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    marks = ticks(even_ticks(max((row["seconds"] for row in rows), default=1.0)), format_seconds)
    return (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=HEIGHT)
        .mark_bar()
        .encode(
            x=alt.X("case:N", sort=cases, title=say("chart.shared"), axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("which:N", sort=list(colors)),
            y=alt.Y("seconds:Q", axis=alt.Axis(title=say("chart.ttft"), **marks)),
            color=alt.Color("which:N", scale=alt.Scale(domain=list(colors), range=list(colors.values()))),
        )
    )
