"""Decode steps in fixed places compute what plain steps compute; with a GPU, as graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.graphs import DecodeGraphs  # noqa: E402

CONFIG: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": 24,
    "query_pre_attn_scalar": 16,
    "torch_dtype": "float32",
}
PROMPTS = {7: [9, 1], 40: [2, 8, 0, 4], 31: [5, 3, 7]}


def decodes(step: int, device: str) -> StepBatch:
    chunks = [Chunk([(step + 3 * length) % 90], length + step, table) for length, table in PROMPTS.items()]
    return StepBatch.build(chunks, device=device)


def prefill(backend: NativeBackend, device: str) -> None:
    chunks = [Chunk([1 + i % 90 for i in range(length)], 0, table) for length, table in PROMPTS.items()]
    backend.step(StepBatch.build(chunks, device=device))


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_fixed_places_compute_the_same(kv_dtype: str) -> None:
    torch.set_num_threads(1)
    plain, fixed = (
        NativeBackend.from_random(CONFIG, device="cpu", kv_tokens=256, kv_dtype=kv_dtype) for _ in range(2)
    )
    graphs = DecodeGraphs(fixed.model, fixed.cache, capture=False)
    for backend in (plain, fixed):
        prefill(backend, "cpu")
    for step in range(12):
        batch = decodes(step, "cpu")
        assert graphs.takes(batch)
        torch.testing.assert_close(graphs.run(batch), plain.step(decodes(step, "cpu")))
    # Three sequences run as four, and up to four blocks each: one shape for all these steps.
    assert set(graphs._shapes) == {(4, 4)}


def test_steps_of_another_kind_are_not_taken() -> None:
    backend = NativeBackend.from_random(CONFIG, device="cpu", kv_tokens=256)
    graphs = DecodeGraphs(backend.model, backend.cache, capture=False)
    assert not graphs.takes(StepBatch.build([Chunk([1, 2], 0, [0])]))
    assert not graphs.takes(StepBatch.build([Chunk([1], 0, [0], sample=0)]))
    assert not graphs.takes(StepBatch.build([Chunk([1], 0, [i]) for i in range(65)]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_graphs_on_a_gpu_agree_with_the_cpu() -> None:
    here = NativeBackend.from_random(CONFIG, device="cpu", dtype="fp32", kv_tokens=256)
    there = NativeBackend.from_random(CONFIG, device="cuda", dtype="fp32", kv_tokens=256)
    for backend, device in ((here, "cpu"), (there, "cuda")):
        prefill(backend, device)
    for step in range(12):
        got = there.step(decodes(step, "cuda")).cpu()
        torch.testing.assert_close(got, here.step(decodes(step, "cpu")), rtol=1e-3, atol=1e-3)
