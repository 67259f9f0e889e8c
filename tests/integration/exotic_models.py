"""Small random shapes of the less common architectures, as fields of their configs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Shapes = Callable[[random.Random], dict[str, Any]]


def latent(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([2, 4])
    return {
        "vocab_size": rng.choice([96, 160]),
        "hidden_size": heads * rng.choice([16, 24]),
        "intermediate_size": rng.choice([40, 72]),
        "moe_intermediate_size": rng.choice([16, 24]),
        "num_hidden_layers": rng.choice([3, 4]),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": rng.choice([16, 20]),
        "q_lora_rank": rng.choice([24, 28]),
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": rng.choice([8, 16]),
        "v_head_dim": rng.choice([8, 24]),
        "n_routed_experts": rng.choice([4, 8]),
        "n_shared_experts": rng.choice([1, 2]),
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": rng.choice([1, 2]),
        "attention_bias": rng.choice([True, False]),
        "index_topk": 8,
        "index_head_dim": 16,
        "index_n_heads": rng.choice([2, 4]),
    }


def plain_query(rng: random.Random) -> dict[str, Any]:
    return latent(rng) | {"q_lora_rank": None}


def compressed(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([4, 8])
    layers = rng.choice([4, 5])
    return {
        "vocab_size": 96,
        "hidden_size": rng.choice([32, 48]),
        "moe_intermediate_size": rng.choice([16, 24]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": rng.choice([16, 32]),
        "q_lora_rank": 24,
        "o_groups": rng.choice([2, 4]),
        "o_lora_rank": 8,
        "n_routed_experts": rng.choice([4, 8]),
        "num_experts_per_tok": 2,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 8,
        "hc_mult": rng.choice([2, 4]),
        "num_hash_layers": rng.choice([0, 2]),
        "compress_ratios": [rng.choice([0, 4, 128]) for _ in range(layers + 1)],
    }


def decoder(rng: random.Random) -> dict[str, Any]:
    kv_heads = rng.choice([1, 2])
    return {
        "vocab_size": rng.choice([96, 160]),
        "hidden_size": rng.choice([32, 64]),
        "intermediate_size": rng.choice([40, 72]),
        "num_hidden_layers": rng.choice([4, 6]),
        "num_attention_heads": 2 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([8, 16]),
    }


def experts(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "moe_intermediate_size": rng.choice([16, 24]),
        "shared_expert_intermediate_size": rng.choice([16, 24]),
        "num_experts": rng.choice([4, 8]),
        "num_experts_per_tok": 2,
    }


def delta_net(rng: random.Random) -> dict[str, Any]:
    return experts(rng) | {
        "linear_key_head_dim": rng.choice([8, 16]),
        "linear_value_head_dim": rng.choice([8, 12]),
        "linear_num_key_heads": 2,
        "linear_num_value_heads": rng.choice([2, 4]),
        "linear_conv_kernel_dim": rng.choice([3, 4]),
        "tie_word_embeddings": rng.choice([True, False]),
    }


def qwen_tower(rng: random.Random) -> dict[str, Any]:
    return {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": rng.choice([32, 48]),
        "intermediate_size": rng.choice([40, 56]),
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": rng.choice([4, 6]),
        "num_position_embeddings": 16,
    }


def qwen_image(rng: random.Random) -> dict[str, Any]:
    return {"text_config": experts(rng), "vision_config": qwen_tower(rng)}


def qwen2_image(rng: random.Random) -> dict[str, Any]:
    fields = qwen_image(rng)
    del fields["text_config"]["head_dim"]
    return fields


def qwen_hybrid_image(rng: random.Random) -> dict[str, Any]:
    text = delta_net(rng)
    return {
        "text_config": text,
        "vision_config": qwen_tower(rng),
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def sink_experts(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "num_local_experts": rng.choice([4, 8]),
        "num_experts_per_tok": 2,
        "attention_bias": rng.choice([True, False]),
    }


def chunks(rng: random.Random) -> dict[str, Any]:
    text = decoder(rng) | {
        "intermediate_size_mlp": rng.choice([56, 80]),
        "num_local_experts": rng.choice([2, 4]),
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": rng.choice([1, 2]),
    }
    wide = rng.choice([48, 64])
    tower = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 4 * wide,
        "image_size": 56,
        "projector_input_dim": wide,
        "projector_output_dim": wide,
        "vision_output_dim": wide,
    }
    return {"text_config": text, "vision_config": tower}


def siglip(rng: random.Random) -> dict[str, Any]:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": rng.choice([32, 48]),
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": rng.choice([True, False]),
    }


def gemma3_image(rng: random.Random) -> dict[str, Any]:
    return {"text_config": decoder(rng), "vision_config": siglip(rng), "mm_tokens_per_image": 4}


def gemma3n(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "num_hidden_layers": 7,
        "num_kv_shared_layers": rng.choice([1, 2]),
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": rng.choice([2, 4]),
    }


def gemma4(rng: random.Random) -> dict[str, Any]:
    sparse = rng.choice([True, False])
    text = decoder(rng) | {
        "num_hidden_layers": 12,
        "num_key_value_heads": 2,
        "num_attention_heads": 4,
        "num_global_key_value_heads": 1,
        "global_head_dim": 32,
        "attention_k_eq_v": rng.choice([True, False]),
        "num_kv_shared_layers": rng.choice([0, 3]),
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": rng.choice([0, 8]),
        "use_double_wide_mlp": True,
        "enable_moe_block": sparse,
        "num_experts": 4 if sparse else None,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    }
    tower = {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "position_embedding_size": 16,
    }
    sound = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 24}
    return {"text_config": text, "vision_config": tower, "audio_config": rng.choice([sound, None])}


def shared_indexers(rng: random.Random) -> dict[str, Any]:
    return latent(rng) | {
        "index_topk_freq": rng.choice([1, 2]),
        "index_skip_topk_offset": rng.choice([1, 2]),
    }


def kimi_image(rng: random.Random) -> dict[str, Any]:
    tower = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {
        "text_config": latent(rng) | {"model_type": "deepseek_v3"},
        "vision_config": tower | {"pos_emb_height": 4, "pos_emb_width": 4},
        "projection_hidden_size": 32,
    }


def kimi_linear(rng: random.Random) -> dict[str, Any]:
    fields = latent(rng) | {
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "q_lora_rank": rng.choice([None, 24]),
        "num_experts": rng.choice([4, 8]),
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "linear_attn_config": {
            "head_dim": rng.choice([8, 16]),
            "num_heads": rng.choice([2, 4]),
            "short_conv_kernel_size": rng.choice([3, 4]),
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3],
        },
    }
    for name in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "first_k_dense_replace"):
        del fields[name]
    return fields


def state_space(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([4, 8])
    hidden = rng.choice([32, 64])
    return {
        "vocab_size": 96,
        "hidden_size": hidden,
        "num_hidden_layers": 3,
        "state_size": rng.choice([8, 16]),
        "num_heads": heads,
        "head_dim": 2 * hidden // heads,
        "n_groups": rng.choice([1, 2]),
        "conv_kernel": rng.choice([3, 4]),
        "use_bias": rng.choice([True, False]),
        "use_conv_bias": rng.choice([True, False]),
    }


def one_thing_a_layer(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "hybrid_override_pattern": rng.choice(["M*EM-E", "ME*ME"]),
        "mamba_num_heads": rng.choice([4, 8]),
        "mamba_head_dim": rng.choice([8, 16]),
        "n_groups": 2,
        "ssm_state_size": rng.choice([8, 16]),
        "n_routed_experts": rng.choice([4, 8]),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": rng.choice([16, 24]),
        "moe_shared_expert_intermediate_size": 40,
        "moe_latent_size": rng.choice([None, 24]),
        "mlp_bias": rng.choice([True, False]),
    }


def mamba_hybrid(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng)
    del fields["head_dim"]
    inner = 2 * fields["hidden_size"]
    heads = rng.choice([4, 8])
    return fields | {
        "num_hidden_layers": 4,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_ssm": inner,
        "mamba_n_groups": rng.choice([1, 2]),
        "mamba_d_state": rng.choice([8, 16]),
        "mamba_proj_bias": rng.choice([True, False]),
        "mamba_rms_norm": rng.choice([True, False]),
    }


def granite_hybrid(rng: random.Random) -> dict[str, Any]:
    return mamba_hybrid(rng) | {
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "num_local_experts": rng.choice([0, 4]),
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 24,
    }


def bamba(rng: random.Random) -> dict[str, Any]:
    return mamba_hybrid(rng) | {"attn_layer_indices": [rng.choice([0, 2])]}


def jamba(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng)
    del fields["head_dim"]
    return fields | {
        "num_experts": rng.choice([1, 4]),
        "num_experts_per_tok": 1,
        "attn_layer_period": 3,
        "attn_layer_offset": rng.choice([0, 1]),
        "mamba_d_state": rng.choice([8, 16]),
    }


def shared_blocks(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng)
    del fields["head_dim"]
    kinds = ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"]
    return fields | {
        "num_hidden_layers": 5,
        "layers_block_type": kinds,
        "num_key_value_heads": fields["num_attention_heads"],
        "n_mamba_heads": 4,
        "num_mem_blocks": rng.choice([1, 2]),
        "use_shared_attention_adapter": rng.choice([True, False]),
        "adapter_rank": 8,
    }


# model_type, shapes, whether the checkpoint's tensors are compared too
CASES: list[tuple[str, Shapes, bool]] = [
    ("deepseek_v2", latent, True),
    ("deepseek_v2", plain_query, True),
    ("deepseek_v3", latent, True),
    ("deepseek_v32", latent, True),
    ("deepseek_v4", compressed, False),
    ("qwen3_next", delta_net, True),
    ("qwen3_5_text", delta_net, True),
    ("qwen3_5", qwen_hybrid_image, True),
    ("qwen3_5_moe", qwen_hybrid_image, False),  # published with all experts in one tensor
    ("qwen2_vl", qwen2_image, True),
    ("qwen2_5_vl", qwen2_image, True),
    ("qwen3_vl", qwen_image, True),
    ("qwen3_vl_moe", qwen_image, False),  # as above
    ("gpt_oss", sink_experts, True),
    ("llama4", chunks, True),
    ("gemma3", gemma3_image, True),
    ("gemma3n_text", gemma3n, True),
    ("gemma4", gemma4, True),
    ("glm_moe_dsa", shared_indexers, True),
    ("glm4_moe_lite", latent, True),
    ("kimi_k25", kimi_image, False),  # transformers writes other names than are published
    ("kimi_linear", kimi_linear, False),
    ("nemotron_h", one_thing_a_layer, True),
    ("mamba", state_space, True),
    ("falcon_mamba", state_space, True),
    ("mamba2", state_space, True),
    ("granitemoehybrid", granite_hybrid, True),
    ("bamba", bamba, True),
    ("falcon_h1", mamba_hybrid, True),
    ("jamba", jamba, True),
    ("zamba2", shared_blocks, False),  # written once, under its first layer
]
