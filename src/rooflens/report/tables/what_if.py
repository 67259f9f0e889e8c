"""Techniques added to a plan one after the other: what each comes to."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from rooflens.analysis.techniques import Outcome
from rooflens.analysis.what_if import WhatIf
from rooflens.report.tables.layout import BAD, KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_search import search_words
from rooflens.units import format_bytes, format_rate, format_seconds


def what_if_section(tried: WhatIf, say: Words) -> RenderableType:
    """The plan as it is, then a line a technique, each with all before it."""
    words = search_words(say)
    rows = [(Text(words("try.now"), style="bold"), *_figures(tried.now, words))]
    for step in tried.steps:
        rows.append((Text(f"+ {step.technique}", style=KEY), *_figures(step.outcome, words)))
        if step.gains:
            gains = (step.throughput_gain, step.tpot_gain, step.ttft_gain)
            texts = [Text(f"{gain:.2f}×", style=QUIET) for gain in gains]
            saved = step.memory_saved_bytes
            change = f"{'-' if saved > 0 else '+'}{format_bytes(abs(saved))}" if saved else ""
            rows.append((Text(""), *texts, Text(change, style=QUIET), Text("")))
        else:
            rows.append((Text(words("try.nothing"), style=QUIET), *(Text("") for _ in range(5))))
    heads = [
        Head(words("try.technique")),
        Head(words("try.throughput"), number=True),
        Head(words("token"), number=True),
        Head(words("first"), number=True),
        Head(words("memory"), number=True),
        Head(words("devices"), number=True),
    ]
    return section(heading(words("try"), words("try.aside")), table(heads, rows))


def _figures(outcome: Outcome, words: Words) -> tuple[Text, ...]:
    memory = Text(format_bytes(outcome.memory_bytes))
    if outcome.fits is False:
        memory = Text(f"{format_bytes(outcome.memory_bytes)} ({words('try.fits_not')})", style=BAD)
    return (
        Text(format_rate(outcome.tokens_per_s)),
        Text(format_seconds(outcome.tpot_s)),
        Text(format_seconds(outcome.ttft_s)),
        memory,
        Text(f"{outcome.devices:,}"),
    )
