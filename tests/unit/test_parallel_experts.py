"""Experts over devices: parameters, FLOPs and bytes are conserved however they are dealt out."""

from __future__ import annotations

import pytest

from rooflens.analysis.communication import all_reduces, all_to_alls, communication_bytes
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.analysis.step import decode_step, step_ops
from rooflens.api import read_spec_of
from rooflens.models.accounting import expert_parameters
from rooflens.models.spec import MixtureOfExperts

MODEL = "Qwen/Qwen3-30B-A3B"  # 48 layers of 128 experts, 8 a token, hidden 2048

LAYOUTS = [
    Layout(tp=4, ep=4), Layout(tp=4, ep=2), Layout(tp=8, ep=4), Layout(tp=1, dp=4, ep=4),
    Layout(tp=2, dp=2, ep=4), Layout(tp=2, dp=4, ep=4), Layout(tp=2, dp=4, ep=8), Layout(tp=1, dp=8, ep=8),
]  # fmt: skip


def expert_flops(spec, tokens: int) -> float:  # type: ignore[no-untyped-def]
    ops = step_ops(spec, decode_step(sequences=tokens, context=0), kv_dtype="bf16")
    return float(sum(op.total.flops for op in ops if op.expected_weight_bytes is not None))


def moe(spec) -> MixtureOfExperts:  # type: ignore[no-untyped-def]
    mlp = spec.groups[0].layer.mlp
    assert isinstance(mlp, MixtureOfExperts)
    return mlp


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"tp{one.tp}dp{one.dp}ep{one.ep}")
def test_expert_parameters_and_flops_are_conserved(layout: Layout) -> None:
    whole = read_spec_of(MODEL)
    (rank,) = rank_specs(whole, layout)
    ranks = layout.tp * layout.dp
    held = moe(rank).experts * expert_parameters(moe(rank).expert)
    assert held * ranks == moe(whole).experts * expert_parameters(moe(whole).expert)
    # 64 tokens in all, 64 / dp on each replica
    assert expert_flops(rank, 64 // layout.dp) * ranks == pytest.approx(expert_flops(whole, 64))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"tp{one.tp}dp{one.dp}ep{one.ep}")
def test_many_tokens_read_every_expert_once(layout: Layout) -> None:
    whole = read_spec_of(MODEL)
    (rank,) = rank_specs(whole, layout)
    ops = step_ops(rank, decode_step(sequences=4096 // layout.dp, context=0), kv_dtype="bf16")
    read = sum(op.expected_weight_bytes * op.count for op in ops if op.expected_weight_bytes is not None)
    everything = 48 * 128 * expert_parameters(moe(whole).expert) * 2
    assert read * layout.tp * layout.dp == pytest.approx(everything, rel=0.01)


def test_shared_experts_are_reached_by_all_to_alls() -> None:
    spec = read_spec_of(MODEL)
    layout = Layout(tp=1, dp=8, ep=8)
    # 48 layers, there and back; 10 tokens x 2048 x 2 bytes to 8 experts, 7 of 8 elsewhere
    assert (all_reduces(spec, layout), all_to_alls(spec, layout)) == (0, 96)
    assert communication_bytes(spec, layout, tokens=10) == pytest.approx(96 * 10 * 2048 * 2 * 8 * 7 / 8)
    assert communication_bytes(spec, layout, tokens=10, least=True) == 0
    both = Layout(tp=2, dp=4, ep=8)
    assert all_reduces(spec, both) == 48  # after attention; the experts' results come back by all-to-all


def test_without_shared_experts_all_is_reduced() -> None:
    spec = read_spec_of(MODEL)
    assert (all_reduces(spec, Layout(tp=4, ep=4)), all_to_alls(spec, Layout(tp=4, ep=4))) == (96, 0)
