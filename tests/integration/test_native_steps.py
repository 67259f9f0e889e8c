"""Steps as one call into C: the logits of the reference kernels, for every family, cache and kind of step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rooflens.errors import RooflensError  # noqa: E402
from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.native.library import available, load  # noqa: E402
from rooflens.runtime.native.step import NativeSteps  # noqa: E402
from rooflens.runtime.profile.modules import ModuleProfiler, leaves  # noqa: E402

MISSING = available()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

SMALL: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
GELU = "gelu_pytorch_tanh"
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 24},
    "phi3": {"pad_token_id": 0},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "gemma2": {
        "head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "hidden_activation": GELU, "query_pre_attn_scalar": 16, "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "head_dim": 32, "sliding_window": 8, "hidden_activation": GELU, "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    "cohere": {"logit_scale": 0.25, "tie_word_embeddings": True},
    "olmo2": {},
    "stablelm": {"partial_rotary_factor": 0.25, "use_qkv_bias": True, "hidden_act": "silu"},
    "nemotron": {"partial_rotary_factor": 0.5, "hidden_act": "relu2"},
    "starcoder2": {"hidden_act": GELU},
    "granite": {
        "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
    },
    "glm": {"head_dim": 16},
    "helium": {"head_dim": 16},
}  # fmt: skip
TOKENS = torch.randint(1, 199, (300,), generator=torch.Generator().manual_seed(0)).tolist()
FIRST = [3, 1, 5, 2, 9, 12, 20, 21, 22, 23, 24, 25, 26, 7]
SECOND = [8, 10]


def make(family: str, kernels: str, **settings: Any) -> NativeBackend:
    config = {**SMALL, "model_type": family, **FAMILIES[family]}
    settings = {"dtype": "fp32", "kv_tokens": 512, **settings}
    return NativeBackend.from_random(config, device="cpu", kernels=kernels, **settings)


def run(backend: NativeBackend, *chunks: Chunk) -> Any:
    return backend.step(StepBatch.build(chunks)).clone()


def talk(backend: NativeBackend) -> Any:
    """A long prompt, then decodes of it alone and beside a short one, whose tokens also come in pieces."""
    run(backend, Chunk(TOKENS[:200], 0, FIRST))
    return torch.cat(
        [
            run(backend, Chunk(TOKENS[200:201], 200, FIRST)),
            run(backend, Chunk(TOKENS[:5], 0, SECOND, sample=5)),
            run(backend, Chunk(TOKENS[201:202], 201, FIRST), Chunk(TOKENS[5:9], 5, SECOND, sample=2)),
            run(backend, Chunk([7], 9, SECOND), Chunk(TOKENS[202:203], 202, FIRST, sample=0)),
            run(backend, Chunk(TOKENS[203:206], 203, FIRST, sample=3), Chunk([8], 10, SECOND)),
        ]
    )


def error(ours: Any, reference: Any) -> float:
    return float((ours - reference).abs().max() / reference.abs().max())


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_fp32(family: str, kv_dtype: str) -> None:
    ours, reference = (make(family, kernels, kv_dtype=kv_dtype) for kernels in ("native", "eager"))
    assert isinstance(ours.runner, NativeSteps)
    # A key that lies between two levels of int8 may be rounded to either.
    assert error(talk(ours), talk(reference)) <= (2e-5 if kv_dtype == "fp32" else 1e-3)


@pytest.mark.parametrize("weights", [None, "int8", "int8-channel", "int4", "int4-symmetric"])
def test_a_step_agrees_with_its_own_modules(weights: str | None) -> None:
    """bf16 cache and weights of each kind: module by module torch rounds to bf16 in between, C does not."""
    whole, modules = (make("qwen2", "native", dtype="bf16", weights=weights) for _ in range(2))
    modules._runner_of = modules.cache  # no runner: the modules, on the same kernels
    assert modules.runner is None
    assert error(talk(whole), talk(modules)) <= 0.06
    assert whole.report.held_bytes == modules.report.held_bytes


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads(threads: int) -> None:
    reference = make("gemma3_text", "eager")
    ours = make("gemma3_text", "native")
    ours._runner = NativeSteps(ours.model, ours.cache, load(), threads=threads)
    ours._runner_of = ours.cache
    assert error(talk(ours), talk(reference)) <= 2e-5


def test_many_sequences_and_where_large_steps_go() -> None:
    ours, reference = (make("qwen3", kernels, kv_tokens=2048) for kernels in ("native", "eager"))
    assert isinstance(ours.runner, NativeSteps)
    results = []
    for backend in (ours, reference):
        tables = [[2 * index, 2 * index + 1] for index in range(40)]
        run(backend, *(Chunk(TOKENS[i : i + 9], 0, table) for i, table in enumerate(tables)))
        results.append(run(backend, *(Chunk([i + 1], 9, table) for i, table in enumerate(tables))))
    assert error(*results) <= 2e-5
    limit = ours.runner.max_rows
    table = list(range(-(-limit // 16) + 1))
    assert ours.runner.takes(StepBatch.build([Chunk([1] * limit, 0, table)]))
    assert not ours.runner.takes(StepBatch.build([Chunk([1] * (limit + 1), 0, table)]))


def test_another_cache_gets_another_program() -> None:
    ours = make("llama", "native")
    first = talk(ours)
    ours.cache = ours.new_cache(blocks=40)
    assert torch.equal(talk(ours), first)
    assert ours.runner is not None
    assert ours.runner.cache is ours.cache


def test_what_c_does_not_do_is_said() -> None:
    backend = make("llama", "native", kv_dtype="fp16")
    assert backend.runner is None
    assert backend.report.kernels["step"] == "module by module: a KV cache in fp16"
    narrow = make("llama", "native", dtype="fp16", kv_dtype="fp32")
    assert narrow.runner is None
    assert "a token table in float16" in narrow.report.kernels["step"]
    assert "one call in C" in make("llama", "native").report.kernels["step"]


def test_a_step_that_is_not_sound_is_refused() -> None:
    backend = make("llama", "native")
    sound = StepBatch.build([Chunk([5], 3, [1])])
    assert backend.runner is not None
    for field, value, what in (
        ("token_ids", [199], "vocabulary"),
        ("slot_mapping", [512], "slot"),
        ("block_tables", [[32]], "block table"),
        ("sample_rows", [1], "sample"),
    ):
        changed = StepBatch(**{**sound.__dict__, field: torch.tensor(value)})
        with pytest.raises(RooflensError, match=what):
            backend.runner.run(changed)


def test_a_profiler_sees_every_module_of_a_step_in_c() -> None:
    backend = make("gemma3_text", "native")
    with ModuleProfiler(backend.model) as profiler:
        run(backend, Chunk(TOKENS[:3], 0, SECOND))
        times = profiler.take()
    assert times is not None
    seen = list(times.calls())
    assert {path for path, _, _ in seen} == {path for path, _ in leaves(backend.model)}
    for (_, start, end), (_, later, _) in pairwise(seen):
        assert start <= end == later
    assert times.started_s <= seen[0][1]
    assert seen[-1][2] <= times.ended_s
    assert backend.model.watcher is None
