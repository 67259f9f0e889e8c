"""Goodput: shares of requests within limits, against sampled waits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens import api
from rooflens.analysis.goodput import Latencies, Wait, goodput
from rooflens.errors import InputError

CASE = {"engine": "vllm", "prompt": 1000, "output": 200, "max_model_len": 2048}


def sampled(waits: list[Wait], rng: random.Random) -> float:
    total = 0.0
    for wait in waits:
        if wait.mean_s > 0 and rng.random() < wait.waiting:
            total += rng.expovariate(wait.waiting / wait.mean_s)
    return total


@pytest.mark.parametrize(
    ("first", "second"),
    [(Wait(0.2, 0.5), Wait(0.05, 0.1)), (Wait(0.1, 0.4), Wait(0.1, 0.4)), (Wait(0.0), Wait(0.3, 0.9))],
)
def test_two_waits_one_after_the_other(first: Wait, second: Wait) -> None:
    rng = random.Random(3)
    drawn = [sampled([first, second], rng) for _ in range(40_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(first.mean_s + second.mean_s, rel=0.05)
    spread = Latencies((0.0,), first, second, 0.01, 0.0)
    for limit in (0.0, 0.05, 0.2, 0.6):
        share = sum(value <= limit for value in drawn) / len(drawn)
        assert spread.ttft_within(limit) == pytest.approx(share, abs=0.03)


@given(
    mean=st.floats(0.001, 2), waiting=st.floats(0.01, 1), limit=st.floats(0.01, 5),
    spread=st.floats(0, 0.1), more=st.floats(0.01, 3),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_shares_grow_with_the_limit(
    mean: float, waiting: float, limit: float, spread: float, more: float
) -> None:
    spread_out = Latencies((0.1, 0.3), Wait(mean, waiting), Wait(mean / 2, waiting), 0.02, spread)
    shares = [spread_out.ttft_within(value) for value in (0.0, limit, limit + more, 1e5)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, abs=1e-6)
    assert spread_out.ttft_quantile_s(0.5) <= spread_out.ttft_quantile_s(0.99)
    assert 0 <= goodput(spread_out, 3.0, ttft_s=limit, tpot_s=0.02).per_s <= 3.0


def test_one_server_against_a_simulation() -> None:
    """M/D/1 through the product's own formulas, against arrivals drawn one by one."""
    from rooflens.analysis.serving import prompt_wait_of

    rng = random.Random(7)
    rate, service_s = 4.0, 0.15
    wait, waits = 0.0, []
    for _ in range(60_000):
        waits.append(wait)
        wait = max(0.0, wait + service_s - rng.expovariate(rate))
    known = prompt_wait_of(rate, service_s, [service_s])
    assert known.mean_s == pytest.approx(sum(waits) / len(waits), rel=0.05)
    for limit in (0.05, 0.2, 0.5):
        share = sum(value <= limit for value in waits) / len(waits)
        assert known.within(limit) == pytest.approx(share, abs=0.08)


def test_goodput_of_a_served_plan() -> None:
    loose, tight = (
        api.serving("llama-3.1-8b", "h100-sxm", rate=15, ttft=ttft, tpot=0.05, **CASE)  # type: ignore[arg-type]
        for ttft in (5.0, 0.06)
    )
    assert loose.goodput is not None
    assert tight.goodput is not None
    assert loose.goodput.share > 0.99
    assert 0 < tight.goodput.share < 0.95
    assert tight.goodput.per_s == pytest.approx(15 * tight.goodput.share)
    with pytest.raises(InputError):
        api.serving("llama-3.1-8b", "h100-sxm", rate=15, ttft=0, **CASE)  # type: ignore[arg-type]
    document = tight.to_dict()
    assert document["ttft_quantiles_s"]["p50"] <= document["ttft_quantiles_s"]["p99"]
    assert document["goodput"]["ttft_limit_s"] == 0.06
