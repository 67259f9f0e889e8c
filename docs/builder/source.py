"""A page's Markdown as the parts that the builder treats differently: prose, and fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPEN = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,})(?P<lang>[\w+-]*)[ \t]*(?P<words>[^`]*)$")


@dataclass(frozen=True)
class Prose:
    """Lines outside any fence; ``line`` is the number of the first one."""

    text: str
    line: int


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, the words after it, its body without the indentation it stands at."""

    lang: str
    words: tuple[str, ...]
    body: str
    indent: str
    line: int

    def markdown(self) -> str:
        """The block as a plain fence again, at its indentation, without the builder's words."""
        return indented(f"```{self.lang}\n{self.body}```\n", self.indent)


Part = Prose | Fence


class BuildError(Exception):
    """A page that cannot be built; the message names the page and the line."""


def indented(text: str, indent: str) -> str:
    """Every line that is not empty moved to the right by ``indent``."""
    return "".join(indent + line if line.strip() else line for line in text.splitlines(keepends=True))


def parts(text: str, name: str) -> Iterator[Part]:
    """The parts of a page in order. Raises BuildError for a fence that is never closed."""
    prose: list[str] = []
    start, lines = 1, text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        found = _OPEN.match(lines[at].rstrip("\n"))
        if found is None:
            prose.append(lines[at])
            at += 1
            continue
        if prose:
            yield Prose("".join(prose), start)
            prose = []
        close = next(
            (n for n in range(at + 1, len(lines)) if lines[n].strip() == found["ticks"]),
            None,
        )
        if close is None:
            raise BuildError(f"{name}:{at + 1}: this block is never closed")
        body = "".join(_without(line, found["indent"]) for line in lines[at + 1 : close])
        yield Fence(found["lang"], tuple(found["words"].split()), body, found["indent"], at + 1)
        at = close + 1
        start = at + 1
    if prose:
        yield Prose("".join(prose), start)


def _without(line: str, indent: str) -> str:
    return line[len(indent) :] if line.startswith(indent) else line.lstrip(" ")
