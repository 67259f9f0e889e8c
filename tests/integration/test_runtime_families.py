"""Families that run through the same blocks as Llama: each compared with transformers in one mixed step.

The types named here, with those of ``test_runtime_parity``, are the ones whose weights the runtime loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from runtime_models import assert_close, make_reference, random_prompt, reference_logits  # noqa: E402

from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.support import CHECKED_TYPES  # noqa: E402

torch.set_num_threads(1)

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
    "long_factor": [2.0 + 0.5 * pair for pair in range(8)],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("ArceeConfig", {}),  # squared ReLU without a gate
    "cohere": ("CohereConfig", {"tie_word_embeddings": True}),  # parallel, LayerNorm, interleaved rotary
    "exaone4": ("Exaone4Config", {"sliding_window": 16, "num_hidden_layers": 4}),  # norms after each block
    "glm": ("GlmConfig", {"head_dim": 16}),  # half of each head turns, interleaved; fused gate and up
    "granite": (
        "GraniteConfig",
        {"embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.3}
        | {"logits_scaling": 4.0},
    ),
    "helium": ("HeliumConfig", {"head_dim": 16}),
    "nemotron": ("NemotronConfig", {}),  # LayerNorm that stores its weight less one
    "olmo2": ("Olmo2Config", {}),  # norms of q and k over all heads
    "phi3": ("Phi3Config", {}),  # fused q, k, v
    "phi3-longrope": (
        "Phi3Config",
        {"original_max_position_embeddings": 64, "rope_parameters": LONGROPE},
    ),
    "seed_oss": ("SeedOssConfig", {}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5}),  # every fourth layer without positions
    "stablelm": ("StableLmConfig", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": 40}),  # LayerNorm, biases, no gate
}
ELSEWHERE = {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3"}


def test_every_type_that_loads_is_compared() -> None:
    assert set(CHECKED_TYPES) == ELSEWHERE | {name.partition("-")[0] for name in CASES}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_chunks_and_decodes_agree_with_transformers(tmp_path: Path, case: str) -> None:
    model = make_reference(*CASES[case], tmp_path)
    backend = NativeBackend(tmp_path, device="cpu", dtype="fp32", kv_tokens=512)
    first, second = random_prompt(150, seed=1), random_prompt(70, seed=2)
    a, b = [11, 3, 7, 1, 9, 0, 12, 5, 8, 2], [20, 16, 18, 17, 19]

    def run(*chunks: Chunk) -> Any:
        return backend.step(StepBatch.build(chunks))

    expected_a, expected_b = reference_logits(model, first), reference_logits(model, second)
    assert_close(run(Chunk(first[:100], 0, a, sample=100)), expected_a[:100])
    mixed = run(Chunk(first[100:149], 100, a, sample=49), Chunk(second[:69], 0, b, sample=69))
    assert_close(mixed, torch.cat((expected_a[100:149], expected_b[:69])))
    both = run(Chunk(second[69:], 69, b), Chunk(first[149:], 149, a))
    assert_close(both, torch.cat((expected_b[69:], expected_a[149:])))
