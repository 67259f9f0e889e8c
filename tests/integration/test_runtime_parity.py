"""Logits and greedy tokens against Hugging Face transformers, on the same weights.

Tiny random models of every family, written by transformers as safetensors and read by the runtime. fp32
throughout unless said: logits within 2e-4 of the largest, greedy tokens equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from runtime_models import (  # noqa: E402
    LLAMA3,
    assert_close,
    make_reference,
    random_prompt,
    reference_greedy,
    reference_logits,
)

from rooflens.runtime import NativeBackend, SamplingParams  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.kernels.cuda import CudaKernels  # noqa: E402

# Other work on the machine makes threads wait for each other: tiny models are faster on one.
torch.set_num_threads(1)

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama-bias-mqa": ("LlamaConfig", {"attention_bias": True, "num_key_value_heads": 1}),
    "llama-llama3-rope": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen2-window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral-window": ("MistralConfig", {"sliding_window": 20}),
    "gemma": ("GemmaConfig", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 48, "num_hidden_layers": 4},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32, "num_hidden_layers": 7},
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config_class, fields = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    reference = make_reference(config_class, fields, directory)
    return reference, NativeBackend(directory, device="cpu", dtype="fp32", kv_tokens=4096)


def run(backend: NativeBackend, *chunks: Chunk) -> Any:
    return backend.step(StepBatch.build(chunks))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 200])
def test_logits_of_every_row_without_a_cache(pair: Any, length: int) -> None:
    reference, backend = pair
    tokens = random_prompt(length, seed=length)
    table = list(range(-(-length // 16)))
    assert_close(run(backend, Chunk(tokens, 0, table, sample=length)), reference_logits(reference, tokens))


def test_greedy_tokens_are_equal_over_64_steps_alone_and_together(pair: Any) -> None:
    reference, backend = pair
    prompts = [random_prompt(length, seed=length) for length in (1, 7, 16, 40, 90)]
    expected = [reference_greedy(reference, prompt, 64) for prompt in prompts]
    assert [list(backend.generate([prompt], GREEDY)[0].token_ids) for prompt in prompts] == expected
    assert [list(answer.token_ids) for answer in backend.generate(prompts, GREEDY)] == expected


def test_chunks_decodes_and_scattered_blocks_in_one_step(pair: Any) -> None:
    reference, backend = pair
    first, second = random_prompt(75, seed=3), random_prompt(41, seed=4)
    # Blocks in no order, the two sequences interleaved.
    a, b = [9, 2, 17, 5, 30], [8, 3, 11]
    expected_a, expected_b = reference_logits(reference, first), reference_logits(reference, second)
    run(backend, Chunk(first[:23], 0, a, sample=0))
    both = run(backend, Chunk(first[23:60], 23, a, sample=37), Chunk(second[:40], 0, b, sample=1))
    assert_close(both, torch.cat((expected_a[23:60], expected_b[39:40])))
    last = run(backend, Chunk(second[40:], 40, b), Chunk(first[60:], 60, a, sample=15))
    assert_close(last, torch.cat((expected_b[40:], expected_a[60:])))


def test_a_prompt_of_two_thousand_tokens(pair: Any) -> None:
    reference, backend = pair
    tokens = random_prompt(2000, seed=5)
    table = list(range(126))
    expected = reference_logits(reference, tokens)
    for start in range(0, 2000, 512):
        part = tokens[start : start + 512]
        ours = run(backend, Chunk(part, start, table, sample=len(part)))
        assert_close(ours, expected[start : start + 512], share=1e-3)


def with_kernels(backend: NativeBackend, kernels: Any) -> None:
    for layer in backend.model.layers:
        layer.attention.core.kernels = kernels


def test_every_kernel_set_agrees(pair: Any, tmp_path: Path) -> None:
    reference, backend = pair
    reference.save_pretrained(tmp_path)
    eager = NativeBackend(tmp_path, device="cpu", dtype="fp32", kv_tokens=256, kernels="eager")
    # The CUDA set's attention is plain torch too: checked here, on the CPU.
    fused = NativeBackend(tmp_path, device="cpu", dtype="fp32", kv_tokens=256)
    with_kernels(fused, CudaKernels())
    prompts = [random_prompt(33, seed=6), random_prompt(70, seed=7)]
    tables = [[0, 1, 2], [5, 9, 7, 8, 6]]
    steps = (
        [Chunk(prompts[0][:-1], 0, tables[0], 1), Chunk(prompts[1][:40], 0, tables[1], 1)],
        [Chunk(prompts[0][-1:], 32, tables[0], 1), Chunk(prompts[1][40:-1], 40, tables[1], 1)],
        [Chunk([5], 33, tables[0], 1), Chunk(prompts[1][-1:], 69, tables[1], 1)],
    )
    for chunks in steps:
        expected = run(eager, *chunks)
        assert_close(run(backend, *chunks), expected)
        assert_close(run(fused, *chunks), expected)


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8"])
def test_cache_types(pair: Any, tmp_path: Path, kv_dtype: str) -> None:
    reference, _ = pair
    reference.save_pretrained(tmp_path)
    backend = NativeBackend(tmp_path, device="cpu", dtype="fp32", kv_tokens=256, kv_dtype=kv_dtype)
    tokens = random_prompt(100, seed=8)
    table = list(range(7))
    run(backend, Chunk(tokens[:60], 0, table, sample=0))
    ours = run(backend, Chunk(tokens[60:], 60, table, sample=40))
    # The mean over all logits: an extreme one may move further.
    error = (ours - reference_logits(reference, tokens)[60:]).abs().mean()
    scale = reference_logits(reference, tokens).abs().mean()
    assert error <= {"fp32": 1e-4, "bf16": 0.02, "int8": 0.05}[kv_dtype] * scale


def test_bf16_stays_within_its_tolerance(pair: Any, tmp_path: Path) -> None:
    reference, _ = pair
    reference.save_pretrained(tmp_path)
    backend = NativeBackend(tmp_path, device="cpu", dtype="bf16", kv_tokens=256)
    tokens = random_prompt(120, seed=9)
    expected = reference_logits(reference, tokens)
    ours = run(backend, Chunk(tokens, 0, list(range(8)), sample=120))
    theirs = reference_logits(reference.to(torch.bfloat16), tokens)
    reference.to(torch.float32)
    # Mean error against fp32: no more than half again what transformers itself loses in bf16, plus 1 %.
    scale = expected.abs().mean()
    assert (ours - expected).abs().mean() <= 1.5 * (theirs - expected).abs().mean() + 0.01 * scale
