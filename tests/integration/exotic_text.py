"""Small random language models of the less common architectures, as fields of their configs."""

from __future__ import annotations

import random
from typing import Any


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


def dense_latent(rng: random.Random) -> dict[str, Any]:
    fields = latent(rng)
    for name in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "first_k_dense_replace"):
        del fields[name]
    return fields


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


def sink_experts(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "num_local_experts": rng.choice([4, 8]),
        "num_experts_per_tok": 2,
        "attention_bias": rng.choice([True, False]),
    }


def gemma3n(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "num_hidden_layers": 7,
        "num_kv_shared_layers": rng.choice([1, 2]),
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": rng.choice([2, 4]),
    }


def shared_indexers(rng: random.Random) -> dict[str, Any]:
    return latent(rng) | {
        "index_topk_freq": rng.choice([1, 2]),
        "index_skip_topk_offset": rng.choice([1, 2]),
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


def mimo(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "head_dim": rng.choice([16, 24]),
        "v_head_dim": rng.choice([8, 16]),
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": rng.choice([16, 24]),
        "attention_bias": rng.choice([True, False]),
    }


def lightning(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {"num_local_experts": rng.choice([2, 4]), "num_experts_per_tok": 2}


def convolutions(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng)
    del fields["head_dim"]
    return fields | {
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "conv_bias": rng.choice([True, False]),
        "block_multiple_of": 8,
        "num_dense_layers": rng.choice([1, 2]),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    }


def encoder(rng: random.Random) -> dict[str, Any]:
    hidden = rng.choice([32, 48])
    return {
        "vocab_size": rng.choice([96, 160]),
        "hidden_size": hidden,
        "dim": hidden,
        "intermediate_size": rng.choice([40, 72]),
        "hidden_dim": 40,
        "num_hidden_layers": 3,
        "n_layers": 3,
        "num_attention_heads": 2,
        "n_heads": 2,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
    }


def shortcut_experts(rng: random.Random) -> dict[str, Any]:
    return latent(rng) | {
        "num_layers": rng.choice([1, 2]),
        "ffn_hidden_size": rng.choice([40, 72]),
        "expert_ffn_hidden_size": rng.choice([16, 24]),
        "n_routed_experts": 4,
        "moe_topk": 2,
        "zero_expert_num": 0,  # transformers gives empty experts half the matrices of real ones
    }


def griffin(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng)
    del fields["head_dim"]
    return fields | {
        "lru_width": rng.choice([32, 64]),
        "attention_window_size": 8,
        "conv1d_width": rng.choice([3, 4]),
    }


def sound_to_text(rng: random.Random) -> dict[str, Any]:
    return {
        "d_model": rng.choice([32, 48]),
        "encoder_layers": 2,
        "decoder_layers": rng.choice([2, 3]),
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 40,
        "vocab_size": 96,
        "max_source_positions": 30,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
    }


def text_to_text(rng: random.Random) -> dict[str, Any]:
    return {
        "d_model": rng.choice([32, 48]),
        "d_kv": 8,
        "d_ff": rng.choice([40, 56]),
        "num_layers": 2,
        "num_decoder_layers": rng.choice([2, 3]),
        "num_heads": rng.choice([2, 4]),
        "vocab_size": 96,
        "feed_forward_proj": rng.choice(["relu", "gated-gelu"]),
    }


def shared_experts(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "pad_token_id": 0,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": rng.choice([1, 2]),
        "moe_intermediate_size": 24,
        "num_dense_layers": rng.choice([1, 2]),
        "attention_bias": rng.choice([True, False]),
    }


def delta_net_apart(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng) | {"pad_token_id": 0, "linear_key_head_dim": rng.choice([8, 12])}
    del fields["head_dim"]
    return fields


def routed_experts(rng: random.Random) -> dict[str, Any]:
    return decoder(rng) | {
        "pad_token_id": 0,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": rng.choice([1, 2]),
        "moe_intermediate_size": 24,
        "first_k_dense_replace": rng.choice([1, 2]),
        "use_qk_norm": rng.choice([True, False]),
        "use_qkv_bias": rng.choice([True, False]),
    }
