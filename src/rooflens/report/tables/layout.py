"""How every answer is set in a terminal: the console, plain tables, bars, headings and the legend.

Tables have one rule under their head and nothing else, so they read the same piped, narrow and without
colour. Colour and bold only repeat what the words say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from rooflens.report.words import Words

WIDEST = 100  # longer lines of prose are hard to read
PIPED = 80

HEADING, GOOD, BAD, KEY, QUIET = "bold", "green", "bold red", "bold cyan", "dim"

EVIDENCE_ORDER = (
    "exact", "bound", "roofline", "estimate", "measured", "spec", "derived", "assumed", "given",
)  # fmt: skip
"""Every tag that a number may carry, in the order that the legend explains them."""


def console(*, file: IO[str] | None = None, color: bool | None = None, width: int | None = None) -> Console:
    """The console that answers are printed on.

    Styles are written to a terminal only, never with ``NO_COLOR`` set; ``color`` overrides both. Piped
    output is ``$COLUMNS`` or 80 columns wide, a terminal's is its own width up to 100. Characters that the
    output's encoding does not have become question marks instead of an error.
    """
    stream = sys.stdout if file is None else file
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    if color is None and os.environ.get("NO_COLOR"):
        color = False
    made = Console(
        file=file,
        width=width,
        color_system=None if color is False else "auto",
        force_terminal=True if color else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    if width is None:
        made.width = min(made.width, WIDEST) if made.is_terminal else _columns()
    return made


def show(renderable: RenderableType, *, on: Console) -> None:
    """Print an answer; piped text ends its lines where the words end."""
    if on.is_terminal:
        on.print(renderable, crop=False)
        return
    with on.capture() as captured:
        on.print(renderable, crop=False)
    on.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and int(text) else PIPED


@dataclass(frozen=True)
class Head:
    """The head of a column; ``number`` columns are set flush right, a ``whole`` one is never wrapped."""

    text: str = ""
    number: bool = False
    style: str = ""
    whole: bool = False


def table(heads: Sequence[Head], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """A table with one rule under its head (no head where all are empty)."""
    named = any(head.text for head in heads)
    made = Table(
        box=box.SIMPLE_HEAD if named else None,
        show_header=named,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if named else (0, 2, 0, 0),
        header_style=HEADING,
    )
    for head in heads:
        made.add_column(
            head.text,
            justify="right" if head.number else "left",
            style=head.style,
            overflow="fold",
            no_wrap=head.whole,
        )
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


class Bar:
    """A share of one as a bar of eighths, or of ``#`` where the output has no such characters."""

    _EIGHTHS = " ▏▎▍▌▋▊▉"

    def __init__(self, share: float, *, width: int = 16, style: str = "cyan") -> None:
        self.share = min(max(share, 0.0), 1.0)
        self.width = width
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width, options.max_width)
        if options.ascii_only:
            text = "#" * round(self.share * width)
        else:
            eighths = round(self.share * width * 8)
            text = "█" * (eighths // 8) + (self._EIGHTHS[eighths % 8] if eighths % 8 else "")
        yield Segment(text, Style.parse(self.style))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, self.width)


def heading(text: str, aside: str = "") -> Text:
    """A section's head, with a quiet remark behind it."""
    made = Text(text, style=HEADING)
    if aside:
        made.append(f"  {aside}", style="not bold dim")
    return made


def indented(renderable: RenderableType) -> Padding:
    """A block set two columns in."""
    return Padding(renderable, (0, 0, 0, 2))


def section(head: Text, *parts: RenderableType) -> Group:
    """A head and its indented parts, with an empty line before."""
    return Group(Text(), head, *(indented(part) for part in parts))


def tag(say: Words, evidence: str | None) -> Text:
    """The evidence of a figure, as a quiet word."""
    return Text(say.term("evidence", evidence) if evidence else "", style=QUIET)


def legend(say: Words, used: Iterable[str | None]) -> RenderableType:
    """One line per kind of evidence in use."""
    seen = set(used)
    rows = [
        (Text(say(f"evidence.{name}"), style=QUIET), Text(say(f"evidence.{name}.meaning"), style=QUIET))
        for name in EVIDENCE_ORDER
        if name in seen
    ]
    return Group(Text(), table([Head(), Head()], rows))


def notes(say: Words, texts: Sequence[str]) -> RenderableType:
    """Remarks as a list; nothing where there are none."""
    if not texts:
        return Group()
    return section(heading(say("notes")), table([Head(), Head()], [("-", text) for text in texts]))
