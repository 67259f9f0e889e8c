"""Colours, fonts and the two themes of every chart.

Colours are Okabe and Ito's, which stay apart for every kind of colour blindness (Okabe and Ito, "Color
Universal Design", 2008). No chart relies on them alone: shapes, hatching and words say the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rich.cells import cell_len

from rooflens.errors import DependencyError

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#8A8F98"

FONTS = (
    "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', 'Source Han Sans SC', 'WenQuanYi Micro Hei', sans-serif"
)

TITLE_SIZE, SUBTITLE_SIZE, LABEL_SIZE, SMALL_SIZE = 17, 12, 12, 11


@dataclass(frozen=True)
class Theme:
    """The colours of one theme. ``memory`` and ``compute`` mark the two regimes everywhere."""

    name: str
    background: str
    text: str
    quiet: str
    grid: str
    outline: str
    memory: str
    compute: str
    communication: str
    good: str
    bad: str

    def config(self) -> dict[str, Any]:
        """Vega-Lite's top-level configuration."""
        return {
            "background": self.background,
            "font": FONTS,
            "padding": 18,
            "view": {"stroke": None},
            "title": {
                "color": self.text,
                "subtitleColor": self.quiet,
                "fontSize": TITLE_SIZE,
                "subtitleFontSize": SUBTITLE_SIZE,
                "subtitlePadding": 6,
                "anchor": "start",
                "offset": 14,
                "font": FONTS,
                "subtitleFont": FONTS,
            },
            "axis": {
                "labelColor": self.quiet,
                "titleColor": self.text,
                "gridColor": self.grid,
                "domainColor": self.outline,
                "tickColor": self.outline,
                "labelFontSize": SMALL_SIZE,
                "titleFontSize": LABEL_SIZE,
                "titleFontWeight": "normal",
                "titlePadding": 10,
                "labelPadding": 6,
            },
            "legend": {
                "labelColor": self.text,
                "titleColor": self.text,
                "labelFontSize": LABEL_SIZE,
                "orient": "top",
                "title": None,
                "symbolType": "square",
                "symbolSize": 160,
                "offset": 8,
                "columnPadding": 18,
            },
            "text": {"font": FONTS, "fontSize": LABEL_SIZE, "color": self.text},
        }


LIGHT = Theme(
    name="light",
    background="#FFFFFF",
    text="#1B1F24",
    quiet="#57606A",
    grid="#E6E8EB",
    outline="#9AA1A9",
    memory=BLUE,
    compute=VERMILION,
    communication=PURPLE,
    good="#00734F",
    bad="#B3261E",
)
DARK = Theme(
    name="dark",
    background="#14171C",
    text="#E8EAED",
    quiet="#A9B1BB",
    grid="#2B3038",
    outline="#6B7480",
    memory=SKY,
    compute=ORANGE,
    communication=PURPLE,
    good="#3DD6A0",
    bad="#FF8A7A",
)

PARTS = {
    "weights": BLUE,
    "kv_cache": ORANGE,
    "activations": GREEN,
    "overhead": PURPLE,
    "graphs": SKY,
    "non_torch": YELLOW,
}
"""Fill of each row of the memory ledger; rows that engines add beyond these take the spare colours."""

SPARE = (SKY, YELLOW, VERMILION, GREY)
_DARK_FILLS = {BLUE, GREEN, VERMILION}


def part_colors(names: list[str]) -> dict[str, str]:
    """A colour for every row name, the usual ones always the same."""
    free = [color for color in SPARE if color not in {PARTS.get(name) for name in names}]
    colors = {}
    for name in names:
        colors[name] = PARTS[name] if name in PARTS else (free.pop(0) if free else GREY)
    return colors


def ink_on(fill: str) -> str:
    """Black or white, whichever reads better on a fill."""
    return "#FFFFFF" if fill in _DARK_FILLS else "#111111"


def ticks(values: Sequence[float], text: Callable[[float], str]) -> dict[str, Any]:
    """Ticks at these values, written as Rooflens writes such figures everywhere, without trailing zeros."""
    cases = "".join(f"datum.value == {value!r} ? '{_TRAILING.sub('', text(value))}' : " for value in values)
    return {"values": list(values), "labelExpr": f"{cases}''"}


_TRAILING = re.compile(r"\.0+(?= |$)")


def finish(chart: Any, theme: Theme, title: str, *subtitle: str) -> Any:
    """A panel or a stack of panels as a chart of its own: headline, description, theme."""
    altair = require_altair()
    return chart.properties(
        title=altair.TitleParams(text=title, subtitle=list(subtitle)),
        description=". ".join([title, *subtitle]),
    ).configure(**theme.config())


def wrapped(text: str, columns: int) -> list[str]:
    """Prose as lines of at most so many columns; full-width characters take two and may be parted."""
    lines, line = [], ""
    for piece in re.findall(r"[\u2e80-\u9fff\uff00-\uffef]|[^\s\u2e80-\u9fff\uff00-\uffef]+|\s+", text):
        # A full stop or a closing bracket never starts a line.
        if cell_len(line + piece) > columns and piece not in "，。；：、）":
            lines.append(line.rstrip())
            line = ""
        line += piece if line or piece.strip() else ""
    return [*lines, line.rstrip()] if line.strip() else lines


def require_altair() -> ModuleType:
    """Altair, or DependencyError with the command that brings it."""
    try:
        import altair
    except ImportError as error:
        raise DependencyError(
            "charts need Altair and vl-convert",
            value=error.name,
            next="install them with `pip install 'rooflens[plot]'`",
        ) from error
    return altair
