"""The advice at the end of a plan: what gains, by how much and why; then what does not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.advice import Advice
from rooflens.report.tables.layout import KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_advice import advice_words, reason
from rooflens.units import format_bytes


def advice_section(advice: Sequence[Advice], say: Words) -> RenderableType:
    """Two tables; nothing where there is no advice."""
    words = advice_words(say)
    gaining = [one for one in advice if one.gains]
    rest = [one for one in advice if not one.gains]
    heads = [
        Head(words("technique")),
        Head(words("decode"), number=True, whole=True),
        Head(words("first"), number=True),
        Head(words("saves"), number=True),
        Head(words("why")),
    ]
    parts: list[RenderableType] = []
    if gaining:
        parts.append(table(heads, [_row(one, words) for one in gaining]))
    if rest:
        rows = [
            (Text(words(one.technique), style=QUIET), Text(reason(one, words), style=QUIET)) for one in rest
        ]
        parts.append(Group(Text(), Text(words("nothing")), table([Head(), Head()], rows)))
    return section(heading(words("title"), words("title.aside")), *parts) if parts else Group()


def _row(one: Advice, words: Words) -> tuple[RenderableType, ...]:
    name = Text(words(one.technique))
    if one.change:
        name.append(f"\n{one.change}", style=QUIET)
    saved = one.memory_saved_bytes or 0
    return (
        name,
        Text(_gain(one.decode_gain), style=KEY),
        Text(_gain(one.prefill_gain), style=KEY),
        f"{'-' if saved < 0 else ''}{format_bytes(abs(saved))}" if saved else "",
        Text(reason(one, words)),
    )


def _gain(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"
