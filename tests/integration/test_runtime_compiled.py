"""Operators and layers that torch compiles compute what the modules do; what it cannot compile is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rooflens.analysis.ledger import weights_bytes  # noqa: E402
from rooflens.hardware.local_cpu import read_cpu  # noqa: E402
from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.kernels import compiled, cpu  # noqa: E402
from rooflens.runtime.layer_steps import CompiledLayers  # noqa: E402

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "head_dim": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
CONFIGS: dict[str, dict[str, Any]] = {
    # Biases; the head tied to the table.
    "qwen2": {**SHAPE, "model_type": "qwen2", "head_dim": 16, "tie_word_embeddings": True},
    # Soft caps, a sliding window in every second layer, norms after the blocks, with an offset.
    "gemma2": {
        **SHAPE,
        "model_type": "gemma2",
        "sliding_window": 24,
        "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    # Both blocks side by side behind a layer norm; rotations of neighbours.
    "cohere": {**SHAPE, "model_type": "cohere", "head_dim": 16},
}


needs_packed_bf16 = pytest.mark.skipif(
    not cpu.onednn_packs(torch.bfloat16), reason="oneDNN packs no bf16 weights on this processor"
)


@pytest.fixture(autouse=True)
def _no_model_fits_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(read_cpu(), caches=())
    monkeypatch.setattr(cpu, "read_cpu", lambda: bare)
    torch.set_num_threads(2)


def made(name: str, **options: Any) -> NativeBackend:
    return NativeBackend.from_random(
        CONFIGS[name], device="cpu", dtype="bf16", kv_tokens=256, kernels="cpu", **options
    )


@needs_packed_bf16
@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_layers_compute_what_modules_compute(name: str) -> None:
    backend = made(name)
    model = backend.model
    caches = [backend.new_cache(blocks=16) for _ in range(2)]
    layers = CompiledLayers.of(model, caches[0])
    assert isinstance(layers, CompiledLayers), layers
    table = [11, 3, 7, 2, 9]
    prompt = StepBatch.build([Chunk([3 + i % 80 for i in range(29)], 0, table)])
    for cache in caches:
        model(prompt, cache)
    for position in range(29, 70):
        batch = StepBatch.build([Chunk([position % 90], position, table)])
        assert layers.takes(batch)
        found, wanted = layers.run(batch), model(batch, caches[1])
        error = (found - wanted).abs().mean() / wanted.abs().mean()
        assert error < 0.03, (position, error)
    for one, other in zip(caches[0].keys + caches[0].values, caches[1].keys + caches[1].values, strict=True):
        assert (one.float() - other.float()).abs().max() <= 0.03 * other.float().abs().max()


@needs_packed_bf16
def test_the_first_token_and_the_steps_of_others() -> None:
    backend = made("qwen2")
    runner = backend.runner
    assert isinstance(runner, CompiledLayers)
    first = StepBatch.build([Chunk([5], 0, [1])])
    other = backend.new_cache(blocks=2)
    torch.testing.assert_close(runner.run(first), backend.model(first, other), rtol=0.05, atol=0.02)
    assert not runner.takes(StepBatch.build([Chunk([5, 6], 0, [1])]))
    assert not runner.takes(StepBatch.build([Chunk([5], 0, [1]), Chunk([6], 0, [2])]))


@needs_packed_bf16
def test_weights_held_twice_are_counted_twice() -> None:
    backend = made("qwen2")
    assert backend.report.held_bytes == weights_bytes(backend.spec)
    plain = NativeBackend.from_random(CONFIGS["qwen2"], device="cpu", dtype="bf16", kernels="eager")
    assert backend.report.held_bytes > 1.9 * plain.report.held_bytes
    assert any("held twice" in note for note in backend.spec.notes)
    assert "and as rows" in backend.report.kernels["linear"]
    assert backend.runner is not None
    assert "layers that torch compiles" in backend.report.kernels["step"]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp16", "fp32"])
def test_a_cache_in_another_type_is_left_to_the_modules(kv_dtype: str) -> None:
    backend = made("qwen2", kv_dtype=kv_dtype)
    assert backend.runner is None
    assert kv_dtype in backend.report.kernels["step"]


@needs_packed_bf16
def test_without_memory_for_both_weights_are_packed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(read_cpu(), caches=(), memory_limit_bytes=100_000)
    monkeypatch.setattr(cpu, "read_cpu", lambda: small)
    backend = made("qwen2")
    assert backend.runner is None
    assert backend.report.kernels["linear"] == "bfloat16, packed by oneDNN"


@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize("features", [32, 80, 7])
def test_operators_of_any_size(rows: int, features: int) -> None:
    generator = torch.Generator().manual_seed(rows * features)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    cases = [
        (compiled.RMS_NORM, (normal(rows, features), normal(features), torch.tensor(1e-5))),
        (compiled.GATED["silu"], (normal(rows, 2 * features),)),
        *(
            (formula, (normal(1, features), normal(2 * rows, features), normal(2 * rows)))
            for formula in compiled.ROW_PRODUCTS.values()
        ),
    ]
    for formula, operands in cases:
        call = compiled.compiled(formula, torch.bfloat16)
        assert not isinstance(call, str), call
        torch.testing.assert_close(call(*operands), formula.function(*operands), rtol=2**-7, atol=2**-7)


def test_what_torch_cannot_compile_is_left_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(formula: Any, dtype: Any) -> Any:
        raise RuntimeError("no compiler\nmore lines")

    monkeypatch.setattr(compiled, "_package", refused)
    monkeypatch.setattr(compiled, "_KNOWN", {})
    backend = made("qwen2")
    logits = backend.step(StepBatch.build([Chunk([5, 6], 0, [1])]))
    assert torch.isfinite(logits).all()
    told = backend.report.kernels["linear"]
    assert "torch could not compile" in told
    assert "no compiler" in told
    assert "more lines" not in told
    assert backend.runner is None
