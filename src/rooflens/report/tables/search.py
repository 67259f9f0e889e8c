"""What ``rooflens search`` prints: the feasible options, why none is better, or which limit kills."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.search_result import Option, PoolChoice, SearchResult
from rooflens.report.tables.layout import BAD, KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_search import said, search_words
from rooflens.units import format_rate, format_seconds

LONGEST = 20
_SECONDS = ("ttft", "tpot")


def search_headline(result: SearchResult, words: Words) -> str:
    """How many configurations serve what was asked for; ``words``: the search's."""
    goal = result.goal
    return words(
        "title",
        feasible=f"{result.feasible:,}",
        tried=f"{result.tried:,}",
        rate=format_rate(goal.rate_per_s),
        model=result.model,
        prompt=f"{goal.requests.prompt:,}",
        output=f"{goal.requests.output:,}",
    )


def search_report(result: SearchResult, say: Words) -> RenderableType:
    """The verdict, the options with their reasons and the line that starts the first, the limits."""
    words = search_words(say)
    goal = result.goal
    parts: list[RenderableType] = [Text(search_headline(result, words), style="bold")]
    asked = {"TTFT": goal.ttft_s, "TPOT": goal.tpot_s}
    listed = [f"{name} {format_seconds(value)}" for name, value in asked.items() if value is not None]
    if listed:
        parts.append(Text(words("limits", listed=", ".join(listed)), style=QUIET))
    parts += [*_options(result, words), *_limits(result, words), *_prices(result, words)]
    return Group(*parts, *_refused(result, words))


def pool_text(pool: PoolChoice) -> str:
    """``2 x l40s``."""
    return f"{pool.devices} x {pool.device}"


def layout_text(pool: PoolChoice) -> str:
    """``tp 2, pp 2`` of one instance: only what is more than one."""
    layout = pool.layout
    ways = (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp), ("ep", layout.ep))
    return ", ".join(f"{name} {size}" for name, size in ways if size > 1)


def _options(result: SearchResult, words: Words) -> Iterator[RenderableType]:
    if not result.options:
        yield Text(words("none"), style=BAD)
        if result.nearest is not None:
            near = result.nearest
            over = ", ".join(
                words("over", name=words(name), share=f"{share:.0%}") for name, share in near.over
            )
            devices = " + ".join(f"{pool_text(pool)} ({layout_text(pool) or 'tp 1'})" for pool in near.pools)
            yield Text(words("nearest", devices=devices, weights=near.weights, over=over))
        for reason in result.verdict:
            yield Text(said(reason, words), style=KEY)
        return
    yield Text(words("ranked.price" if result.prices else "ranked.power"), style=QUIET)
    yield Text()
    shown = result.options[:LONGEST]
    limited = result.goal.ttft_s is not None or result.goal.tpot_s is not None
    priced = bool(result.prices)
    heads = [
        Head(whole=True),
        Head(f"{words('devices')}\n{words('layout')}"),
        Head(f"{words('weights')}\n{words('cache')}", whole=True),
        Head(f"{words('first')}\n{words('token')}", number=True, whole=True),
        Head(f"{words('most')}\n{words('good') if limited else ''}".strip(), number=True, whole=True),
        *([Head(f"{words('price')}\n{words('million')}", number=True, whole=True)] if priced else []),
        Head(f"{words('watts')}\n{words('energy')}", number=True, whole=True),
    ]
    yield table(heads, [_row(number, one, result, words, limited) for number, one in enumerate(shown, 1)])
    yield Text(words("starred"), style=QUIET)
    if limited:
        yield Text(words("good.means"), style=QUIET)
    yield Text(words("million.means"), style=QUIET)
    yield section(heading(words("start")), *(Text(line) for line in shown[0].commands))
    reasons = [
        (str(number), "; ".join(said(reason, words) for reason in one.reasons))
        for number, one in enumerate(shown, 1)
    ]
    yield section(heading(words("better")), table([Head(number=True), Head()], reasons))


def _row(
    number: int, one: Option, result: SearchResult, words: Words, limited: bool
) -> tuple[RenderableType, ...]:
    goal = result.goal
    million, energy = one.price_per_million_tokens(goal), one.kwh_per_million_tokens(goal)
    paid = ["" if one.price_per_hour is None else f"{one.price_per_hour:.2f}"]
    paid.append("" if million is None else f"{million:.3g}")
    power = ["" if one.watts is None else f"{one.watts:,.0f} W", "" if energy is None else f"{energy:.3g}"]
    good = "" if not limited or one.goodput is None else f"{one.goodput.share:.0%}"
    return (
        f"{number}{'*' if one.pareto else ''}",
        _pools(one, words),
        f"{one.weights}\n{one.kv_dtype}",
        f"{format_seconds(one.ttft_s)}\n{format_seconds(one.tpot_s)}",
        f"{format_rate(one.max_rate_per_s)}\n{good}",
        *(["\n".join(paid)] if result.prices else []),
        "\n".join(power),
    )


def _pools(one: Option, words: Words) -> Text:
    """The devices with how they are cut, a pool a line."""
    text = Text()
    if len(one.pools) == 1:
        pool = one.pools[0]
        times = words("instances", count=pool.instances) if pool.instances > 1 else ""
        cut = ", ".join(part for part in (layout_text(pool), times) if part)
        return text.append(pool_text(pool), style=KEY).append(f"\n{cut}")
    for pool in one.pools:
        text.append("\n" if text else "").append(f"{words(f'role.{pool.role}')} ", style=QUIET)
        cut = layout_text(pool)
        text.append(pool_text(pool), style=KEY).append(f", {cut}" if cut else "")
    return text


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
            f"{one.fails:,}",
            f"{one.fails_alone:,}",
            "" if one.passes_relaxed is None else f"{one.passes_relaxed:,}",
        )
        for one in result.constraints
    ]
    heads = [
        Head(words("constraint")),
        Head(words("asked"), number=True),
        Head(words("best"), number=True),
        Head(words("fail"), number=True),
        Head(words("alone"), number=True),
        Head(words("relaxed"), number=True),
    ]
    yield section(heading(words("constraints"), words("constraints.aside")), table(heads, rows))


def _prices(result: SearchResult, words: Words) -> Iterator[RenderableType]:
    """Every price with where and when it was listed."""
    if not result.prices and not result.notes:
        return
    rows = [
        (
            name,
            f"{price.per_hour:.2f} {price.currency}",
            price.date or "",
            " · ".join(part for part in (price.provider, price.source) if part),
        )
        for name, price in result.prices
    ]
    heads = [
        Head(words("devices"), whole=True),
        Head(words("price"), number=True, whole=True),
        Head(words("date"), whole=True),
        Head(words("source")),
    ]
    notes = [Text(note, style=QUIET) for note in result.notes]
    yield section(heading(words("prices"), words("prices.aside")), table(heads, rows), *notes)


def _refused(result: SearchResult, words: Words) -> Iterator[RenderableType]:
    if result.refused:
        heads = [Head(words("combinations"), number=True), Head(words("why"))]
        rows = [(f"{count:,}", why) for why, count in result.refused[:LONGEST]]
        yield section(heading(words("refused")), table(heads, rows))
