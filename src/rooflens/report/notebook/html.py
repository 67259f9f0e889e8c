"""Terminal tables as HTML: each piece of an answer becomes the element that it stands for.

Every text is escaped; colours are classes that the style sheet beside this gives a meaning in light and dark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from html import escape

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from rooflens.report.tables.layout import Bar

# The colours of report.tables.layout by what they say.
_MEANINGS = {"green": "good", "red": "bad", "cyan": "key", "yellow": "rest"}
_BAR_WIDTH_EM = 9.0

# Texts resolve their styles against a console; it prints nothing.
_CONSOLE = Console(file=io.StringIO(), markup=False, emoji=False, highlight=False)


def to_html(renderable: RenderableType) -> str:
    """The HTML of an answer's renderable: groups, texts, tables, bars; anything else as fixed-width text."""
    return "".join(_blocks(renderable))


def _blocks(renderable: RenderableType) -> Iterator[str]:
    if isinstance(renderable, Group):
        for part in renderable.renderables:
            yield from _blocks(part)
    elif isinstance(renderable, Padding):
        yield from _blocks(renderable.renderable)
    elif isinstance(renderable, Table):
        yield _table(renderable)
    elif isinstance(renderable, (str, Text)):
        yield from _paragraphs(Text(renderable) if isinstance(renderable, str) else renderable)
    else:
        yield f"<div>{_inline(renderable)}</div>"


def _paragraphs(text: Text) -> Iterator[str]:
    """A text's lines; a bold one is a heading, an empty one is the gap that the style sheet makes."""
    for line in text.split("\n"):
        if not line.plain.strip():
            continue
        head = "bold" in str(text.style).split() and "not" not in str(text.style).split()
        kind = ' class="rl-head" role="heading" aria-level="4"' if head and not _coloured(text) else ""
        yield f"<div{kind}>{_spans(line)}</div>"


def _coloured(text: Text) -> bool:
    return bool(set(str(text.style).split()) & set(_MEANINGS))


def _spans(text: Text) -> str:
    pieces = []
    # Rich leaves a text's own style out where no part of it has another.
    segments = text.render(_CONSOLE) if text.spans else [Segment(text.plain, _style(text.style))]
    for segment in segments:
        classes = _classes(segment.style)
        shown = escape(segment.text)
        pieces.append(f'<span class="{classes}">{shown}</span>' if classes else shown)
    return "".join(pieces)


def _classes(style: Style | None) -> str:
    if style is None:
        return ""
    names = [name for name, on in (("rl-strong", style.bold), ("rl-quiet", style.dim)) if on]
    if style.color is not None and style.color.name in _MEANINGS:
        names.append(f"rl-{_MEANINGS[style.color.name]}")
    return " ".join(names)


def _style(style: str | Style) -> Style:
    return style if isinstance(style, Style) else Style.parse(style or "none")


def _inline(cell: RenderableType) -> str:
    """What is in a cell of a table."""
    if isinstance(cell, str):
        return escape(cell)
    if isinstance(cell, Text):
        return "<br>".join(_spans(line) for line in cell.split("\n"))
    if isinstance(cell, Bar):
        meaning = _MEANINGS.get(cell.style, "key")
        width = cell.share * _BAR_WIDTH_EM
        return f'<span class="rl-bar rl-{meaning}" style="width:{width:.2f}em"></span>'
    if isinstance(cell, (Group, Padding, Table)):
        return to_html(cell)
    with _CONSOLE.capture() as captured:
        _CONSOLE.print(cell)
    return f"<pre>{escape(captured.get().rstrip())}</pre>"


def _table(table: Table) -> str:
    head = ""
    if table.show_header:
        cells = "".join(f'<th scope="col"{_column(one)}>{_inline(one.header)}</th>' for one in table.columns)
        head = f"<thead><tr>{cells}</tr></thead>"
    columns = [(_column(one), list(one.cells)) for one in table.columns]
    rows = (
        "<tr>"
        + "".join(f"<td{attributes}>{_inline(cells[row])}</td>" for attributes, cells in columns)
        + "</tr>"
        for row in range(table.row_count)
    )
    return f'<div class="rl-scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _column(column: Column) -> str:
    names = ["rl-number"] if column.justify == "right" else []
    names += _classes(_style(column.style)).split()
    return f' class="{" ".join(names)}"' if names else ""
