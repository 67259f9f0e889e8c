"""However a model is cut, the ranks together hold its parameters, do its arithmetic and read its bytes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rooflens
from rooflens.analysis.communication import (
    Network,
    all_reduces,
    communication_bytes,
    traffic,
)
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.analysis.step import decode_step, prefill_step, step_ops, total_cost
from rooflens.analysis.totals import totals_of
from rooflens.api import read_spec_of
from rooflens.errors import InputError
from rooflens.models.accounting import kv_sequence_bytes, weights_bytes
from rooflens.models.spec import MixtureOfExperts, ModelSpec

DENSE, SPARSE, LATENT = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"
WAYS = st.sampled_from([1, 2, 4, 8])


def cut(name: str, layout: Layout) -> tuple[ModelSpec, tuple[ModelSpec, ...]]:
    spec = read_spec_of(name)
    try:
        return spec, rank_specs(spec, layout)
    except InputError:
        assume(False)
        raise


def matrices(spec: ModelSpec) -> float:
    """Bytes of what is dealt out or cut, which norms, routers and biases are not."""
    total = 0.0
    for group in spec.groups:
        layer = group.layer
        for mixer in layer.mixers:
            total += group.count * sum(
                one.in_features * one.out_features for one in mixer.linears if one.shard in ("row", "column")
            )
        for mlp in (layer.mlp, layer.extra_mlp):
            if mlp is None:
                continue
            dense = [mlp.expert] * mlp.experts if isinstance(mlp, MixtureOfExperts) else [mlp]
            total += group.count * sum(
                one.in_features * one.out_features for part in dense for one in part.linears
            )
    return total


@given(
    name=st.sampled_from([DENSE, SPARSE, LATENT]), tp=WAYS, pp=WAYS, dp=st.sampled_from([1, 2, 4]),
    share=st.sampled_from([1, 2, 4, 8, 16, 32]),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_parameters_are_conserved(name: str, tp: int, pp: int, dp: int, share: int) -> None:
    assume((tp * dp) % share == 0)
    spec, stages = cut(name, Layout(tp, pp, share, dp))
    sparse = any(isinstance(group.layer.mlp, MixtureOfExperts) for group in spec.groups)
    held = sum(matrices(stage) for stage in stages) * tp * dp
    whole = matrices(spec)
    # Attention and shared experts are held once a replica; experts once over all replicas that share them.
    if not sparse or share == 1 or dp == 1:
        assert held == pytest.approx(whole * dp, rel=0.07 if tp > 4 else 1e-9)  # KV heads copied over 8 ranks
        return
    experts = sum(
        group.count
        * group.layer.mlp.experts
        * sum(one.in_features * one.out_features for one in group.layer.mlp.expert.linears)
        for group in spec.groups
        if isinstance(group.layer.mlp, MixtureOfExperts)
    )
    assert held == pytest.approx((whole - experts) * dp + experts, rel=0.07 if tp > 4 else 1e-9)


@given(
    name=st.sampled_from([DENSE, SPARSE, LATENT]), tp=WAYS, pp=st.sampled_from([1, 2, 4]),
    tokens=st.sampled_from([8, 64]), prefill=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_arithmetic_is_conserved(name: str, tp: int, pp: int, tokens: int, prefill: bool) -> None:
    spec, stages = cut(name, Layout(tp, pp))
    step = prefill_step(sequences=2, prompt=tokens) if prefill else decode_step(sequences=tokens, context=100)
    kv = spec.dtype
    whole = float(total_cost(step_ops(spec, step, kv_dtype=kv)).flops)
    parts = sum(float(total_cost(step_ops(stage, step, kv_dtype=kv)).flops) for stage in stages) * tp
    # Every rank routes and down-projects the latent by itself; KV heads are copied where ranks are more.
    assert whole <= parts * (1 + 1e-9)
    assert parts == pytest.approx(whole, rel=(0.03 if name == LATENT else 0.01) * tp)


@given(tp=WAYS, pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2]), context=st.integers(1, 4000))
@settings(deadline=None, max_examples=30)
def test_the_cache_is_cut_by_heads_and_layers(tp: int, pp: int, dp: int, context: int) -> None:
    spec, stages = cut(DENSE, Layout(tp, pp, 1, dp))
    whole = float(kv_sequence_bytes(spec, context=context, kv_dtype="bf16"))
    parts = sum(float(kv_sequence_bytes(stage, context=context, kv_dtype="bf16")) for stage in stages)
    assert parts * tp == pytest.approx(whole)  # eight KV heads over up to eight ranks


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_latent_cache_is_whole_on_every_rank(tp: int) -> None:
    spec, (rank,) = cut(LATENT, Layout(tp))
    one, all_of_it = (float(kv_sequence_bytes(part, context=1000, kv_dtype="bf16")) for part in (rank, spec))
    assert one == all_of_it
    # Data-parallel attention is what keeps it from being copied: a rank then holds its own sequences only.
    totals = rooflens.plan(LATENT, "h100-sxm", tp=1, dp=8, ep=8, count=8, batch=64).totals
    copied = rooflens.plan(LATENT, "h100-sxm", tp=8, count=8, batch=64).totals
    assert copied.kv_cache_bytes[1] == 8 * totals.kv_cache_bytes[1]


def test_totals_by_hand() -> None:
    plan = rooflens.plan("llama-2-7b", "a100-sxm-80", count=4, tp=2, pp=2, batch=8, prompt=512, output=128)
    totals = totals_of(plan.spec, plan.workload)
    # Norms are on both tensor ranks: 65 x 4096 x 2 bytes more than the model once.
    assert totals.weights_bytes[1] == weights_bytes(plan.spec) + 65 * 4096 * 2
    assert totals.kv_cache_bytes[1] == 8 * 640 * 512 * 1024
    assert totals.kv_cache_bytes[0] * 4 == totals.kv_cache_bytes[1]
    assert totals.decode.flops[1] == pytest.approx(plan.decode.flops)
    document = plan.to_dict()["totals"]
    assert document["devices"] == 4
    assert document["prefill"]["flops"]["total"] == pytest.approx(plan.prefill.flops)


def test_one_node_has_no_network() -> None:
    spec = read_spec_of(DENSE)
    sent = traffic(spec, Layout(8), Network(), tokens=16)
    assert sent.network_bytes == 0
    assert sent.link_bytes == communication_bytes(spec, Layout(8), tokens=16)


def test_all_reduces_over_nodes_by_hand() -> None:
    spec = read_spec_of(DENSE)
    layout, tokens = Layout(8), 16
    sent = traffic(spec, layout, Network(devices_per_node=4), tokens=tokens)
    payload = tokens * 4096 * 2
    reduces = all_reduces(spec, layout)
    assert reduces == 64
    # Four in a node: scattered and gathered, 2 x 3 / 4; a quarter over the network, 2 x 1 / 2 of it.
    assert sent.link_bytes == pytest.approx(64 * payload * 2 * 3 / 4)
    assert sent.network_bytes == pytest.approx(64 * payload * 2 * 1 / 2 / 4)
    assert (sent.local, sent.nodes) == (4, 2)
    # Between nodes all together pass as much as one ring over all would, or less.
    assert sent.network_bytes < communication_bytes(spec, layout, tokens=tokens)


def test_experts_over_nodes_by_hand() -> None:
    spec, layout = read_spec_of(SPARSE), Layout(1, dp=16, ep=16)
    sent = traffic(spec, layout, Network(devices_per_node=8), tokens=10)
    payload = 10 * 2048 * 2 * 8 * 96  # to 8 experts, there and back in 48 layers
    assert sent.link_bytes == pytest.approx(payload * 7 / 16)
    assert sent.network_bytes == pytest.approx(payload * 8 / 16)


@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2]), node=st.sampled_from([1, 2, 4, 8]),
    tokens=st.integers(1, 4096),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_smaller_nodes_send_no_less_over_the_network(tp: int, pp: int, node: int, tokens: int) -> None:
    spec, layout = read_spec_of(DENSE), Layout(tp, pp)
    wide, narrow = (
        traffic(spec, layout, Network(devices_per_node=size), tokens=tokens) for size in (node * 2, node)
    )
    assert narrow.network_bytes >= wide.network_bytes
    assert narrow.link_bytes <= wide.link_bytes
    assert narrow.network_bytes >= 0 <= narrow.link_bytes


def test_nodes_slow_a_step_down() -> None:
    one, two = (
        rooflens.plan("llama-3.1-70b", "h100-sxm", count=8, batch=64, devices_per_node=node, network=25e9)
        for node in (8, 4)
    )
    assert two.decode.estimate.mid > one.decode.estimate.mid
    assert two.decode.bound_s == one.decode.bound_s  # what must be sent is no more
    with pytest.raises(InputError):
        rooflens.plan("llama-3.1-70b", "h100-sxm", network=-1)
    with pytest.raises(InputError):
        rooflens.plan("llama-3.1-70b", "h100-sxm", devices_per_node=0)
