"""What ``rooflens bench speculative`` prints beside its first table: steps, factors, and what holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from rooflens.bench.grid import Bench
from rooflens.report.tables.layout import QUIET, Head, indented, section, table
from rooflens.report.words import Words
from rooflens.units import format_bandwidth, format_rate, format_seconds

COLUMNS = (
    "text", "guesses", "batch", "acceptance", "offered", "tokens_per_step", "plain_tokens_per_s",
    "tokens_per_s", "gain", "gain_range", "gain_predicted",
)  # fmt: skip
_STEPS = (
    "plain_step_s", "plain_predicted_s", "verify_step_s", "verify_predicted_s", "verify_bound_s",
    "draft_step_s", "draft_predicted_s",
)  # fmt: skip
_FACTORS = ("difference", "factor_tokens", "factor_verify", "factor_draft", "factor_rest")


def guesses_of(bench: Bench, own: Words) -> str:
    """Who guesses."""
    draft = bench.settings["draft"]
    if draft is None:
        return own("guesses.lookup")
    weights = max(draft["weights"], key=draft["weights"].__getitem__).split(",")[0]
    return own("guesses.draft", model=draft["model"], dtype=draft["dtype"], weights=weights)


def gain_range(point: Mapping[str, Any]) -> str | None:
    """p10 to p90 of the rounds' gains."""
    if point.get("gain_p10") is None:
        return None
    return f"{format_rate(point['gain_p10'])} - {format_rate(point['gain_p90'])}"


def speculative_parts(
    bench: Bench, done: Sequence[Mapping[str, Any]], say: Words, own: Words
) -> list[RenderableType]:
    """Times of steps beside the prediction, the factors between the gains, whether answers are equal."""
    if not done:
        return []
    parts = [_table("speculative.steps", _STEPS, done, own, format_seconds)]
    settings = bench.settings
    if settings["roof"] is not None:
        rows = [{**point, "difference": point["gain"] / point["gain_predicted"]} for point in done]
        parts.append(_table("speculative.difference", _FACTORS, rows, own, format_rate))
        roof = settings["roof"]
        text = own(
            "speculative.predicted",
            device=settings["compared_with"],
            bandwidth=format_bandwidth(roof["bandwidth_bytes_per_s"]),
            evidence=say.term("evidence", roof["evidence"]),
        )
        parts.append(Text(text, style=QUIET))
    parts.append(Text(_equality(done, own), style=QUIET))
    if settings["random_weights"]:
        parts.append(Text(own("speculative.random")))
    return parts


def _table(
    title: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    own: Words,
    show: Callable[[float], str],
) -> RenderableType:
    names = [name for name in names if any(row[name] is not None for row in rows)]
    batches = len({row["batch"] for row in rows}) > 1
    keys = ("text", "guesses", "batch") if batches else ("text", "guesses")
    heads = [Head(own(f"column.{name}"), number=name != "text") for name in (*keys, *names)]
    cells = [
        [
            own(f"text.{row['text']}"),
            *(f"{row[key]:,}" for key in keys[1:]),
            *("" if row[name] is None else show(row[name]) for name in names),
        ]
        for row in rows
    ]
    return section(Text(own(title), style="bold"), indented(table(heads, cells)))


def _equality(done: Sequence[Mapping[str, Any]], own: Words) -> str:
    answers = sum(point["answers"] for point in done)
    equal = sum(point["answers_equal"] for point in done)
    if equal == answers:
        return own("speculative.equal")
    gap = max(point["tie_gap"] or 0.0 for point in done)
    return own("speculative.ties", count=answers - equal, all=answers, gap=f"{gap:.2g}")
