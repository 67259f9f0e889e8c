"""The algebra of plans: what must hold for every model, device and workload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflens
from rooflens.analysis.parallelism import Layout, rank_specs, stage_layers
from rooflens.analysis.step import decode_step, prefill_step, step_ops, total_cost
from rooflens.errors import InputError, UnsupportedError
from rooflens.models.accounting import count_parameters, embedding_bytes, weights_bytes
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec

MODELS = [
    "meta-llama/Llama-2-7b-hf",
    "Qwen/Qwen2.5-0.5B",
    "google/gemma-2-2b",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "openai-community/gpt2",
]
models = st.sampled_from(MODELS)
device_names = st.sampled_from(["rtx-4090", "a100-sxm-80", "h100-sxm", "mi300x", "m2-max"])
small = settings(deadline=None, max_examples=40)


def plan(model: str, device: str = "h100-sxm", **options: Any) -> Any:
    return rooflens.plan(model, device, weights="fp16", **options)


@given(
    models,
    st.sampled_from(["rtx-4090", "a100-sxm-80", "h100-sxm"]),
    st.integers(1, 300),
    st.integers(0, 9000),
)
@small
def test_the_bound_is_below_every_other_time(model: str, device: str, batch: int, context: int) -> None:
    result = plan(model, device, batch=batch, context=context)
    for phase in (result.prefill, result.decode):
        assert 0 < phase.bound_s <= phase.times.op_roofline_s * (1 + 1e-12)
        assert phase.bound_s <= phase.estimate.low <= phase.estimate.mid <= phase.estimate.high
        assert phase.mfu_ceiling <= 1 + 1e-9
        assert phase.mbu_ceiling <= 1 + 1e-9
        assert max(phase.mfu_ceiling, phase.mbu_ceiling) == pytest.approx(1)


@given(models, st.integers(1, 200), st.integers(1, 4000))
@small
def test_time_and_memory_grow_with_batch_and_context(model: str, batch: int, context: int) -> None:
    base = plan(model, batch=batch, context=context)
    for bigger in (
        plan(model, batch=batch + 1, context=context),
        plan(model, batch=batch, context=context + 100),
    ):
        assert bigger.decode.bound_s >= base.decode.bound_s
        assert bigger.decode.flops >= base.decode.flops
        assert bigger.ledger.total_bytes >= base.ledger.total_bytes
    assert plan(model, batch=batch + 1, context=context).decode.tokens_per_s >= base.decode.tokens_per_s * (
        1 - 1e-12
    )


@given(models, st.lists(st.integers(1, 700), min_size=1, max_size=5), st.integers(1, 4))
@small
def test_a_chunked_prefill_costs_what_the_whole_does(model: str, chunks: list[int], sequences: int) -> None:
    spec = read_model(model)
    flops = written = 0
    done = 0
    for index, chunk in enumerate(chunks):
        last = index == len(chunks) - 1
        step = prefill_step(sequences=sequences, prompt=chunk, context=done, last_chunk=last)
        cost = total_cost(step_ops(spec, step, kv_dtype="bf16"))
        flops, written, done = flops + cost.flops, written + cost.kv_write_bytes, done + chunk
    whole = total_cost(step_ops(spec, prefill_step(sequences=sequences, prompt=done), kv_dtype="bf16"))
    assert flops == whole.flops
    assert written == pytest.approx(whole.kv_write_bytes)


@pytest.mark.parametrize("model", MODELS)
def test_decode_reads_the_ledgers_weights_but_for_look_ups(model: str) -> None:
    spec = read_model(model)
    ops = step_ops(spec, decode_step(sequences=1, context=0), kv_dtype="bf16")
    read = 0.0
    for op in ops:
        if op.name == "embedding":
            continue
        every = op.expected_weight_bytes is not None
        experts = {group.layer.mlp.experts / group.layer.mlp.top_k for group in spec.groups} if every else {1}  # type: ignore[union-attr]
        read += op.total.weight_bytes * experts.pop()
    assert spec.embedding is not None
    look_ups = sum(parameter.elements for parameter in spec.parameters_extra) * 2
    if not spec.tied:
        look_ups += embedding_bytes(spec.embedding, spec)
    assert read + look_ups == pytest.approx(weights_bytes(spec), rel=1e-9)


@given(models, st.integers(0, 5000))
@small
def test_ledger_and_roofline_have_the_same_cache_bytes(model: str, context: int) -> None:
    result = plan(model, context=context)
    windowed = any(m.window for g in result.spec.groups for m in g.layer.mixers)
    read = result.decode.times.cost.kv_read_bytes
    if windowed:  # the new token is part of its own window, so one token less is read
        assert read <= result.ledger.row("kv_cache")
    else:
        assert read == result.ledger.row("kv_cache")


@pytest.mark.parametrize(
    "model", ["meta-llama/Llama-2-7b-hf", "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1"]
)
@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(tp=4), Layout(pp=2), Layout(tp=2, pp=4)])
def test_sharding_conserves_matrices_and_flops(model: str, layout: Layout) -> None:
    spec = read_model(model)
    stages = rank_specs(spec, layout)
    whole = count_parameters(spec).total
    ranks = sum(count_parameters(stage).total for stage in stages) * layout.tp
    small_tensors = sum(t for t in (_replicated(spec),)) * (layout.tp - 1)
    assert ranks == whole + small_tensors
    step = decode_step(sequences=8, context=100)
    flops = total_cost(step_ops(spec, step, kv_dtype="bf16")).flops
    cut = sum(total_cost(step_ops(stage, step, kv_dtype="bf16")).flops for stage in stages) * layout.tp
    routers = _router_flops(spec, 8) * (layout.tp - 1)
    assert cut == flops + routers


def _replicated(spec: ModelSpec) -> int:
    """Parameters that every tensor-parallel rank keeps whole: norms and routers."""
    total = spec.final_norm.parameters if spec.final_norm else 0
    for group in spec.groups:
        layer = group.layer
        total += sum(norm.parameters for norm in layer.norms) * group.count
        total += sum(norm.parameters for mixer in layer.mixers for norm in mixer.norms) * group.count
        if hasattr(layer.mlp, "router"):
            total += layer.mlp.router.parameters * group.count  # type: ignore[union-attr]
    return total


def _router_flops(spec: ModelSpec, tokens: int) -> int:
    total = 0
    for group in spec.groups:
        if hasattr(group.layer.mlp, "router"):
            router = group.layer.mlp.router  # type: ignore[union-attr]
            total += 2 * router.in_features * router.out_features * tokens * group.count
    return total


def test_kv_heads_are_copied_where_there_are_fewer_than_ranks() -> None:
    (rank,) = rank_specs(read_model("Qwen/Qwen2.5-7B-Instruct"), Layout(tp=4))  # 28 heads, 4 KV heads
    (attention,) = rank.layers[0].mixers
    assert (attention.heads, attention.kv_heads) == (7, 1)  # type: ignore[union-attr]
    assert attention.linears[0].out_features == 7 * 128 + 2 * 128


@given(st.integers(1, 100), st.integers(1, 12))
def test_stages_hold_every_layer_once(layers: int, pp: int) -> None:
    if pp > layers:
        with pytest.raises(InputError):
            stage_layers(layers, pp)
        return
    stages = stage_layers(layers, pp)
    assert [index for stage in stages for index in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": -3}, "batch"),
        ({"prompt": 0}, "prompt"),
        ({"output": 0}, "output"),
        ({"context": -1}, "context"),
        ({"count": 0}, "count"),
        ({"batch": 1.5}, "batch"),
        ({"count": 3}, "32 attention heads"),
        ({"count": 4, "tp": 3}, "tp x pp x dp"),
        ({"kv_dtype": "fp7"}, "kv_dtype"),
        ({"engine": "vlm"}, "engine"),
        ({"memory_utilization": 1.5}, "memory_utilization"),
        ({"context": 5000, "max_model_len": 4096}, "max_model_len"),
        ({"count": 64, "pp": 64, "tp": 1}, "pp=64"),
    ],
)
def test_unusable_settings_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=field):
        rooflens.plan("meta-llama/Llama-2-7b-hf", "h100-sxm", **options)


def test_a_missing_peak_is_refused_for_a_format_that_was_asked_for() -> None:
    with pytest.raises(UnsupportedError, match="fp8"):
        rooflens.plan("meta-llama/Llama-2-7b-hf", "a100-sxm-80", weights="fp8")


@given(
    models,
    st.lists(st.integers(1, 400), min_size=1, max_size=4),
    st.lists(st.integers(0, 5000), min_size=1, max_size=4),
)
@small
def test_a_sweep_is_many_plans(model: str, batches: list[int], contexts: list[int]) -> None:
    swept = rooflens.sweep(model, "a100-sxm-80", batch=batches, context=contexts)
    row = 0
    for batch in batches:
        for context in contexts:
            one = rooflens.plan(model, "a100-sxm-80", batch=batch, context=context)
            assert swept["batch"][row] == batch
            assert swept["context"][row] == context
            assert swept["bound_s"][row] == pytest.approx(one.decode.bound_s, rel=1e-9)
            assert swept["kv_s"][row] == pytest.approx(one.decode.times.kv_s, rel=1e-9)
            assert swept["total_bytes"][row] == pytest.approx(one.ledger.total_bytes, rel=1e-9)
            assert swept["fits"][row] == one.fits
            row += 1


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"device": "h100-sxm", "batch": [1, 2, 4], "context": 128}, "weights"),
        ({"device": "h100-sxm", "batch": range(1, 60), "context": 4000}, "kv"),
        ({"device": "rtx-4090", "batch": range(1, 60), "context": 4000}, "memory_full"),
        ({"peak": 2e13, "bandwidth": 2e12, "memory": 80e9, "batch": range(1, 60), "context": 10}, "compute"),
    ],
)
def test_the_knee_has_its_cause(options: dict[str, Any], cause: str) -> None:
    options = {"batch": 1, **options}
    swept = rooflens.sweep("meta-llama/Llama-2-7b-hf", prompt=1, **options)
    assert swept.knee.cause == cause
    assert (swept.knee.value is None) == (cause == "weights")


def test_a_million_points_are_one_vectorised_call() -> None:
    swept = rooflens.sweep(
        "meta-llama/Llama-2-7b-hf", "h100-sxm", batch=range(1, 1001), context=range(1, 1001)
    )
    assert len(swept["bound_s"]) == 1_000_000
    assert np.all(np.isfinite(swept["bound_s"]))
    assert np.all(swept["tokens_per_s"] > 0)


def test_ridge_of_a_sparse_model_lies_further_out() -> None:
    dense = plan("meta-llama/Llama-2-7b-hf").ridge_batch
    sparse = plan("Qwen/Qwen3-30B-A3B").ridge_batch
    assert sparse > 4 * dense  # 128 experts, 8 used: most weights serve few tokens


def test_remedies_are_true() -> None:
    options: dict[str, Any] = {"batch": 64, "prompt": 512, "context": 4096}
    result = rooflens.plan("meta-llama/Llama-2-7b-hf", "rtx-4090", **options)
    assert result.fits is False
    assert result.remedies
    for remedy in result.remedies:
        changed = {**options, **remedy.to_dict()}
        if "tp" in changed:
            changed["count"] = changed["tp"]
        changed["prompt"] = min(512, changed["context"])
        assert rooflens.plan("meta-llama/Llama-2-7b-hf", "rtx-4090", **changed).fits, remedy


def test_a_remedy_of_an_engine_uses_what_the_engine_loads() -> None:
    result = rooflens.plan("meta-llama/Llama-3.1-70B-Instruct", "a100-sxm-80", engine="vllm")
    assert result.fits is False
    settings = [remedy.to_dict() for remedy in result.remedies]
    assert any(change.get("weights") == "awq" and "max_model_len" in change for change in settings)
    assert not any(change.get("weights") == "fp8" for change in settings)  # the A100 has no fp8 rate
    for change in settings:
        if "tp" not in change:
            assert rooflens.plan(
                "meta-llama/Llama-3.1-70B-Instruct", "a100-sxm-80", engine="vllm", **change
            ).fits, change


def test_a_cache_given_in_bytes_has_no_other_type() -> None:
    model = rooflens.dense(params=8e9, kv_bytes_per_token=131072)
    with pytest.raises(InputError, match="kv_dtype has no meaning"):
        rooflens.plan(model, "l40s", kv_dtype="fp8")
    assert rooflens.plan(model, "l40s", kv_dtype="auto").to_dict() == rooflens.plan(model, "l40s").to_dict()
