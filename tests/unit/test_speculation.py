"""Speculative decoding: the gain's algebra, the plan's own formula, and reading it from steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rooflens
from rooflens.analysis import techniques as what_if
from rooflens.analysis.speculation import StepCosts, gain_factors
from rooflens.analysis.techniques import Draft, compose, evaluate, scenario_of, verifying_step_s

SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("tokens", [1, 4, 12])
@pytest.mark.parametrize("cost_share", [0.0, 0.1, 0.8])
@pytest.mark.parametrize("offered", [0.0, 0.3, 1.0])
def test_bounds_of_the_gain(tokens: int, cost_share: float, offered: float) -> None:
    for verify_s in (1.0, 1.5):  # a verifying step takes as long as a plain one, or longer
        gains = [
            Draft(tokens, acceptance, cost_share, offered).gain(plain_s=1.0, verify_s=verify_s)
            for acceptance in SHARES
        ]
        assert gains[0] <= 1
        assert gains[-1] <= tokens + 1
        assert gains == sorted(gains)
    # Right guesses that cost nothing are worth all of their tokens.
    assert Draft(tokens, 1.0).gain(plain_s=1.0, verify_s=1.0) == tokens + 1


def test_the_gain_by_hand() -> None:
    # 1 + 0.5 + 0.25 tokens in 1.2 + 2 x 0.1 plain steps, in half of the steps; one in one in the others.
    draft = Draft(2, 0.5, 0.1, offered=0.5)
    assert draft.expected_tokens == pytest.approx(0.5 * 1.75 + 0.5)
    assert draft.step_s(plain_s=2.0, verify_s=2.4) == pytest.approx(0.5 * (2.4 + 0.4) + 0.5 * 2.0)
    assert draft.gain(plain_s=2.0, verify_s=2.4) == pytest.approx(1.375 * 2.0 / 2.4)


def test_the_plan_and_the_benchmark_have_one_formula() -> None:
    plan = rooflens.plan("llama-2-7b", "a100-sxm-80", batch=1, prompt=256, output=64)
    draft = Draft(4, 0.7, 0.1)
    after = evaluate(compose(what_if.speculating(draft))(scenario_of(plan)), plan)
    plain_s = float(plan.decode.estimate.mid)
    costs = StepCosts(plain_s, verifying_step_s(plan, 1, 5), 4 * 0.1 * plain_s)
    assert costs.gain(draft) == pytest.approx(evaluate(scenario_of(plan), plan).tpot_s / after.tpot_s)


def test_factors_make_up_the_difference() -> None:
    draft = Draft(4, 0.8, offered=0.9)
    predicted, measured = StepCosts(10e-3, 12e-3, 4e-3), StepCosts(20e-3, 30e-3, 12e-3)
    factors = gain_factors(draft, gain=1.3, tokens_per_step=2.9, predicted=predicted, measured=measured)
    parts = factors.to_dict().values()
    product = 1.0
    for part in parts:
        assert part is not None
        product *= part
    before = predicted.gain(draft)
    assert before is not None
    assert product == pytest.approx(1.3 / before)
    # Verifying takes 1.5 plain steps instead of 1.2, guessing 0.6 instead of 0.4: both cost gain.
    assert factors.verify is not None
    assert factors.draft is not None
    assert factors.verify == pytest.approx((0.9 * (1.2 + 0.4) + 0.1) / (0.9 * (1.5 + 0.4) + 0.1))
    assert factors.draft == pytest.approx((0.9 * (1.5 + 0.4) + 0.1) / (0.9 * (1.5 + 0.6) + 0.1))


def test_steps_longer_than_their_bounds_change_nothing_where_all_are() -> None:
    draft = Draft(4, 0.8)
    predicted, measured = StepCosts(10e-3, 12e-3, 4e-3), StepCosts(30e-3, 36e-3, 12e-3)
    factors = gain_factors(
        draft,
        gain=predicted.gain(draft) or 0,
        tokens_per_step=draft.expected_tokens,
        predicted=predicted,
        measured=measured,
    )
    assert list(factors.to_dict().values()) == pytest.approx([1, 1, 1, 1])


def test_without_guesses_and_without_a_verifying_step() -> None:
    unknown = StepCosts(1.0, None, 0.0)
    assert unknown.gain(Draft(4, 0.5)) is None
    assert unknown.gain(Draft(4, 0.0, offered=0.0)) == 1
    known = replace(unknown, verify_s=1.1)
    factors = gain_factors(Draft(4, 0.5), gain=1.0, tokens_per_step=1.9, predicted=known, measured=unknown)
    assert factors.tokens is not None
    assert factors.verify is factors.draft is factors.rest is None


def _step(work: list[tuple[int, int]], **times: float) -> Any:
    pytest.importorskip("torch")
    from rooflens.runtime.engine.records import StepRecord, Work

    shares = tuple(Work(9, 1 + drafted, 1 + drafted, False, accepted) for drafted, accepted in work)
    seconds = {
        name: times.get(name, 0.0)
        for name in ("draft_s", "schedule_s", "prepare_s", "model_s", "sample_s", "commit_s", "detokenise_s")
    }
    counts = dict.fromkeys(
        ("index", "admitted", "preempted", "waiting", "running", "budget_tokens", "kv_blocks_used"), 1
    ) | {"kv_blocks_cached": 0, "kv_blocks_free": 0}
    return StepRecord(
        **counts,
        started_s=0.0,
        gap_s=None,
        **seconds,
        work=shares,
        output_tokens=sum(1 + accepted for _, accepted in work),
        drafted_tokens=sum(drafted for drafted, _ in work),
        accepted_tokens=sum(accepted for _, accepted in work),
    )


def test_guesses_read_from_steps() -> None:
    pytest.importorskip("torch")
    from rooflens.runtime.profile.guessing import read_guessing

    plain = _step([(0, 0), (0, 0)], model_s=1.0)
    steps = [
        plain,
        plain,
        plain,
        _step([(4, 4), (4, 1)], draft_s=0.25, model_s=1.5),
        _step([(2, 0), (0, 0)], model_s=1.25),
    ]
    found = read_guessing(steps)
    assert found is not None
    assert (found.drafted_tokens, found.accepted_tokens) == (10, 5)
    assert found.acceptance == 0.5
    # Of the guesses that were still in the running five were right and two ended the run.
    assert found.chance == 5 / 7
    assert found.offered == 3 / 10
    assert found.tokens_per_step == 15 / 10
    assert found.verify_step_s == (1.5 + 1.25) / 2
    assert found.gain == pytest.approx(15 / (3 + 1.75 + 1.25) / 2)
    assert read_guessing(steps[:3]) is None
    few = read_guessing(steps[2:])
    assert few is not None
    assert few.gain is None
