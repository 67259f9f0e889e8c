"""What pages may write between double braces: numbers as text, and marks that say what kind they are."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rooflens.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_flops_per_s,
    format_rate,
    format_seconds,
    format_share,
)

NO_BREAK = "\u00a0"

KINDS = {
    "exact": ("counted from shapes and formats", "按形状与格式逐项算出"),
    "bound": ("a limit that nothing can beat", "无法超越的极限"),
    "estimate": ("likely, within an interval", "估计值，附区间"),
    "measured": ("read off a clock", "实测"),
    "spec": ("the vendor's figure", "厂商标称"),
    "assumed": ("a usual figure, assumed", "假定的常见值"),
}


def _glued(text: str) -> str:
    return text.replace(" ", NO_BREAK)


def size(value: float) -> str:
    """Bytes, decimal: 13.5 GB."""
    return _glued(format_bytes(value))


def binary(value: float) -> str:
    """Bytes, binary: 32.0 GiB."""
    return _glued(format_bytes(value, binary=True))


def time(value: float) -> str:
    """Seconds: 6.61 ms."""
    return _glued(format_seconds(value))


def work(value: float) -> str:
    """Operations: 13.5 GFLOP."""
    return _glued(format_flops(value))


def flops(value: float) -> str:
    """Operations a second: 312 TFLOP/s."""
    return _glued(format_flops_per_s(value))


def speed(value: float) -> str:
    """Bytes a second: 2.04 TB/s."""
    return _glued(format_bandwidth(value))


def share(value: float) -> str:
    """A share of one: 6.1 %."""
    return _glued(format_share(value))


def rate(value: float) -> str:
    """Three digits without a unit: tokens a second, batches, ratios."""
    return format_rate(value)


def count(value: float) -> str:
    """A count with its suffix: 6.74 B."""
    return _glued(format_count(value))


def whole(value: float) -> str:
    """A whole number with separators: 65,536."""
    return f"{round(value):,}"


def digits(number: int) -> Callable[[float], str]:
    """So many significant digits, never in powers of ten."""
    return lambda value: f"{float(f'{value:.{number}g}'):,.{_decimals(value, number)}f}"


def _decimals(value: float, number: int) -> int:
    from math import floor, log10

    return max(0, number - 1 - floor(log10(abs(value)))) if value else 0


def span(low: float, high: float, text: Callable[[float], str] = rate) -> str:
    """From low to high, as estimates are shown."""
    return f"{text(low)} – {text(high)}"


def marked(kind: str, language: str) -> Callable[[str], str]:
    """The mark of one kind: a span that carries its meaning as a title."""
    meaning = KINDS[kind][1 if language == "zh" else 0]

    def mark(text: str) -> str:
        return f'<span class="num {kind}" title="{html.escape(meaning)}">{text}</span>'

    return mark


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """A Markdown table; ``align`` has a letter per column (l or r), by default left and then right."""
    letters = align or "l" + "r" * (len(headers) - 1)
    rule = ["---:" if letter == "r" else ":---" for letter in letters]
    lines = [headers, rule, *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def formatters(language: str) -> dict[str, Any]:
    """Everything above by its short name, for one language."""
    named: dict[str, Any] = {
        function.__name__: function
        for function in (
            size, binary, time, work, flops, speed, share, rate, count, whole, digits, span, table,
        )
    }  # fmt: skip
    return named | {kind: marked(kind, language) for kind in KINDS}
