"""Percentiles against numpy, convergence by hand-written groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.measure.statistics import converged, median, percentile, summarize

positive = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(values=positive, share=st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(values=positive)
def test_summary_is_ordered_and_scales(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.p10 <= summary.median <= summary.p90
    doubled = summarize([2 * value for value in values])
    assert doubled.spread == pytest.approx(summary.spread, abs=1e-9)


def test_summary_by_hand() -> None:
    # 1..11: rank 0.1 x 10 = 1 -> the second value; the median is the sixth.
    summary = summarize([float(n) for n in range(11, 0, -1)])
    assert (summary.count, summary.p10, summary.median, summary.p90) == (11, 2, 6, 10)
    assert summary.spread == pytest.approx((10 - 2) / 6)
    assert median([4, 1, 2, 3]) == 2.5


@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [float("nan")], [float("inf")], [-1.0]])
def test_samples_that_cannot_be(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"positive|no values"):
        summarize(bad)


def test_convergence_needs_three_agreeing_groups_of_four() -> None:
    assert converged([1.0] * 12)
    assert not converged([1.0] * 11)
    assert converged([9.0] * 30 + [1.0] * 12)  # what came before the last three groups does not matter
    assert not converged([1.0] * 4 + [1.0] * 4 + [1.011] * 4)  # 1.1 % apart
    assert converged([1.0] * 4 + [1.005] * 4 + [1.0099] * 4)
    # One outlier in a group does not move its median.
    assert converged([1.0, 1.0, 1.0, 5.0] * 3)


def test_drift_is_not_convergence() -> None:
    assert not converged([1.0 * 1.01**step for step in range(24)])
