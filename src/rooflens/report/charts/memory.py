"""The memory ledger: what fills each device, its capacity, and what is free or missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooflens.analysis.ledger import Ledger
from rooflens.report.charts.geometry import even_ticks, hatch, text_width
from rooflens.report.charts.theme import (
    DARK,
    LIGHT,
    SMALL_SIZE,
    Theme,
    finish,
    ink_on,
    part_colors,
    require_altair,
    ticks,
)
from rooflens.report.words import Words
from rooflens.units import format_bytes, format_share

WIDTH = 760
_ROW, _BAR, _FOOT = 70, 30, 6  # pixels of one ledger: all of it, its bar, the space under the last


@dataclass(frozen=True)
class NamedLedger:
    """A ledger and what to call it."""

    name: str
    ledger: Ledger


def memory_chart(
    ledgers: Sequence[NamedLedger], say: Words, *, dark: bool = False, title: str | None = None
) -> Any:
    """An Altair chart with one stacked bar per ledger. Raises DependencyError without the extra ``plot``."""
    theme = DARK if dark else LIGHT
    head = title or say("chart.memory.title")
    return finish(memory_panel(ledgers, say, theme), theme, head, say("memory.per_device"))


def memory_panel(ledgers: Sequence[NamedLedger], say: Words, theme: Theme) -> Any:
    """The chart without title and configuration, to be put beside others."""
    return _Panel(ledgers, say, theme).layers()


class _Panel:
    """One panel being put together; y is in pixels, downwards."""

    def __init__(self, ledgers: Sequence[NamedLedger], say: Words, theme: Theme) -> None:
        self.alt = require_altair()
        self.ledgers, self.say, self.theme = ledgers, say, theme
        self.longest = max(max(x.ledger.total_bytes, x.ledger.capacity_bytes or 0) for x in ledgers)
        self.height = _ROW * len(ledgers) + _FOOT
        self.names = list(dict.fromkeys(row.name for x in ledgers for row in x.ledger.rows if row.bytes))
        self.colors = part_colors(self.names)

    def data(self, rows: list[dict[str, Any]]) -> Any:
        """Rows as inline data."""
        return self.alt.Chart(self.alt.Data(values=rows))

    def place(self) -> dict[str, Any]:
        """The x and y encodings of all layers: bytes and pixels."""
        alt = self.alt
        axis = alt.Axis(**ticks(even_ticks(self.longest), format_bytes), title=None, domain=False)
        return {
            "x": alt.X("x:Q", scale=alt.Scale(domain=[0, self.longest], nice=False), axis=axis),
            "y": alt.Y("y:Q", scale=alt.Scale(domain=[self.height, 0], nice=False), axis=None),
        }

    def pixels(self, size: float) -> float:
        """Width of so many bytes."""
        return size / self.longest * WIDTH

    def bar(self, number: int) -> tuple[float, float]:
        """Top and bottom of a ledger's bar."""
        top = number * _ROW + (_ROW - _BAR) - 8
        return float(top), float(top + _BAR)

    def layers(self) -> Any:
        """Back to front: room, parts, words in the parts, capacity, what is missing, headlines."""
        layers = [self.room(), self.parts(), *self.part_words(), *self.limits(), *self.headlines()]
        return self.alt.layer(*layers).properties(width=WIDTH, height=self.height)

    def room(self) -> Any:
        """The whole capacity as an empty box."""
        rows = []
        for number, (top, bottom) in self._bars():
            capacity = self.ledgers[number].ledger.capacity_bytes
            if capacity is not None:
                rows.append({"x": 0, "x2": capacity, "y": top, "y2": bottom})
        mark = self.data(rows).mark_rect(
            fill=self.theme.grid, fillOpacity=0.5, stroke=self.theme.outline, strokeWidth=1
        )
        return mark.encode(**self.place(), x2="x2:Q", y2="y2:Q")

    def _bars(self) -> list[tuple[int, tuple[float, float]]]:
        return [(number, self.bar(number)) for number in range(len(self.ledgers))]

    def _part_rows(self) -> list[dict[str, Any]]:
        say, single = self.say, len(self.ledgers) == 1
        rows = []
        for number, (top, bottom) in self._bars():
            ledger, start = self.ledgers[number].ledger, 0
            capacity = ledger.capacity_bytes
            for row in ledger.rows:
                if not row.bytes:
                    continue
                size, share = format_bytes(row.bytes), format_share(row.bytes / ledger.total_bytes)
                word = say.term("ledger", row.name)
                rows.append(
                    {
                        "x": start,
                        "x2": start + row.bytes,
                        "y": top,
                        "y2": bottom,
                        "row": row.name,
                        "part": f"{word}  {size}, {share}" if single else word,
                        "of": self.ledgers[number].name,
                        "bytes": row.bytes,
                        "capacity": self.longest if capacity is None else capacity,
                        "size": size,
                        "share": share,
                        "evidence": say.term("evidence", row.evidence),
                    }
                )
                start += row.bytes
        return rows

    def parts(self) -> Any:
        """The ledger's rows, one after the other, a gap between them."""
        alt, say = self.alt, self.say
        rows = self._part_rows()
        order = list(dict.fromkeys(row["part"] for row in rows))
        fills = [self.colors[next(row["row"] for row in rows if row["part"] == part)] for part in order]
        mark = self.data(rows).mark_rect(stroke=self.theme.background, strokeWidth=1.2)
        return mark.encode(
            **self.place(),
            x2="x2:Q",
            y2="y2:Q",
            color=alt.Color("part:N", scale=alt.Scale(domain=order, range=fills), sort=order),
            tooltip=[
                alt.Tooltip("of:N", title=say("chart.of")),
                alt.Tooltip("part:N", title=say("memory.item")),
                alt.Tooltip("size:N", title=say("memory.size")),
                alt.Tooltip("share:N", title=say("memory.share")),
                alt.Tooltip("evidence:N", title=say("evidence")),
            ],
        ).properties(name="ledger")

    def part_words(self) -> list[Any]:
        """Name and size inside every part that has room for them, else the size, else nothing."""
        spots: dict[str, list[dict[str, Any]]] = {}
        for row in self._part_rows():
            # Beyond the capacity the bar is hatched: words stay in what is left of it.
            end = min(row["x2"], row["capacity"])
            width = self.pixels(end - row["x"]) - 10
            word = self.say.term("ledger", row["row"])
            texts = (f"{word} {row['size']}", row["size"])
            text = next((text for text in texts if text_width(text, SMALL_SIZE) <= width), None)
            if text is not None:
                middle = {"x": (row["x"] + end) / 2, "y": (row["y"] + row["y2"]) / 2, "text": text}
                spots.setdefault(ink_on(self.colors[row["row"]]), []).append(middle)
        return [
            self.data(rows)
            .mark_text(color=ink, fontSize=SMALL_SIZE, baseline="middle")
            .encode(**self.place(), text="text:N")
            for ink, rows in spots.items()
        ]

    def limits(self) -> list[Any]:
        """A heavy line at each capacity; what lies beyond it is hatched."""
        lines, beyond, strokes = [], [], []
        for number, (top, bottom) in self._bars():
            ledger = self.ledgers[number].ledger
            capacity = ledger.capacity_bytes
            if capacity is None:
                continue
            lines.append({"x": capacity, "y": top - 5, "y2": bottom + 5})
            if ledger.total_bytes > capacity:
                beyond.append({"x": capacity, "x2": ledger.total_bytes, "y": top, "y2": bottom})
                left, right = self.pixels(capacity), self.pixels(ledger.total_bytes)
                corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
                for (x1, y1), (x2, y2) in hatch(corners, gap=9):
                    scale = self.longest / WIDTH
                    strokes.append({"x": x1 * scale, "y": y1, "x2": x2 * scale, "y2": y2})
        layers = []
        if beyond:
            theme = self.theme
            veil = self.data(beyond).mark_rect(fill=theme.background, fillOpacity=0.45)
            layers.append(veil.encode(**self.place(), x2="x2:Q", y2="y2:Q"))
            ink = self.data(strokes).mark_rule(color=theme.bad, strokeWidth=1.4)
            layers.append(ink.encode(**self.place(), x2="x2:Q", y2="y2:Q"))
            frame = self.data(beyond).mark_rect(fillOpacity=0, stroke=theme.bad, strokeWidth=1.6)
            layers.append(frame.encode(**self.place(), x2="x2:Q", y2="y2:Q"))
        heavy = self.data(lines).mark_rule(color=self.theme.text, strokeWidth=3)
        layers.append(heavy.encode(**self.place(), y2="y2:Q").properties(name="capacity"))
        return layers

    def headlines(self) -> list[Any]:
        """Over every bar its name on the left, and the verdict on the right."""
        names = []
        verdicts: dict[str, list[dict[str, Any]]] = {}
        for number, (top, _) in self._bars():
            named = self.ledgers[number]
            names.append({"x": 0, "y": top - 10, "text": named.name})
            color, text = self._verdict(named.ledger)
            verdicts.setdefault(color, []).append({"x": self.longest, "y": top - 10, "text": text})
        left = self.data(names).mark_text(
            align="left", baseline="bottom", fontWeight="bold", color=self.theme.text, limit=WIDTH * 0.6
        )
        layers = [left.encode(**self.place(), text="text:N")]
        for color, rows in verdicts.items():
            right = self.data(rows).mark_text(align="right", baseline="bottom", color=color)
            layers.append(right.encode(**self.place(), text="text:N"))
        return layers

    def _verdict(self, ledger: Ledger) -> tuple[str, str]:
        """Colour and words of whether it fits."""
        if ledger.capacity_bytes is None:
            total = format_bytes(ledger.total_bytes)
            return self.theme.quiet, self.say("plan.fits.unknown", total=total)
        amounts = {
            "total": format_bytes(ledger.total_bytes),
            "capacity": format_bytes(ledger.capacity_bytes),
            "rest": format_bytes(ledger.deficit_bytes or ledger.capacity_bytes - ledger.total_bytes),
        }
        if ledger.fits:
            return self.theme.good, self.say("chart.memory.fits", **amounts)
        key = "chart.memory.over" if ledger.deficit_bytes else "chart.memory.refused"
        return self.theme.bad, self.say(key, **amounts)


def memory_rows(ledgers: Sequence[NamedLedger]) -> list[dict[str, Any]]:
    """The ledgers as rows: one per part, bytes, None for unknown."""
    return [
        {
            "name": named.name,
            "part": row.name,
            "bytes": row.bytes,
            "low_bytes": row.low_bytes,
            "high_bytes": row.high_bytes,
            "evidence": row.evidence,
            "total_bytes": named.ledger.total_bytes,
            "capacity_bytes": named.ledger.capacity_bytes,
        }
        for named in ledgers
        for row in named.ledger.rows
    ]
