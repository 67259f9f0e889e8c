"""What ``rooflens search`` prints: the feasible options, why none is better, or which limit kills."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.search_result import Option, SearchResult
from rooflens.report.tables.layout import BAD, KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_search import search_words
from rooflens.units import format_rate, format_seconds

LONGEST = 20
_SECONDS = ("ttft", "tpot")


def search_report(result: SearchResult, say: Words) -> RenderableType:
    """The verdict, the options with their reasons and the line that starts the first, the limits."""
    words = search_words(say)
    goal = result.goal
    title = words(
        "title",
        feasible=f"{result.feasible:,}",
        tried=f"{result.tried:,}",
        rate=format_rate(goal.rate_per_s),
        model=result.model,
        prompt=f"{goal.requests.prompt:,}",
        output=f"{goal.requests.output:,}",
    )
    parts: list[RenderableType] = [Text(title, style="bold")]
    asked = {"TTFT": goal.ttft_s, "TPOT": goal.tpot_s}
    listed = [f"{name} {format_seconds(value)}" for name, value in asked.items() if value is not None]
    if listed:
        parts.append(Text(words("limits", listed=", ".join(listed)), style=QUIET))
    parts += [*_options(result, words), *_limits(result, words), *_refused(result, words)]
    return Group(*parts)


def _options(result: SearchResult, words: Words) -> Iterator[RenderableType]:
    if not result.options:
        yield Text(words("none"), style=BAD)
        if result.nearest is not None:
            near = result.nearest
            over = ", ".join(
                words("over", name=words(name), share=f"{share:.0%}") for name, share in near.over
            )
            yield Text(
                words(
                    "nearest",
                    devices=near.devices,
                    device=near.device,
                    weights=near.weights,
                    tp=near.tp,
                    over=over,
                )
            )
        return
    key = "ranked.price" if result.prices else "ranked.power"
    yield Text(words(key, source=result.price_source or ""), style=QUIET)
    yield Text()
    shown = result.options[:LONGEST]
    heads = [
        Head(),
        Head(words("devices"), whole=True),
        Head(words("weights"), whole=True),
        Head(words("cache")),
        Head(words("layout"), whole=True),
        Head(words("first"), number=True, whole=True),
        Head(words("token"), number=True, whole=True),
        Head(words("most"), number=True),
        *([Head(words("price"), number=True), Head(words("million"), number=True)] if result.prices else []),
        *([] if result.prices else [Head(words("watts"), number=True)]),
    ]
    yield table(heads, [_row(number, one, result) for number, one in enumerate(shown, start=1)])
    yield Text(words("starred"), style=QUIET)
    yield section(heading(words("start")), Text(shown[0].command))
    reasons = [(str(number), one.why) for number, one in enumerate(shown, start=1)]
    yield section(heading(words("better")), table([Head(number=True), Head()], reasons))


def _row(number: int, one: Option, result: SearchResult) -> tuple[RenderableType, ...]:
    layout = f"tp {one.tp}" + (f", {one.replicas}x" if one.replicas > 1 else "")
    million = one.price_per_million_tokens(result.goal)
    priced = (
        [
            "" if one.price_per_hour is None else f"{one.price_per_hour:.2f}",
            "" if million is None else f"{million:.2f}",
        ]
        if result.prices
        else ["" if one.watts is None else f"{one.watts:,.0f} W"]
    )
    return (
        f"{number}{'*' if one.pareto else ''}",
        Text(f"{one.devices} x {one.device}", style=KEY),
        one.weights,
        one.kv_dtype,
        layout,
        format_seconds(one.ttft_s),
        format_seconds(one.tpot_s),
        format_rate(one.max_rate_per_s),
        *priced,
    )


def _limits(result: SearchResult, words: Words) -> Iterator[RenderableType]:
    def shown(name: str, value: float | None) -> str:
        if value is None:
            return ""
        return format_seconds(value) if name in _SECONDS else format_rate(value)

    rows = [
        (
            words(one.name),
            shown(one.name, one.limit),
            shown(one.name, one.best),
            f"{one.fails_alone:,}",
            "" if one.passes_relaxed is None else f"{one.passes_relaxed:,}",
        )
        for one in result.constraints
    ]
    heads = [
        Head(words("constraint")),
        Head(words("asked"), number=True),
        Head(words("best"), number=True),
        Head(words("alone"), number=True),
        Head(words("relaxed"), number=True),
    ]
    yield section(heading(words("constraints"), words("constraints.aside")), table(heads, rows))


def _refused(result: SearchResult, words: Words) -> Iterator[RenderableType]:
    if result.refused:
        heads = [Head(words("combinations"), number=True), Head(words("why"))]
        rows = [(f"{count:,}", why) for why, count in result.refused[:LONGEST]]
        yield section(heading(words("refused")), table(heads, rows))
