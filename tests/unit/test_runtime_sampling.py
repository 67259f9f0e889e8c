"""Sampling: parameters refused by name, greedy exact, each truncation by hand, seeds, penalties, logprobs."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rooflens.errors import InputError, RooflensError  # noqa: E402
from rooflens.runtime.ranking import columns_at, highest, highest_column, highest_scores, running_count  # noqa: E402
from rooflens.runtime.sampler import sample  # noqa: E402
from rooflens.runtime.sampling import LOWEST_LOGPROB, SamplerState, SamplingParams  # noqa: E402


def states(*params: SamplingParams, prompt: tuple[int, ...] = ()) -> list[SamplerState]:
    return [SamplerState(p, prompt) for p in params]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", -0.5),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -2.5),
        ("seed", 1.5),
        ("logprobs", -1),
        ("logprobs", 21),
        ("n", 0),
        ("stop_token_ids", (-1,)),
    ],
)
def test_unusable_parameters_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("stop", ["", ("a", "")])
def test_a_stop_string_of_length_zero_is_refused(stop: Any) -> None:
    with pytest.raises(InputError, match="length zero"):
        SamplingParams(stop=stop)


def test_one_stop_string_may_be_given_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 1.0, 1.0, 1.0]])
    greedy = SamplingParams(temperature=0)
    assert [t.token_id for t in sample(logits, states(greedy, greedy))] == [1, 0]


def draws(params: SamplingParams, logits: list[float], count: int = 4000) -> Counter[int]:
    own = states(*[SamplingParams(**{**params.__dict__, "seed": seed}) for seed in range(count)])
    rows = torch.tensor(logits).expand(count, -1)
    return Counter(token.token_id for token in sample(rows, own))


# Probabilities 0.4, 0.3, 0.2, 0.1.
LOGITS = [math.log(0.4), math.log(0.3), math.log(0.2), math.log(0.1)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), [0.4, 0.3, 0.2, 0.1]),
        (SamplingParams(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        # 0.4 alone does not reach 0.5; 0.4 + 0.3 does.
        (SamplingParams(top_p=0.5), [4 / 7, 3 / 7, 0, 0]),
        (SamplingParams(top_p=0.39), [1, 0, 0, 0]),
        # A share of the largest: 0.6 x 0.4 = 0.24 keeps 0.4 and 0.3.
        (SamplingParams(min_p=0.6), [4 / 7, 3 / 7, 0, 0]),
        # After top-k the kept ones are 0.44, 0.33, 0.22, and 0.44 alone reaches 0.42; 0.40 would not.
        (SamplingParams(top_k=3, top_p=0.42), [1, 0, 0, 0]),
        # Temperature 0.5 squares: 0.16, 0.09, 0.04, 0.01 of 0.30.
        (SamplingParams(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (SamplingParams(temperature=1e-6), [1, 0, 0, 0]),
    ],
)
def test_each_truncation_gives_its_distribution(params: SamplingParams, expected: list[float]) -> None:
    counts = draws(params, LOGITS)
    for token, share in enumerate(expected):
        # Four standard deviations of a binomial share over 4,000 draws.
        assert abs(counts[token] / 4000 - share) <= 4 * math.sqrt(share * (1 - share) / 4000)


def test_top_p_looks_past_the_first_candidates() -> None:
    # 5,000 equal tokens: the first 1,024 have a fifth of the mass, top_p 0.9 needs 4,500.
    seeds = [SamplingParams(top_p=0.9, seed=seed) for seed in range(300)]
    tokens = [t.token_id for t in sample(torch.zeros(300, 5000), states(*seeds))]
    assert len(set(tokens)) > 200


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 50, generator=generator)
    wanted = SamplingParams(seed=11, top_p=0.9, temperature=0.8)

    def alone() -> list[int]:
        state = SamplerState(wanted, ())
        return [sample(rows[i : i + 1], [state])[0].token_id for i in range(6)]

    def in_company() -> list[int]:
        state, others = (
            SamplerState(wanted, ()),
            states(SamplingParams(top_k=5), SamplingParams(temperature=0)),
        )
        chosen = []
        for i in range(6):
            batch = torch.stack((rows[0], rows[i], rows[1]))
            chosen.append(sample(batch, [others[0], state, others[1]])[1].token_id)
        return chosen

    assert alone() == alone() == in_company()


def test_answers_of_one_request_differ_by_index_and_repeat_by_seed() -> None:
    params = SamplingParams(seed=5, n=2)
    first, second = SamplerState(params, (), index=0), SamplerState(params, (), index=1)
    assert first.uniform() != second.uniform()
    assert SamplerState(params, (), index=1).uniform() == SamplerState(params, (), index=1).uniform()


def test_penalties_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0, 1.0]])
    # Repetition 2 over prompt {0}: 2.0 / 2 = 1.0 falls under 1.5.
    state = SamplerState(SamplingParams(temperature=0, repetition_penalty=2.0), (0,))
    assert sample(logits, [state])[0].token_id == 1
    # Now 1 has been seen too: 0.75; token 3 with 1.0 ties with token 0 at 1.0, and 0 is first.
    assert sample(logits, [state])[0].token_id == 0
    # Presence 1: once taken, 2.0 - 1.0 = 1.0 < 1.5.
    state = SamplerState(SamplingParams(temperature=0, presence_penalty=1.0), ())
    assert [sample(logits, [state])[0].token_id for _ in range(3)] == [0, 1, 0]
    # Frequency 0.3: 2.0, 1.7, then 1.4 < 1.5, then 1.2 < 1.4.
    state = SamplerState(SamplingParams(temperature=0, frequency_penalty=0.3), ())
    assert [sample(logits, [state])[0].token_id for _ in range(4)] == [0, 0, 1, 0]
    assert torch.equal(logits, torch.tensor([[2.0, 1.5, -1.0, 1.0]]))


def test_logprobs_are_the_models_own_and_valid_json() -> None:
    logits = torch.tensor([[*LOGITS, float("-inf")]])
    params = SamplingParams(temperature=0.3, top_p=0.3, presence_penalty=1.0, logprobs=5, seed=1)
    token = sample(logits, states(params))[0]
    assert token.token_id == 0
    assert token.logprob == pytest.approx(math.log(0.4))
    assert [i for i, _ in token.top_logprobs] == [0, 1, 2, 3, 4]
    assert token.top_logprobs[4][1] == LOWEST_LOGPROB
    json.dumps(token.top_logprobs, allow_nan=False)


def test_logprobs_of_zero_report_the_chosen_token_only() -> None:
    token = sample(torch.tensor([LOGITS]), states(SamplingParams(temperature=0, logprobs=0)))[0]
    assert token.top_logprobs == ()
    assert token.logprob == pytest.approx(math.log(0.4))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_an_error(temperature: float) -> None:
    with pytest.raises(RooflensError, match="not numbers"):
        sample(torch.tensor([[1.0, math.nan, 2.0]]), states(SamplingParams(temperature=temperature)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=2, max_size=40),
    st.integers(0, 50),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.05, 3.0),
    st.integers(0, 100),
)
def test_a_drawn_token_is_never_one_that_was_cut(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature, seed=seed)
    row = torch.tensor([logits])
    token = sample(row, states(params))[0].token_id
    chances = torch.softmax(row[0].double() / temperature, dim=-1)
    assert chances[token] >= min_p * chances.max() * (1 - 1e-6)
    if top_k:
        assert int((row[0] > row[0][token]).sum()) < top_k


@settings(deadline=None)
@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    levels=st.sampled_from([2, 5, 10**6]),
)
def test_ranking_is_the_order_of_scores(rows: int, columns: int, seed: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (rows, columns), generator=generator).float()
    width = int(torch.randint(1, columns + 1, (1,), generator=generator))
    order = torch.sort(scores, dim=-1, descending=True, stable=True)
    assert torch.equal(highest_column(scores), order.indices[:, 0])
    assert highest(scores) == (order.indices[:, 0].tolist(), order.values[:, 0].tolist())
    ranked = highest_scores(scores, width)
    assert torch.equal(ranked, order.values[:, :width])
    for place in range(width):
        found = columns_at(scores, ranked, torch.full((rows,), place))
        assert torch.equal(found, order.indices[:, place])
        equal = scores == ranked[:, place, None]
        number = place - (ranked > ranked[:, place, None]).sum(dim=-1)
        assert torch.equal(running_count(equal, number), found)
