"""Sizes that publishers state on their model cards, from the shapes that those models are published with."""

from __future__ import annotations

from typing import Any

import pytest

from rooflens.models.accounting import count_parameters
from rooflens.models.families.registry import read_spec

LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
ROUTED = {"moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_shared_experts": 1}

# A.X K1 (519B, 33B active), Sarvam 105B, Youtu-LLM 2B (1.96B), Hy3 preview (295B, 21B active, 3.8B for
# the prediction layer), Olmo Hybrid 7B, Trinity Mini (26B, 3B active),
# Gemma 4 12B, Ling 2.0 (1T, 50B active; mini 16.26B, 1.43B active)
CARDS: dict[str, tuple[dict[str, Any], float, float]] = {
    "A.X-K1": (
        {
            "model_type": "axk1",
            "vocab_size": 163840,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "n_routed_experts": 192,
            "q_lora_rank": 1536,
            **LATENT,
            **ROUTED,
        },
        519e9,
        33e9,
    ),
    "sarvam-105b": (
        {
            "model_type": "sarvam_mla",
            "vocab_size": 262144,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 64,
            "num_experts": 128,
            **LATENT,
            **ROUTED,
        },
        106e9,
        12.4e9,
    ),
    "Youtu-LLM-2B": (
        {
            "model_type": "youtu",
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            **LATENT,
        },
        1.96e9,
        1.96e9,
    ),
    "Hy3-preview": (
        {
            "model_type": "hy_v3",
            "vocab_size": 120832,
            "hidden_size": 4096,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "moe_intermediate_size": 1536,
        },
        295e9,
        20.7e9,
    ),
    "Olmo-Hybrid-7B": (
        {
            "model_type": "olmo_hybrid",
            "vocab_size": 100352,
            "hidden_size": 3840,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 30,
        },
        7.43e9,
        7.43e9,
    ),
    "gemma-4-12B": (
        {
            "model_type": "gemma4_unified",
            "text_config": {
                "vocab_size": 262144,
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
            },
            "vision_config": {},
            "audio_config": {},
        },
        11.96e9,
        11.96e9,
    ),
    "Ling-1T": (
        {
            "model_type": "bailing_moe_v2",
            "vocab_size": 157184,
            "hidden_size": 8192,
            "intermediate_size": 18432,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "moe_intermediate_size": 2048,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "first_k_dense_replace": 4,
        },
        1000e9,
        51e9,
    ),
    "Ling-mini-2.0": (
        {
            "model_type": "bailing_moe_v2",
            "vocab_size": 157184,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 20,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "moe_intermediate_size": 512,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
        16.26e9,
        1.43e9,
    ),
    "Trinity-Mini": (
        {
            "model_type": "afmoe",
            "vocab_size": 200192,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 1024,
            "num_dense_layers": 2,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
        },
        26.1e9,
        3.47e9,
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_counts_are_those_of_the_card(name: str) -> None:
    fields, total, active = CARDS[name]
    found = count_parameters(read_spec(fields, name=name))
    assert found.total == pytest.approx(total, rel=0.005)
    assert found.active == pytest.approx(active, rel=0.02)


def test_a_prediction_layer_is_counted_apart() -> None:
    fields, total, _ = CARDS["Hy3-preview"]
    found = count_parameters(read_spec(fields | {"num_nextn_predict_layers": 1}, name="Hy3-preview"))
    assert found.mtp == pytest.approx(3.75e9, rel=0.01)
    assert found.total == pytest.approx(total, rel=0.005)
