"""Cache figures of public reports about calculators that were wrong, worked out from the layer shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rooflens.models.accounting import (
    count_parameters,
    kv_growth_elements,
    kv_sequence_bytes,
    layer_counts,
    state_sequence_bytes,
)
from rooflens.models.families.registry import read_spec
from rooflens.models.spec import ModelSpec
from rooflens.units import GIB, MIB

CONFIGS = Path(__file__).parent.parent / "data" / "oracle_exotic" / "configs"
BF16_BYTES = 2


def published(name: str) -> ModelSpec:
    return read_spec(json.loads((CONFIGS / f"{name}.json").read_text()), name=name)


def growth_bytes(spec: ModelSpec) -> int:
    return int(kv_growth_elements(spec) * BF16_BYTES)


def window_bytes(spec: ModelSpec) -> int:
    """Bytes per token of all windowed layers together, while their windows fill."""
    per_token = kv_sequence_bytes(spec, context=1, kv_dtype="bf16")
    return int(per_token) - growth_bytes(spec)


def gemma4(**fields: Any) -> ModelSpec:
    """A text-only Gemma 4 with every sixth layer full and keys as values there."""
    text = {
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "dtype": "bfloat16",
    }
    return read_spec(text | fields, name="gemma-4")


def test_gemma_3_27b_at_131072_tokens() -> None:
    spec = published("google__gemma-3-27b-it")
    # 10 global layers x 16 KV heads x 128 x 2 (K, V) x 2 B = 10 x 8192 B
    assert growth_bytes(spec) == 10 * 8192
    # 10 x 8192 x 131072 = 10 GiB, and 52 layers x 8192 x 1024 = 0.41 GiB
    expected = 10 * 8192 * 131072 + 52 * 8192 * 1024
    assert kv_sequence_bytes(spec, context=131072, kv_dtype="bf16") == expected
    assert round(expected / GIB, 2) == 10.41


def test_qwen_3_5_27b_grows_in_16_of_64_layers() -> None:
    spec = published("Qwen__Qwen3.5-27B")
    # 16 layers x 4 KV heads x 256 x 2 x 2 B = 65536 B a token
    assert growth_bytes(spec) == 16 * 4 * 256 * 2 * 2 == 65536
    assert kv_sequence_bytes(spec, context=262144, kv_dtype="bf16") == 16384 * MIB
    # 48 layers x 48 heads x 128 x 128 x 4 B, and 3 inputs of (2 x 16 + 48) x 128 channels x 2 B
    assert state_sequence_bytes(spec) == 48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 + 48) * 128 * 2)
    assert layer_counts(spec)["linear"] == 48


def test_deepseek_v3_keeps_one_latent_for_all_heads() -> None:
    spec = published("deepseek-ai__DeepSeek-V3")
    # 61 layers x (512 + 64) x 2 B = 70272 B; at 65536 tokens 4.29 GiB
    assert growth_bytes(spec) == 61 * 576 * 2 == 70272
    assert round(kv_sequence_bytes(spec, context=65536, kv_dtype="bf16") / GIB, 2) == 4.29


def test_gemma_4_12b_has_two_kinds_of_heads() -> None:
    spec = gemma4(num_hidden_layers=48, num_key_value_heads=8, num_global_key_value_heads=1)
    # 8 full layers x 1 head x 512 x 2 x 2 B; 40 local ones x 8 x 256 x 2 x 2 B
    assert growth_bytes(spec) == 8 * 1 * 512 * 2 * 2 == 16384
    assert window_bytes(spec) == 40 * 8 * 256 * 2 * 2 == 327680


def test_gemma_4_31b_has_both_groups() -> None:
    spec = gemma4(
        num_hidden_layers=60,
        hidden_size=5376,
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
    )
    # 10 full layers x 4 x 512 x 2 x 2 B and 50 local ones x 16 x 256 x 2 x 2 B
    assert growth_bytes(spec) == 10 * 4 * 512 * 2 * 2 == 81920
    assert window_bytes(spec) == 50 * 16 * 256 * 2 * 2 == 819200


def test_gpt_oss_120b_at_its_longest() -> None:
    fields = json.loads((CONFIGS / "openai__gpt-oss-20b.json").read_text())
    del fields["layer_types"]
    spec = read_spec(fields | {"num_hidden_layers": 36, "num_local_experts": 128}, name="gpt-oss-120b")
    # 18 full layers x 8 heads x 64 x 2 x 2 B = 18 x 2048 B; x 131072 = 4.5 GiB; windows of 128 beside them
    full, windows = 131072 * 18 * 2048, 128 * 18 * 2048
    assert kv_sequence_bytes(spec, context=131072, kv_dtype="bf16") == full + windows
    assert full == 4.5 * GIB
    # 116.83e9, as published
    assert count_parameters(spec).total == 116_829_156_672


def test_deepseek_v4_needs_a_plus_b_times_length() -> None:
    spec = published("deepseek-ai__DeepSeek-V4-Pro")
    # 30 layers: one entry of 512 + 128 for 4 tokens; 31 layers: one of 512 for 128 tokens
    assert kv_growth_elements(spec) == 30 * (512 + 128) // 4 + 31 * 512 // 128 == 4924
    # beside them the last 128 tokens of all 61 layers, one vector of 512 each
    for context in (128, 4096, 1048576):
        elements = 61 * 512 * 128 + 30 * (context // 4) * 640 + 31 * (context // 128) * 512
        assert kv_sequence_bytes(spec, context=context, kv_dtype="bf16") == 2 * elements


def test_a_reranker_keeps_nothing() -> None:
    fields = {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaForSequenceClassification"],
        "vocab_size": 250002,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "id2label": {"0": "LABEL_0"},
        "torch_dtype": "float32",
    }
    spec = read_spec(fields, name="bge-reranker-base")
    assert kv_growth_elements(spec) == 0
    assert kv_sequence_bytes(spec, context=512, kv_dtype="bf16") == 0
    assert not spec.generates
    assert spec.max_context == 512
    # bge-reranker-base has 278M parameters
    assert count_parameters(spec).total == 278_044_417
