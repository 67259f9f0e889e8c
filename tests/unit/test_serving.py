"""Steady state of continuous batching: laws that hold whatever the figures."""

from __future__ import annotations

import pytest

import rooflens
import rooflens.analysis.serving
from rooflens import api
from rooflens.analysis.requests import Requests
from rooflens.analysis.serving import queue_s, rate_of, running_limit, token_s
from rooflens.errors import InputError

CASE = {"engine": "vllm", "prompt": 1000, "output": 200, "max_model_len": 2048}


def serving(**asked: float):  # type: ignore[no-untyped-def]
    return api.serving("llama-3.1-8b", "h100-sxm", **asked, **CASE)  # type: ignore[arg-type]


def test_one_client_is_the_plan() -> None:
    plan = rooflens.plan("llama-3.1-8b", "h100-sxm", context=1100, **CASE)  # type: ignore[arg-type]
    one = serving(concurrency=1)
    assert one.tpot_s == pytest.approx(plan.decode.estimate.mid, rel=0.01)
    # 200 steps and the prompt's share of them: a little over 200 x TPOT for one request
    assert 1 / one.rate_per_s == pytest.approx(200 * one.tpot_s + plan.prefill.estimate.mid, rel=0.1)


def test_littles_law_holds() -> None:
    for rate in (1.0, 5.0, 15.0):
        found = serving(rate=rate)
        assert found.tpot_s is not None
        # running sequences = requests a second x seconds that each decodes (one prompt is its own)
        assert found.running == pytest.approx(rate * 200 * found.tpot_s, rel=0.15)
        assert found.output_tokens_per_s == pytest.approx(rate * 200)


def test_latencies_grow_with_the_rate_and_end_at_the_most() -> None:
    found = [serving(rate=rate) for rate in (1.0, 5.0, 10.0, 15.0, 20.0)]
    assert [one.tpot_s for one in found] == sorted(one.tpot_s for one in found)  # type: ignore[type-var]
    assert [one.ttft_s for one in found] == sorted(one.ttft_s for one in found)  # type: ignore[type-var]
    most = found[0].max_rate_per_s
    over = serving(rate=most * 1.01)
    assert not over.stable
    assert over.tpot_s is over.ttft_s is None
    assert serving(rate=most * 0.99).stable


def test_rate_and_concurrency_are_two_sides_of_one_state() -> None:
    closed = serving(concurrency=32)
    opened = serving(rate=closed.rate_per_s)
    assert opened.running == pytest.approx(32, rel=0.02)
    assert opened.tpot_s == pytest.approx(closed.tpot_s, rel=0.02)


def test_memory_limits_the_running() -> None:
    # Llama-2-13B: 800 KiB a token; 1,000 + 200 / 2 tokens a sequence at a random moment
    found = api.serving("llama-2-13b", "a100-sxm-80", rate=1, engine="vllm", prompt=1000, output=200)
    plan = rooflens.plan("llama-2-13b", "a100-sxm-80", engine="vllm", prompt=1000, output=200)
    assert found.limited_by == "memory"
    assert plan.ledger.kv_capacity_tokens is not None
    assert found.limit == plan.ledger.kv_capacity_tokens // 1100
    closed = api.serving(
        "llama-2-13b", "a100-sxm-80", concurrency=500, engine="vllm", prompt=1000, output=200
    )
    assert closed.running == found.limit
    assert closed.preempts  # mean lengths fit, not all at their full length


def test_replicas_share_the_rate() -> None:
    one = serving(rate=5.0)
    four = api.serving("llama-3.1-8b", "h100-sxm", rate=20.0, count=4, dp=4, **CASE)  # type: ignore[arg-type]
    assert four.tpot_s == pytest.approx(one.tpot_s)
    assert four.max_rate_per_s == pytest.approx(4 * one.max_rate_per_s)


def test_a_cached_prefix_helps_the_first_token_and_the_rate() -> None:
    plain, cached = serving(rate=10.0), serving(rate=10.0, shared_prefix=0.8)
    assert cached.ttft_s < plain.ttft_s
    assert cached.max_rate_per_s > plain.max_rate_per_s


def test_smaller_chunks_shorten_the_longest_gap() -> None:
    wide, narrow = (
        api.serving(
            "llama-3.1-8b",
            "h100-sxm",
            rate=5.0,
            max_batched_tokens=budget,
            engine="vllm",
            prompt=4000,
            output=200,
        )
        for budget in (8192, 512)
    )
    assert narrow.itl_longest_s < 0.5 * wide.itl_longest_s


def test_the_rate_formula_by_hand() -> None:
    mix = rooflens.analysis.serving.calibration().table["general"]["mix"]
    # 10 sequences, steps of 20 ms, 100 tokens each, prompts of 50 ms: 10 / (100 x 0.02 + 10 x mix x 0.05)
    rate = rate_of(10, decode_s=0.02, shared_s=mix * 0.05, output=100)
    assert rate == pytest.approx(10 / (2 + 0.5 * mix))
    # and one token: 20 ms + 9 x mix x 50 ms / 100
    assert token_s(
        running=10, decode_s=0.02, shared_s=mix * 0.05, output=100, arrivals=False
    ) == pytest.approx(0.02 + 0.0045 * mix)


def test_queues_by_hand() -> None:
    # one server: Pollaczek-Khinchine, busy / (1 - busy) x service x (1 + 0) / 2 = 0.5 / 0.5 x 1 x 0.5
    assert queue_s(busy=0.5, service_s=1.0, servers=1, variation=0.5) == pytest.approx(0.5)
    assert queue_s(busy=0.5, service_s=1.0, servers=100) < 1e-4


def test_limits_by_hand() -> None:
    requests = Requests(900, 200)  # mean 1000, full 1100
    assert running_limit(requests, 50_000, 256) == (50, "memory", pytest.approx(50_000 / 1100))
    assert running_limit(requests, 50_000, 16) == (16, "engine", pytest.approx(50_000 / 1100))
    assert Requests(900, 200, output_cv=1.0).mean_context == 1100  # 900 + 200 x (1 + 1) / 2
    with pytest.raises(InputError, match="less than one request"):
        running_limit(requests, 1000, None)


@pytest.mark.parametrize(
    "asked", [{}, {"rate": 1, "concurrency": 1}, {"rate": 0}, {"rate": -1}, {"rate": 1, "shared_prefix": 2}]
)
def test_what_cannot_be_asked(asked: dict[str, float]) -> None:
    with pytest.raises(InputError):
        serving(**asked)
