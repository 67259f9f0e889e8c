"""The measured batch curve over its bound."""

from __future__ import annotations

from typing import Any

from rooflens.bench.grid import DONE, Bench
from rooflens.report.charts.theme import BLUE, DARK, LIGHT, ORANGE, finish, require_altair
from rooflens.report.words import Words
from rooflens.report.words_bench import bench_words

WIDTH, HEIGHT = 620, 320


def batch_chart(bench: Bench, say: Words, *, dark: bool = False) -> Any:
    """Decode step against batch, both logarithmic: measured and bound, a line for each prompt length."""
    own = bench_words(say)
    alt = require_altair()
    rows = [
        {"batch": point["batch"], "seconds": point[field], "line": own(key), "prompt": point["prompt"]}
        for point in bench.points
        if point["status"] == DONE
        for field, key in (("decode_step_s", "chart.measured"), ("bound_s", "chart.bound"))
        if point[field] is not None
    ]
    color = alt.Scale(domain=[own("chart.measured"), own("chart.bound")], range=[ORANGE, BLUE])
    batches = sorted({row["batch"] for row in rows})
    chart = (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=HEIGHT)
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "batch:Q",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(title=own("chart.batch"), values=batches),
            ),
            y=alt.Y(
                "seconds:Q", scale=alt.Scale(type="log"), axis=alt.Axis(title=own("chart.step"), format="~s")
            ),
            color=alt.Color("line:N", scale=color, legend=alt.Legend(title=None)),
            detail="prompt:N",
        )
    )
    sentence = bench.reading.sentence if bench.reading is not None and own.language == "en" else ""
    title = own("title.batch", model=bench.model)
    return finish(chart, DARK if dark else LIGHT, title, *([sentence] if sentence else []))
