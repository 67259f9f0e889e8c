"""The steady state against an engine simulated step by step: same step times, arrivals drawn one by one."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean
from types import SimpleNamespace

import pytest

from rooflens.analysis.requests import Requests, spread_requests
from rooflens.analysis.serving import steady_state

PROMPT_S, BASE_S, EACH_S = 0.02, 0.01, 0.0002
"""A prompt alone; a decode step, and what each sequence adds to it."""


class Engine:
    """What prices steps, with times that a simulation can use as well."""

    setting = SimpleNamespace(engine=SimpleNamespace(request_s=0.0))

    def decode_s(self, sequences: float, requests: Requests) -> float:
        return BASE_S + EACH_S * sequences

    def prompts_s(self, requests: Requests, budget: int | None = None) -> list[float]:
        return [PROMPT_S * new / requests.prompt for new, _ in requests.prompt_points()]

    def shared_s(self, prefill_s: float) -> float:
        return prefill_s


@dataclass
class Request:
    arrival_s: float
    prompt_s: float
    output: int
    tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass
class Simulated:
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)
    clock_s: float = 0.0


def simulate(requests: Requests, *, rate: float, limit: int, count: int, seed: int = 1) -> Simulated:
    """Every step runs the waiting prompts that have a place, then a token of each running sequence."""
    rng = random.Random(seed)
    points = Engine().prompts_s(requests)
    clock, due, waiting, running, done = 0.0, rng.expovariate(rate), deque[Request](), list[Request](), 0
    made = Simulated()
    while done < count:
        while due <= clock:
            waiting.append(Request(due, rng.choice(points), requests.output))
            due += rng.expovariate(rate)
        if not waiting and not running:
            clock = due
            continue
        taken = [waiting.popleft() for _ in range(min(len(waiting), limit - len(running)))]
        step_s = (BASE_S + EACH_S * len(running)) * bool(running)
        for request in taken:
            clock += request.prompt_s
            request.first_s = request.last_s = clock  # before the decodes of the same step
            request.tokens = 1
        clock += step_s
        made.running.append((step_s + sum(one.prompt_s for one in taken), len(running)))
        for request in running:
            request.tokens += 1
            request.last_s = clock
        running += taken
        for request in [one for one in running if one.tokens >= one.output]:
            running.remove(request)
            done += 1
            if done > count // 10:  # the start is not the steady state
                made.ttft_s.append(request.first_s - request.arrival_s)
                made.tpot_s.append((request.last_s - request.first_s) / (request.output - 1))
    made.clock_s = clock
    return made


@pytest.mark.parametrize("rate", [2.0, 6.0, 12.0])
def test_means_and_goodput_are_those_of_the_simulation(rate: float) -> None:
    requests = Requests(1000, 100)
    made = simulate(requests, rate=rate, limit=512, count=2500)
    limits = (1.3 * fmean(made.ttft_s), 1.03 * fmean(made.tpot_s))
    known = steady_state(
        Engine(), requests, rate_per_s=rate, max_sequences=512, limits_s=limits  # type: ignore[arg-type]
    )  # fmt: skip
    assert known.tpot_s == pytest.approx(fmean(made.tpot_s), rel=0.06)
    assert known.ttft_s == pytest.approx(fmean(made.ttft_s), rel=0.06)
    running = sum(seconds * running for seconds, running in made.running) / made.clock_s
    assert known.running == pytest.approx(running, rel=0.1)
    assert known.goodput is not None
    good = fmean(t <= limits[0] and p <= limits[1] for t, p in zip(made.ttft_s, made.tpot_s, strict=True))
    assert known.goodput.share == pytest.approx(good, abs=0.12)


def test_prompts_that_differ_spread_the_first_token() -> None:
    spread = spread_requests(prompt=1000, output=60, prompt_std=900)
    made = simulate(spread, rate=8.0, limit=512, count=2500)
    known = steady_state(Engine(), spread, rate_per_s=8.0, max_sequences=512)  # type: ignore[arg-type]
    assert known.ttft_quantiles_s is not None
    ordered = sorted(made.ttft_s)
    for share, predicted in zip((0.5, 0.9, 0.99), known.ttft_quantiles_s, strict=True):
        assert predicted == pytest.approx(ordered[int(share * len(ordered))], rel=0.3)


def test_more_than_is_carried_piles_up() -> None:
    requests = Requests(1000, 100)
    most = steady_state(
        Engine(), requests, rate_per_s=1.0, max_sequences=64  # type: ignore[arg-type]
    ).max_rate_per_s  # fmt: skip
    under, over = (
        fmean(simulate(requests, rate=share * most, limit=64, count=2500).ttft_s[-500:])
        for share in (0.85, 1.25)
    )
    assert over > 5 * under
