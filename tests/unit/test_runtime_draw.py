"""Drawing a token: both ways of doing it against the distribution written out plainly, in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from rooflens.runtime.draw import draw_row, draw_rows  # noqa: E402
from rooflens.runtime.sampling import SamplingParams  # noqa: E402

#: Share of the distribution that rounding in fp32 may move across the border between two tokens.
ROUNDING = 1e-5


def by_row(scores: NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    return draw_row(scores, float(scores.max()), params, uniform)


def by_rows(scores: NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    return int(draw_rows(torch.from_numpy(scores)[None], [params], [uniform])[0])


def written_out(scores: NDArray[np.float32], params: SamplingParams) -> tuple[NDArray[np.int64], list[float]]:
    """(tokens in the order of drawing, their chances): every rule by itself, one after the other."""
    wide = scores.astype(np.float64)
    weights = np.exp((wide - wide.max()) / params.temperature)
    limit = params.top_k if 0 < params.top_k < len(scores) else None
    if limit is None and params.top_p == 1.0 and params.min_p == 0.0:
        order = np.arange(len(scores))
    else:
        order = np.lexsort((np.arange(len(scores)), -wide))[:limit]
    chances = weights[order] / weights[order].sum()
    before, kept = 0.0, list[bool]()
    for token, chance in zip(order, chances, strict=True):
        reached = params.top_p < 1.0 and before >= params.top_p
        kept.append(not kept or not (reached or weights[token] < params.min_p))
        before += chance
    chances = np.where(kept, chances, 0.0)
    return order, list(chances / chances.sum())


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[np.float32], SamplingParams, float]:
    size = draw(st.integers(1, 3000))
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    scores = generator.standard_normal(size) * draw(st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]))
    if draw(st.booleans()):
        scores = np.round(scores)  # many equal ones
    if draw(st.booleans()):
        scores[generator.random(size) < 0.5] = -np.inf
        scores[generator.integers(size)] = 1.0
    params = SamplingParams(
        temperature=draw(st.sampled_from([1e-6, 0.1, 0.7, 1.0, 3.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 50, 2000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.1, 0.5, 0.9, 0.95, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-9, 0.01, 0.3, 1.0])),
    )
    uniform = draw(st.floats(0.0, 1.0, exclude_max=True))
    return scores.astype(np.float32), params, uniform


@pytest.mark.parametrize("draw_token", [by_row, by_rows])
@settings(max_examples=300, deadline=None)
@given(case=cases())
@example(case=(np.zeros(4096, np.float32), SamplingParams(), math.nextafter(1.0, 0.0)))
@example(case=(np.zeros(5000, np.float32), SamplingParams(top_p=0.9), math.nextafter(1.0, 0.0)))
@example(case=(np.zeros(1, np.float32), SamplingParams(top_p=0.9), 0.0))
@example(case=(np.arange(50, dtype=np.float32), SamplingParams(top_k=40, top_p=0.9, min_p=0.3), 0.9))
def test_a_token_is_drawn_where_the_distribution_says(
    draw_token: Callable[[NDArray[np.float32], SamplingParams, float], int],
    case: tuple[NDArray[np.float32], SamplingParams, float],
) -> None:
    scores, params, uniform = case
    token = draw_token(scores, params, uniform)
    # Where a sum is exactly the share asked for, rounding decides whether one more token is kept.
    nearby = [_near(params, change) for change in (0.0, -ROUNDING, ROUNDING)]
    assert any(agrees(token, scores, near, uniform) for near in nearby)


def _near(params: SamplingParams, change: float) -> SamplingParams:
    top_p = params.top_p if params.top_p == 1.0 else params.top_p * (1 + change)
    return replace(params, top_p=top_p, min_p=min(1.0, params.min_p * (1 + change)))


def agrees(token: int, scores: NDArray[np.float32], params: SamplingParams, uniform: float) -> bool:
    """Whether ``uniform`` lies, to rounding, in the piece of [0, 1) that belongs to ``token``."""
    order, chances = written_out(scores, params)
    rank = int(np.flatnonzero(order == token)[0])
    after = math.fsum(chances[: rank + 1])
    return chances[rank] > 0.0 and after - chances[rank] - ROUNDING <= uniform <= after + ROUNDING


@pytest.mark.parametrize("draw_token", [by_row, by_rows])
@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_draws_follow_a_large_vocabulary(
    draw_token: Callable[[NDArray[np.float32], SamplingParams, float], int], top_p: float
) -> None:
    # Uniforms in steps of 1/500: each token must come as often as its chance says, to one step.
    scores = (np.random.default_rng(3).standard_normal(20_000) * 2).astype(np.float32)
    params = SamplingParams(top_p=top_p, temperature=0.6)
    order, chances = written_out(scores, params)
    drawn = [draw_token(scores, params, (step + 0.5) / 500) for step in range(500)]
    likely = [(int(token), chance) for token, chance in zip(order, chances, strict=True) if chance > 0.01]
    assert likely
    for token, chance in likely:
        assert abs(drawn.count(token) / 500 - chance) <= 1 / 500 + ROUNDING


def test_one_infinite_score_is_taken() -> None:
    scores = np.array([1.0, np.inf, 2.0], dtype=np.float32)
    assert by_row(scores, SamplingParams(top_p=0.9), 0.99) == 1
