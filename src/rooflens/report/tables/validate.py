"""What ``rooflens validate`` prints: impossible rows first, then errors by group, then what was left out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.validate import Validation
from rooflens.report.tables.layout import BAD, GOOD, KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_validate import validate_words
from rooflens.units import format_seconds

LONGEST = 20
"""Rows of a list that are printed."""


def validate_report(result: Validation, say: Words) -> RenderableType:
    """The verdict, then the tables behind it."""
    words = validate_words(say)
    document = result.to_dict()
    title = words("title", judged=f"{document['judged']:,}", rows=f"{document['rows']:,}")
    parts: list[RenderableType] = [Text(title, style="bold")]
    if document["flagged"]:
        parts.append(
            Text(
                words("flagged", count=document["flagged"], beating=document["flagged_beating_bound"]),
                style=QUIET,
            )
        )
    if not result.judged:
        parts.append(Text(words("none"), style=BAD))
    elif result.sound:
        parts.append(Text(words("sound"), style=GOOD))
    if result.excepted:
        parts.append(Text(words("excepted", count=len(result.excepted)), style=QUIET))
    parts += [
        *_beating(result, words),
        *_errors(result, words),
        *_problems(result, words),
        *_skipped(result, words),
    ]
    return Group(*parts)


def _cut(rows: list[tuple[RenderableType, ...]], heads: list[Head], words: Words) -> Iterator[RenderableType]:
    yield table(heads, rows[:LONGEST])
    if len(rows) > LONGEST:
        yield Text(words("more", count=f"{len(rows) - LONGEST:,}"), style=QUIET)


def _beating(result: Validation, words: Words) -> Iterator[RenderableType]:
    if result.sound:
        return
    rows: list[tuple[RenderableType, ...]] = [
        (
            one.case.row.row_id,
            str(one.case.row.line),
            format_seconds(one.measured_s),
            format_seconds(one.bound_s),
            Text(f"{one.bound_s / one.measured_s:.2f}", style=BAD),
            one.hint(),
        )
        for one in result.beating
    ]
    heads = [
        Head(words("row"), whole=True),
        Head(words("line"), number=True),
        Head(words("measured"), number=True),
        Head(words("bound"), number=True),
        Head(words("ratio"), number=True),
        Head(words("why")),
    ]
    yield section(heading(words("unsound", count=len(rows))), *_cut(rows, heads, words))


def _errors(result: Validation, words: Words) -> Iterator[RenderableType]:
    groups = result.groups()
    if not groups:
        return
    rows: list[tuple[RenderableType, ...]] = [
        (
            Text(group.kind, style="bold") if group.by == "all" else "",
            words(f"by.{group.by}"),
            "" if group.by == "all" else group.name,
            f"{group.rows:,}",
            Text(f"{group.median_abs_error:.1%}", style=KEY),
            f"{group.bias:+.1%}",
            f"{group.coverage:.0%}",
        )
        for group in groups
    ]
    heads = [
        Head(words("kind"), whole=True),
        Head(words("by")),
        Head(words("name")),
        Head(words("rows"), number=True),
        Head(words("median"), number=True),
        Head(words("bias"), number=True),
        Head(words("coverage"), number=True),
    ]
    yield section(heading(words("errors"), words("errors.aside")), table(heads, rows))


def _problems(result: Validation, words: Words) -> Iterator[RenderableType]:
    if not result.problems:
        return
    rows: list[tuple[RenderableType, ...]] = [(name, str(line), why) for name, line, why in result.problems]
    heads = [Head(words("row"), whole=True), Head(words("line"), number=True), Head(words("why"))]
    yield section(heading(words("problems"), str(len(rows))), *_cut(rows, heads, words))


def _skipped(result: Validation, words: Words) -> Iterator[RenderableType]:
    if not result.skipped:
        return
    rows: list[tuple[RenderableType, ...]] = [(f"{count:,}", why) for why, count in result.skipped]
    heads = [Head(words("rows"), number=True), Head(words("why"))]
    yield section(heading(words("skipped"), words("skipped.aside")), *_cut(rows, heads, words))
