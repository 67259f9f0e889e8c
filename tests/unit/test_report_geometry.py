"""Where things lie on a chart: scales both ways, labels that touch nothing, hatching within its area."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.report.charts.geometry import (
    Box,
    Label,
    LogScale,
    even_ticks,
    hatch,
    line_boxes,
    place_all,
    spread,
    text_width,
)
from rooflens.report.charts.theme import wrapped

rates = st.floats(min_value=1e-6, max_value=1e18)


@given(rates, rates, rates)
@settings(max_examples=50, deadline=None)
def test_log_scale_goes_both_ways(low, span, value):
    scale = LogScale(low, low * (1.5 + span), 400.0, 0.0)
    assert scale.value(scale.pixel(value)) == pytest.approx(value, rel=1e-9)


def test_log_scale_ends_and_middle():
    scale = LogScale(1.0, 100.0, 0.0, 200.0)
    assert [scale.pixel(value) for value in (1, 10, 100)] == [0, 100, 200]  # 100 pixels a decade
    assert scale.ticks() == [1, 10, 100]
    assert LogScale(3.0, 70.0, 0.0, 1.0).ticks() == [5, 10, 20, 50]  # one decade inside: finer ticks


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (80e9, [n * 1e10 for n in range(9)]),
        (24e9, [0, 5e9, 1e10, 15e9, 2e10]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_even_ticks(highest, expected):
    assert even_ticks(highest) == pytest.approx(expected)


@given(st.floats(min_value=1e-3, max_value=1e15))
@settings(max_examples=50, deadline=None)
def test_even_ticks_are_few_and_inside(highest):
    values = even_ticks(highest)
    assert 2 <= len(values) <= 10
    assert values[-1] <= highest * (1 + 1e-9)


@given(st.lists(st.floats(min_value=0, max_value=300), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_spread_keeps_order_and_distance(positions):
    placed = spread(positions, gap=14)
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    for one, two in pairwise(order):
        assert placed[two] - placed[one] >= 14 - 1e-6


def test_spread_leaves_alone_what_is_apart():
    assert spread([0, 100, 50], gap=14) == [0, 100, 50]
    assert spread([10, 10], gap=10) == [5, 15]


def test_hatching_stays_within_its_area():
    corners = [(0, 50), (100, 0), (100, 100), (0, 100)]
    lines = list(hatch(corners, gap=10))
    assert lines
    for line in lines:
        for x, y in line:
            assert -1e-9 <= x <= 100 + 1e-9
            assert y >= 50 - x / 2 - 1e-9
            assert y <= 100 + 1e-9
        (x1, y1), (x2, y2) = line
        assert x1 + y1 == pytest.approx(x2 + y2)  # all rise to the right at 45 degrees


def test_labels_of_crowded_points_do_not_overlap():
    """Eight points on a slope a few pixels apart, as decode at close batches."""
    points = [(100 + 22 * n, 300 - 16 * n) for n in range(8)]
    markers = [Box(x - 8, y - 8, x + 8, y + 8) for x, y in points]
    slope = line_boxes((points[0], points[-1]))
    labels = [Label((110, 16), point, (35, 60, 10, 85, 110, -60, 215, 180)) for point in points]
    boxes = place_all(labels, Box(0, 0, 760, 440), [*markers, *slope])
    for number, box in enumerate(boxes):
        assert box.left >= 0
        assert box.right <= 760
        assert all(box.overlap(other) == 0 for other in boxes[number + 1 :])
        assert all(box.overlap(marker) == 0 for marker in markers)


def test_text_width_counts_full_width_characters_double():
    assert text_width("解码", 10) == 20
    assert text_width("ab", 10) == 11


def test_wrapped_lines():
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("", 10) == []
    lines = wrapped("解码带宽受限：每条序列至多 68.4 tok/s。", 16)
    assert "".join(lines).replace(" ", "") == "解码带宽受限：每条序列至多68.4tok/s。"
    assert not any(line.startswith(("：", "。")) for line in lines)
    assert math.ceil(max(text_width(line, 1) for line in lines)) <= 18
