"""The result file as a picture: a panel per weights and case, a bar per engine, ours in another colour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES
from benchmarks.peers.compare import Row, rows
from benchmarks.peers.engines import OURS
from benchmarks.peers.protocol import Case
from benchmarks.peers.table import case_title
from rooflens.report.charts.render import render
from rooflens.report.charts.theme import BLUE, GREY, LIGHT, ORANGE, finish, require_altair

#: The cases of the picture: the table has all.
SHOWN = ("decode_64_b1", "decode_2000_b1", "decode_64_b8", "prefill_2048")
_WIDTH, _BAR_HEIGHT = 190, 20
_ROOM = 1.6
"""The axis ends this far beyond the longest bar, so that figures stand beside the bars."""


def write_charts(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Write PNG and SVG beside the result file; nothing where there are no samples."""
    found = [row for row in rows(document, CASES) if row.case in SHOWN]
    if not found:
        return []
    made = chart(document, found)
    written = []
    for ending in ("png", "svg"):
        target = path.with_suffix(f".{ending}")
        target.write_bytes(render(made, ending))
        written.append(target)
    return written


def chart(document: Mapping[str, Any], found: list[Row]) -> Any:
    """Formats from top to bottom, cases from left to right; each panel has its own scale."""
    alt = require_altair()
    cases = [case for case in CASES if any(row.case == case.name for row in found)]
    lines = []
    for weights in dict.fromkeys(row.weights for row in found):
        here = [row for row in found if row.weights == weights]
        engines = list(dict.fromkeys(row.engine for row in here))
        panels = [
            _panel(
                [row for row in here if row.case == case.name], engines, case, weights, first=case == cases[0]
            )
            for case in cases
        ]
        lines.append(alt.hconcat(*panels, spacing=14))
    machine = document["machine"]["cpu"]["name"]
    return finish(
        alt.vconcat(*lines, spacing=16),
        LIGHT,
        f"Tokens per second: {document['shape']}",
        f"{machine}, {document['threads']} threads, {document['created'][:10]}; "
        "median of interleaved rounds, p10 to p90; MBU of decoding, MFU of prompts beside the bars",
    )


def _panel(found: list[Row], engines: list[str], case: Case, weights: str, *, first: bool) -> Any:
    alt = require_altair()
    values = [
        {
            "engine": row.engine,
            "rate": row.rate.median,
            "p10": row.rate.p10,
            "p90": row.rate.p90,
            "text": _beside(row),
            "colour": _colour(row.engine),
            "strength": 1.0 if row.counts else 0.35,
        }
        for row in found
    ]
    top = max((row.rate.p90 for row in found), default=1.0) * _ROOM
    y = alt.Y("engine:N", sort=engines, scale=alt.Scale(domain=engines),
              axis=alt.Axis(title=None, labels=first, ticks=False, domain=False, labelLimit=200))  # fmt: skip
    x = alt.X("rate:Q", scale=alt.Scale(domain=[0, top]), axis=alt.Axis(title=None, tickCount=3, format="~s"))
    base = alt.Chart(alt.Data(values=values))
    bars = base.mark_bar(height=_BAR_HEIGHT * 0.65).encode(
        x=x,
        y=y,
        color=alt.Color("colour:N", scale=None),
        opacity=alt.Opacity("strength:Q", scale=None),
    )
    spread = base.mark_rule(strokeWidth=1.5, color=LIGHT.text).encode(x="p10:Q", x2="p90:Q", y=y)
    text = base.mark_text(align="left", dx=5, fontSize=10, color=LIGHT.text).encode(
        x="p90:Q", y=y, text="text:N"
    )
    title = f"{weights}: {case_title(case)}" if first else case_title(case)
    return alt.layer(bars, spread, text).properties(
        width=_WIDTH, height=_BAR_HEIGHT * len(engines), title=alt.TitleParams(title, fontSize=12, offset=4)
    )


def _beside(row: Row) -> str:
    share = next(
        (f" · {name} {v:.2f}" for name, v in (("MBU", row.mbu), ("MFU", row.mfu)) if v is not None), ""
    )
    return f"{row.rate.median:,.0f}{share}" + ("" if row.counts else " · quality fails")


def _colour(engine: str) -> str:
    if engine == OURS:
        return ORANGE
    return BLUE if engine.startswith(OURS) else GREY
