"""The advice at the end of a plan: what gains, by how much and why; then what does not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.advice import Advice
from rooflens.report.tables.layout import KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_advice import acts_on, advice_words, reason
from rooflens.units import format_bytes


def advice_section(advice: Sequence[Advice], say: Words) -> RenderableType:
    """What gains as a table of numbers with a reason each, then what does not; nothing without advice."""
    words = advice_words(say)
    gaining = [one for one in advice if one.gains]
    rest = [one for one in advice if not one.gains]
    heads = [
        Head(number=True),
        Head(words("technique")),
        Head(words("throughput"), number=True, whole=True),
        Head(words("token"), number=True, whole=True),
        Head(words("first"), number=True, whole=True),
        Head(words("saves"), number=True, whole=True),
    ]
    parts: list[RenderableType] = []
    if gaining:
        parts.append(table(heads, [_row(number, one, words) for number, one in enumerate(gaining, 1)]))
        reasons = [(str(number), _why(one, words)) for number, one in enumerate(gaining, 1)]
        parts.append(Group(Text(), table([Head(number=True), Head()], reasons)))
    if rest:
        rows = [
            (Text(words(one.technique), style=QUIET), Text(reason(one, words), style=QUIET)) for one in rest
        ]
        parts.append(Group(Text(), Text(words("nothing")), table([Head(), Head()], rows)))
    return section(heading(words("title"), words("title.aside")), *parts) if parts else Group()


def _row(number: int, one: Advice, words: Words) -> tuple[RenderableType, ...]:
    name = Text(words(one.technique))
    if one.change:
        name.append(f"  {one.change}", style=QUIET)
    saved = one.memory_saved_bytes or 0
    return (
        str(number),
        name,
        Text(_gain(one.decode_gain), style=KEY),
        Text(_gain(one.tpot_gain), style=KEY),
        Text(_gain(one.prefill_gain), style=KEY),
        f"{'-' if saved < 0 else ''}{format_bytes(abs(saved))}" if saved else "",
    )


def _why(one: Advice, words: Words) -> Text:
    """What it acts on, and why it gains what it gains."""
    acts = Text(words("acts", on=acts_on(one, words)), style=QUIET)
    return acts.append(words("gap") + reason(one, words), style="default")


def _gain(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"
