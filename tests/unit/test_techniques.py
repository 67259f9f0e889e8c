"""What-if: each technique acts on what it says, and they compose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflens
from rooflens.analysis import techniques as what_if
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.plan import Plan
from rooflens.analysis.techniques import Draft, Outcome, compose, evaluate, scenario_of
from rooflens.errors import InputError
from rooflens.hardware import find_device


@pytest.fixture(scope="module")
def plan() -> Plan:
    return rooflens.plan("llama-2-7b", "a100-sxm-80", batch=8, prompt=1024, output=256)


def outcome(plan: Plan, *techniques: what_if.Technique) -> Outcome:
    return evaluate(compose(*techniques)(scenario_of(plan)), plan)


def test_nothing_changed_is_the_plan(plan: Plan) -> None:
    now = outcome(plan)
    assert now.ttft_s == plan.prefill.estimate.mid
    assert now.memory_bytes == plan.ledger.total_bytes
    assert now.tpot_s > plan.decode.estimate.mid  # other requests' prompts run in between
    assert now.tokens_per_s == pytest.approx(8 / now.tpot_s)


def test_int4_weights_take_a_quarter_of_the_bytes(plan: Plan) -> None:
    # 13.48e9 bytes of fp16, idealised int4 3.37e9: 10.1e9 saved
    saved = outcome(plan).memory_bytes - outcome(plan, what_if.weights_as("int4")).memory_bytes
    assert saved == pytest.approx(0.75 * 13.477e9, rel=0.01)


def test_an_fp8_cache_takes_half_the_bytes(plan: Plan) -> None:
    # 8 x 1280 tokens x 512 KiB, halved
    saved = outcome(plan).memory_bytes - outcome(plan, what_if.cache_as("fp8")).memory_bytes
    assert saved == 8 * 1280 * 512 * 1024 / 2


@given(tokens=st.integers(1, 16), acceptance=st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_expected_tokens_count_the_chain_of_right_guesses(tokens: int, acceptance: float) -> None:
    by_hand = sum(acceptance**right for right in range(tokens + 1))  # 1 + a + a^2 + ... + a^k
    assert Draft(tokens, acceptance).expected_tokens == pytest.approx(by_hand)


def test_speculation_pays_at_batch_1_and_not_when_compute_bound() -> None:
    draft = Draft(4, 0.7, 0.1)
    small = rooflens.plan("llama-2-7b", "a100-sxm-80", batch=1, prompt=128, output=16)
    large = rooflens.plan("llama-2-7b", "a100-sxm-80", batch=512, prompt=128, output=16, context=16)
    gain = [
        outcome(plan, what_if.split_phases).tpot_s
        / outcome(plan, what_if.split_phases, what_if.speculating(draft)).tpot_s
        for plan in (small, large)
    ]
    assert gain[0] > 1.5
    assert gain[1] < 1


def test_wrong_guesses_cost(plan: Plan) -> None:
    assert outcome(plan, what_if.speculating(Draft(4, 0.0))).tpot_s > outcome(plan).tpot_s


def test_a_shared_prefix_is_not_computed_again(plan: Plan) -> None:
    half, most = (outcome(plan, what_if.prefix_cached(share)) for share in (0.5, 0.99))
    now = outcome(plan)
    assert most.ttft_s < half.ttft_s < 0.7 * now.ttft_s
    assert half.memory_bytes == now.memory_bytes


def test_eager_kernels_and_unfused_attention_only_cost(plan: Plan) -> None:
    small = rooflens.plan("smollm2-135m", "h100-sxm")
    assert outcome(small, what_if.without_graphs).tpot_s > 1.2 * outcome(small).tpot_s  # 270 small kernels
    long = rooflens.plan("llama-2-7b", "a100-sxm-80", prompt=4000, output=64)
    # 32 layers x 32 heads x 4000 x 4001 / 2 pairs x 4 x 2 bytes = 65.6e9 bytes, 32 ms at 2039 GB/s
    extra = outcome(long, what_if.without_fused_attention).ttft_s - outcome(long).ttft_s
    assert extra == pytest.approx(65.6e9 / 2.039e12, rel=0.01)


def test_offloaded_weights_come_over_the_host_link(plan: Plan) -> None:
    host = find_device("a100-sxm-80").host_link
    assert host is not None
    assert host.bytes_per_s_per_direction
    scenario = what_if.offloading(scenario_of(plan), 8e9)
    after = evaluate(replace(scenario, split=True), plan)
    assert after.tpot_s == pytest.approx(8e9 / host.bytes_per_s_per_direction)
    assert after.memory_bytes == plan.ledger.total_bytes - 8e9


def test_a_split_moves_the_cache_and_frees_decodes(plan: Plan) -> None:
    now, after = outcome(plan), outcome(plan, what_if.split_phases)
    assert after.devices == 2 * now.devices
    assert after.tpot_s < now.tpot_s
    assert after.stall_s == 0 < now.stall_s
    # one prompt's cache, 1024 x 512 KiB, over one direction of the link
    link = plan.device.link
    assert link is not None
    assert link.bytes_per_s_per_direction
    assert after.ttft_s - now.ttft_s == pytest.approx(1024 * 2**19 / link.bytes_per_s_per_direction)


def test_techniques_compose_in_any_order(plan: Plan) -> None:
    first, second = what_if.weights_as("fp8"), what_if.cache_as("fp8")
    # fp8 weights on an A100 run in fp16: half the weights, half the cache
    assert outcome(plan, first, second) == outcome(plan, second, first)
    both = outcome(plan, first, second)
    assert both.memory_bytes < min(outcome(plan, first).memory_bytes, outcome(plan, second).memory_bytes)


def test_layouts_devices_and_chunks_are_replanned(plan: Plan) -> None:
    now = outcome(plan)
    assert outcome(plan, what_if.layout_of(Layout(tp=2))).tpot_s < now.tpot_s
    assert outcome(plan, what_if.device_of(find_device("h100-sxm"))).tpot_s < now.tpot_s
    chunked = outcome(plan, what_if.chunks_of(256))
    assert chunked.stall_s < 0.5 * now.stall_s
    assert chunked.ttft_s > now.ttft_s


def test_a_drive_and_host_experts_are_copies_of_their_own(plan: Plan) -> None:
    scenario = what_if.offloading(scenario_of(plan), 8e9, on_drive=True)
    assert evaluate(replace(scenario, split=True), plan).tpot_s == pytest.approx(8e9 / 7e9)
    with pytest.raises(InputError, match="no routed experts"):
        what_if.with_host_experts(scenario_of(plan))
    sparse = rooflens.plan("Qwen/Qwen3-30B-A3B", "h100-sxm")
    kept = evaluate(what_if.with_host_experts(scenario_of(sparse)), sparse)
    # 48 layers of 128 experts of 3 x 2048 x 768, two bytes each
    assert sparse.ledger.total_bytes - kept.memory_bytes == 48 * 128 * 3 * 2048 * 768 * 2
    link = sparse.device.host_link
    assert link is not None
    assert link.bytes_per_s_per_direction
    visited = 48 * 8 * 3 * 2048 * 768 * 2  # one token visits eight
    assert kept.tpot_s == pytest.approx(visited / link.bytes_per_s_per_direction, rel=0.01)
