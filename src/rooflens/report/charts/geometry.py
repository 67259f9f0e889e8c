"""Where things lie on a drawing: log scales in pixels, the room that words take, hatching, free places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

Point = tuple[float, float]
Segment = tuple[Point, Point]

# Width of a character over the font size: letters of a sans-serif on average, and a full-width character.
_LETTER, _WIDE = 0.55, 1.0
_FEWEST_TICKS = 3


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis: values from ``low`` to ``high`` on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    @property
    def pixels_per_decade(self) -> float:
        """Signed: negative where larger values lie at smaller pixels, as on a vertical axis."""
        return (self.end - self.start) / math.log10(self.high / self.low)

    def pixel(self, value: float) -> float:
        """Where a value lies."""
        return self.start + math.log10(value / self.low) * self.pixels_per_decade

    def value(self, pixel: float) -> float:
        """The value at a pixel."""
        return float(self.low * 10 ** ((pixel - self.start) / self.pixels_per_decade))

    def ticks(self) -> list[float]:
        """The powers of ten within the axis, with twice and five times them where they are few."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = [float(f"1e{power}") for power in range(first, last + 1)]
        inside = [value for value in decades if self.low <= value <= self.high]
        if len(inside) >= _FEWEST_TICKS:
            return inside
        finer = [times * value for value in decades for times in (1, 2, 5)]
        return [value for value in finer if self.low <= value <= self.high]


def even_ticks(highest: float, *, most: int = 9) -> list[float]:
    """Round values from 0 to ``highest`` at even steps of 1, 2 or 5 times a power of ten."""
    decade = math.floor(math.log10(highest / most))
    steps = (times * float(f"1e{power}") for power in (decade, decade + 1) for times in (1, 2, 5))
    step = next(step for step in steps if highest / step < most)
    return [number * step for number in range(math.floor(highest / step * (1 + 1e-12)) + 1)]


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Shared area."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def grown(self, by: float) -> Box:
        """The same with a margin."""
        return Box(self.left - by, self.top - by, self.right + by, self.bottom + by)

    def nearest(self, point: Point) -> Point:
        """The point of this box that is nearest to another."""
        x, y = point
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def text_width(text: str, size: float) -> float:
    """Pixels that a line of text takes, on the generous side; full-width characters count double."""
    cells = cell_len(text)
    wide = cells - len(text)
    return (max(len(text) - wide, 0) * _LETTER + wide * _WIDE) * size


def text_box(lines: Sequence[str], size: float, *, left: float, top: float) -> Box:
    """The room of lines of text whose upper left corner is given."""
    width = max(text_width(line, size) for line in lines)
    return Box(left, top, left + width, top + len(lines) * size * 1.25)


def line_boxes(segment: Segment, *, thickness: float = 4.0, step: float = 6.0) -> list[Box]:
    """A line as a chain of small boxes, to keep words off it."""
    (x1, y1), (x2, y2) = segment
    count = max(1, math.ceil(math.hypot(x2 - x1, y2 - y1) / step))
    half = thickness / 2
    spots = ((x1 + (x2 - x1) * i / count, y1 + (y2 - y1) * i / count) for i in range(count + 1))
    return [Box(x - half, y - half, x + half, y + half) for x, y in spots]


@dataclass(frozen=True)
class Label:
    """Words to set beside a point: their size, the point, and the sides to try first.

    ``angles`` are degrees clockwise from the right.
    """

    size: tuple[float, float]
    anchor: Point
    angles: Sequence[float]


def place_all(labels: Sequence[Label], area: Box, taken: Sequence[Box]) -> list[Box]:
    """Places for all labels: in the area, off what is taken and off each other, as close as may be.

    Labels are set one after the other, each at its cheapest place; of a few orders the best is kept.
    """
    from_left = sorted(range(len(labels)), key=lambda i: labels[i].anchor)
    orders = (from_left, from_left[::-1], from_left[1::2] + from_left[::2])
    best: tuple[float, dict[int, Box]] | None = None
    for order in orders:
        total, boxes, occupied = 0.0, {}, list(taken)
        for number in order:
            label = labels[number]
            cost, boxes[number] = _cheapest(label, area, occupied)
            total += cost
            occupied.append(boxes[number])
            occupied += _leader(label, boxes[number])
        if best is None or total < best[0]:
            best = total, boxes
    assert best is not None
    return [best[1][number] for number in range(len(labels))]


def _leader(label: Label, box: Box) -> list[Box]:
    """The line from a point to its label, without what lies within the marker."""
    return line_boxes((label.anchor, box.nearest(label.anchor)), thickness=2)[3:]


def _cheapest(label: Label, area: Box, taken: Sequence[Box]) -> tuple[float, Box]:
    """Distance, plus heavy fines for leaving the area, covering something, or a leader that crosses it."""
    room = label.size[0] * label.size[1]
    best: tuple[float, Box] | None = None
    for distance in _DISTANCES:
        for rank, angle in enumerate(label.angles):
            box = _beside(label.size, label.anchor, distance, angle)
            cost = distance + 3 * rank + 40 * (room - box.overlap(area))
            if best is not None and cost >= best[0]:
                continue
            around = box.grown(3)
            cost += 20 * sum(around.overlap(other) for other in taken)
            cost += 10 * sum(step.overlap(other) for step in _leader(label, box) for other in taken)
            if best is None or cost < best[0]:
                best = cost, box
    assert best is not None
    return best


_DISTANCES = (12, 18, 26, 36, 48, 62, 80, 100, 125, 150)


def _beside(size: tuple[float, float], anchor: Point, distance: float, angle: float) -> Box:
    """A box at that distance and angle, touching the ray with the side that faces the anchor."""
    across, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    left = anchor[0] + distance * across - size[0] * (1 - across) / 2
    top = anchor[1] + distance * down - size[1] * (1 - down) / 2
    return Box(left, top, left + size[0], top + size[1])


def hatch(corners: Sequence[Point], *, gap: float) -> Iterator[Segment]:
    """Parallel lines rising to the right that fill a convex polygon."""
    sums = [x + y for x, y in corners]
    offset = min(sums) + gap / 2
    while offset < max(sums):
        crossings = []
        for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], corners[0]], strict=True):
            s1, s2 = x1 + y1 - offset, x2 + y2 - offset
            if s1 * s2 < 0:
                share = s1 / (s1 - s2)
                crossings.append((x1 + (x2 - x1) * share, y1 + (y2 - y1) * share))
        if len(crossings) == 2:
            yield crossings[0], crossings[1]
        offset += gap


def spread(positions: Sequence[float], *, gap: float) -> list[float]:
    """Positions on a line moved apart until neighbours are ``gap`` away, each as little as may be.

    Neighbours that would touch are set around their common middle, in their order.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    clusters: list[tuple[float, list[int]]] = []  # (middle, members in order)
    for index in order:
        clusters.append((positions[index], [index]))
        while len(clusters) > 1:
            (middle, members), (last, added) = clusters[-2:]
            apart = gap * (len(members) + len(added)) / 2
            if last - middle >= apart:
                break
            merged = [*members, *added]
            mean = sum(positions[i] for i in merged) / len(merged)
            clusters[-2:] = [(mean, merged)]
    placed = [0.0] * len(positions)
    for middle, members in clusters:
        for rank, index in enumerate(members):
            placed[index] = middle + (rank - (len(members) - 1) / 2) * gap
    return placed
