"""Module times carry the prediction's names; its FLOPs are those that torch counts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from rooflens.analysis.step import decode_step, prefill_step, step_ops, total_cost  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.runtime.backend import NativeBackend  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.engine.records import Work  # noqa: E402
from rooflens.runtime.kernels.cuda import CudaKernels  # noqa: E402
from rooflens.runtime.profile.modules import (  # noqa: E402
    ModuleProfiler,
    ModuleTimes,
    count_dispatches,
    leaves,
    operator_name,
)
from rooflens.runtime.profile.predict import mean_ops, ops_of  # noqa: E402

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}
GEMMA3 = LLAMA | {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "hidden_activation": "gelu_pytorch_tanh",
}


def backend_for(config: dict[str, object], *, kernels: str = "eager") -> NativeBackend:
    spec = read_spec(config, name="tiny")
    return NativeBackend.from_random(spec, device="cpu", dtype="fp32", kv_tokens=512, kernels=kernels)


def batch_of(*work: tuple[int, int, int]) -> StepBatch:
    """(context, new tokens, sampled rows) of each sequence, on blocks of its own."""
    chunks, first = [], 0
    for context, new, sampled in work:
        count = -(-(context + new) // 16)
        chunks.append(Chunk([7] * new, context, list(range(first, first + count)), sampled))
        first += count
    return StepBatch.build(chunks)


@pytest.mark.parametrize("config", [LLAMA, QWEN3, GEMMA3], ids=["llama", "qwen3", "gemma3"])
def test_every_operator_is_a_module_and_every_module_an_operator(config: dict[str, object]) -> None:
    backend = backend_for(config)
    ops = step_ops(backend.spec, decode_step(sequences=1, context=5), kv_dtype="fp32")
    assert {operator_name(path) for path, _ in leaves(backend.model)} == {op.name for op in ops}
    with ModuleProfiler(backend.model) as profiler:
        backend.step(batch_of((0, 20, 1)))
    times = profiler.take()
    assert times is not None
    assert {name: calls for name, (calls, _) in times.by_operator().items()} == _calls(ops)


def _calls(ops: Sequence[object]) -> dict[str, int]:
    total: dict[str, int] = {}
    for op in ops:  # a model with two kinds of layers has two rows of one name
        total[op.name] = total.get(op.name, 0) + op.count  # type: ignore[attr-defined]
    return total


def test_profiling_changes_nothing_and_leaves_nothing_behind() -> None:
    backend = backend_for(LLAMA)
    batch = batch_of((0, 20, 1), (0, 3, 3))
    expected = backend.step(batch)
    profiler = ModuleProfiler(backend.model)
    with profiler:
        assert backend.model.watcher  # a backend that captures steps must run these eagerly
        assert torch.equal(backend.step(batch), expected)
        profiler.rest()
        assert torch.equal(backend.step(batch), expected)
        profiler.watch()
        profiler.watch()
        assert torch.equal(backend.step(batch), expected)
    assert not backend.model.watcher
    assert all("forward" not in vars(module) for module in backend.model.modules())
    assert len(profiler.passes) == 2
    times = profiler.take()
    assert times is not None
    assert profiler.take() is None
    calls = list(times.calls())
    assert calls[0][0] == "embedding"
    assert calls[-1][0] == "lm_head"
    for (_, start, end), (_, following, _) in pairwise(calls):
        assert times.started_s <= start <= end <= following <= times.ended_s
    assert sum(seconds for _, seconds in times.by_operator().values()) <= times.total_s


def test_overheads_are_small_and_positive() -> None:
    found = ModuleProfiler(backend_for(LLAMA).model).overheads()
    assert 0 < found.dispatch_s < 1e-3
    assert 0 <= found.module_call_s < 1e-3
    assert 0 <= found.timer_s < 1e-3


def test_framework_calls_are_counted_where_they_are_made() -> None:
    backend = backend_for(LLAMA)
    counts = count_dispatches(backend.model, lambda: backend.step(batch_of((10, 1, 1))))
    # F.linear of a contiguous weight is a transpose and a multiply; the head's rows are one multiply.
    assert counts["layers.{i}.attention.o_proj"] == 3 * counts["lm_head"]
    assert counts["embedding"] == 1
    # silu, the two halves of the chunk and a product, per layer
    assert counts["layers.{i}.mlp.activation"] >= 3 * 3
    # residual additions at least: two per layer
    assert counts[""] >= 2 * 3


def flops_by_module(backend: NativeBackend, batch: StepBatch) -> dict[str, int]:
    """What torch's counter saw, by operator name."""
    with FlopCounterMode(display=False) as counter:
        backend.model(batch, backend.cache)
    found: dict[str, int] = {}
    paths = {path for path, _ in leaves(backend.model)}
    for name, counts in counter.get_flop_counts().items():
        path = name.partition(".")[2]
        if path in paths:
            operator = operator_name(path)
            found[operator] = found.get(operator, 0) + sum(counts.values())
    return found


def predicted_flops(ops: Sequence[object]) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in ops:
        found[op.name] = found.get(op.name, 0) + float(op.total.flops)  # type: ignore[attr-defined]
    return {name: flops for name, flops in found.items() if flops}


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_flops_of_decodes_are_what_torch_counts(config: dict[str, object]) -> None:
    """The eager kernels multiply queries with exactly the tokens in the cache."""
    backend = backend_for(config)
    # Not without any context: a product over one token is an elementwise one, which torch does not count.
    for work in ([(10, 1, 1)], [(1, 1, 1), (33, 1, 1), (7, 1, 1)]):
        ops = ops_of(backend.spec, [Work(*item, False) for item in work], kv_dtype="fp32")
        counted = {name: n for name, n in flops_by_module(backend, batch_of(*work)).items() if n}
        assert counted == predicted_flops(ops)


def test_flops_of_a_prefill_are_what_torch_counts_less_what_is_masked() -> None:
    backend = backend_for(LLAMA)
    n = 40
    ops = step_ops(backend.spec, prefill_step(sequences=1, prompt=n), kv_dtype="fp32")
    counted = {name: c for name, c in flops_by_module(backend, batch_of((0, n, 1))).items() if c}
    predicted = predicted_flops(ops)
    core = "layers.{i}.attention.core"
    # Torch counts the whole square of n x n pairs; the causal half with its diagonal is n (n + 1) / 2.
    assert counted.pop(core) * (n + 1) / (2 * n) == predicted.pop(core)
    assert counted == predicted


def test_torch_does_not_count_fused_attention_on_cpu_but_its_math_path() -> None:
    """The fused CPU kernel has no formula in torch's counter; the math path is made of counted multiplies."""
    backend = backend_for(LLAMA)
    backend.model.kernels = CudaKernels()
    for module in backend.model.modules():
        if hasattr(module, "settings"):
            module.kernels = backend.model.kernels
    core = "layers.{i}.attention.core"
    n = 32
    batch = batch_of((0, n, 1))
    assert flops_by_module(backend, batch).get(core, 0) == 0
    with sdpa_kernel(SDPBackend.MATH):
        counted = flops_by_module(backend, batch)[core]
    ops = step_ops(backend.spec, prefill_step(sequences=1, prompt=n), kv_dtype="fp32")
    assert counted * (n + 1) / (2 * n) == predicted_flops(ops)[core]


def test_a_ragged_step_is_the_sum_of_its_sequences() -> None:
    spec = read_spec(GEMMA3, name="tiny")
    work = [Work(0, 50, 0, True), Work(60, 1, 1, False), Work(5, 1, 1, False)]
    ragged = ops_of(spec, work, kv_dtype="fp32")
    alone = [ops_of(spec, [item], kv_dtype="fp32") for item in work]
    for index, op in enumerate(ragged):
        parts = [ops[index].cost for ops in alone]
        assert op.cost.flops == sum(part.flops for part in parts), op.name
        assert op.cost.kv_read_bytes == sum(part.kv_read_bytes for part in parts)
        assert op.cost.kv_write_bytes == sum(part.kv_write_bytes for part in parts)
        assert op.cost.activation_bytes == sum(part.activation_bytes for part in parts)
    # The weights are read once for all of them: what one decode reads, and the prompt's rows of the table.
    rows = 50 * 64 * 4
    weights = total_cost(ragged).weight_bytes
    assert weights - rows == total_cost(alone[1]).weight_bytes + 64 * 4


def test_the_mean_of_steps() -> None:
    spec = read_spec(LLAMA, name="tiny")
    steps = [[Work(context, 1, 1, False)] for context in (10, 20, 60)]
    mean = mean_ops(spec, steps, kv_dtype="fp32")
    # Without windows attention is linear in the context: the mean step is the step at the mean context, 30.
    at_mean = ops_of(spec, [Work(30, 1, 1, False)], kv_dtype="fp32")
    for a, b in zip(mean, at_mean, strict=True):
        assert float(a.cost.flops) == pytest.approx(float(b.cost.flops)), a.name
        assert float(a.cost.moved_bytes) == pytest.approx(float(b.cost.moved_bytes))
    with pytest.raises(ValueError, match="no steps"):
        mean_ops(spec, [], kv_dtype="fp32")


def test_a_module_that_a_call_into_c_spends_several_operators_on_counts_once() -> None:
    paths = ("layers.0.attention.core", "layers.0.mlp", "layers.1.attention.core")
    # Rotations first, under the first layer's name; then each core stores, then attends.
    times = ModuleTimes(
        started_s=0.0,
        ended_s=10.0,
        paths=paths,
        called=array("i", [0, 0, 0, 1, 2, 2]),
        starts_s=array("d", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ends_s=array("d", [2.0, 3.0, 4.0, 5.0, 6.0, 8.0]),
    )
    assert times.by_operator() == {"layers.{i}.attention.core": (2, 6.0), "layers.{i}.mlp": (1, 1.0)}
    assert times.between_s == pytest.approx(3.0)
