"""Small random multimodal models, as fields of their configs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from exotic_text import convolutions, decoder, delta_net, experts, latent

Shapes = Callable[[random.Random], dict[str, Any]]


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


def kimi_image(rng: random.Random) -> dict[str, Any]:
    tower = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {
        "text_config": latent(rng) | {"model_type": "deepseek_v3"},
        "vision_config": tower | {"pos_emb_height": 4, "pos_emb_width": 4},
        "projection_hidden_size": 32,
    }


def step(rng: random.Random) -> dict[str, Any]:
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    text = decoder(rng) | {
        "num_hidden_layers": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "share_expert_dim": rng.choice([16, 40]),
        "sliding_window": 8,
        "layer_types": kinds,
        "attention_other_setting": {"num_attention_heads": rng.choice([2, 6])},
    }
    tower = {"width": 32, "layers": 2, "heads": 2, "image_size": 56}
    return {"text_config": text, "vision_config": tower}


def block_sparse(rng: random.Random) -> dict[str, Any]:
    text = decoder(rng) | {
        "num_hidden_layers": 4,
        "rotary_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": rng.choice([16, 24]),
        "dense_intermediate_size": 80,
        "moe_layer_freq": [0, 1, 1, 1],
        "sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1], "sparse_index_dim": 8},
    }
    tower = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    return {"text_config": text, "vision_config": tower, "projector_hidden_size": 32}


def crossing(rng: random.Random) -> dict[str, Any]:
    text = decoder(rng) | {
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "cross_attention_layers": rng.choice([[1], [1, 3]]),
    }
    del text["head_dim"]
    tower = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "intermediate_size": 48,
        "image_size": rng.choice([56, 84]),
        "vision_output_dim": 96,
    }
    return {"text_config": text, "vision_config": tower}


def wrapper(text: str, tower: str, **fields: Any) -> Shapes:
    """A language model of one family behind an image tower of another."""

    def shapes(rng: random.Random) -> dict[str, Any]:
        inner = decoder(rng) | {"model_type": text, "pad_token_id": 0}
        if text in ("qwen2", "cohere2", "glm4v_text"):
            del inner["head_dim"]
        images = siglip(rng) | {"model_type": tower}
        return {"text_config": inner, "vision_config": images, **fields}

    shapes.__name__ = f"{text}_behind_{tower}"
    return shapes


def convolutions_image(rng: random.Random) -> dict[str, Any]:
    fields = wrapper("lfm2", "siglip2_vision_model")(rng)
    return fields | {"text_config": convolutions(rng) | {"model_type": "lfm2"}}


def sound(rng: random.Random) -> dict[str, Any]:
    return {
        "d_model": rng.choice([32, 48]),
        "encoder_layers": rng.choice([1, 2]),
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 40,
        "output_dim": 64,
    }


def omni(rng: random.Random) -> dict[str, Any]:
    return qwen_image(rng) | {"audio_config": sound(rng)}


def omni_dense(rng: random.Random) -> dict[str, Any]:
    return qwen2_image(rng) | {"audio_config": sound(rng)}


def audio(rng: random.Random) -> dict[str, Any]:
    text = decoder(rng) | {"model_type": "qwen2"}
    del text["head_dim"]
    return {"text_config": text, "audio_config": sound(rng)}


def glm_image(rng: random.Random) -> dict[str, Any]:
    text = decoder(rng) | {
        "pad_token_id": 0,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    }
    text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
    return {"text_config": text, "vision_config": qwen_tower(rng)}


def glm_image_dense(rng: random.Random) -> dict[str, Any]:
    return wrapper("glm4v_text", "glm4v_vision")(rng) | {"vision_config": qwen_tower(rng)}


def voice(rng: random.Random) -> dict[str, Any]:
    hidden = rng.choice([32, 48])
    tower = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": 2}
    text = decoder(rng) | {"model_type": "llama"}
    return {"text_config": text, "audio_config": tower | {"num_hidden_layers": rng.choice([1, 2])}}


def sight_and_sound(rng: random.Random) -> dict[str, Any]:
    fields = decoder(rng) | {"pad_token_id": 0}
    del fields["head_dim"]
    images = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "crop_size": 56,
    }
    hidden = rng.choice([32, 48])
    sounds = {
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_blocks": rng.choice([1, 2]),
        "num_attention_heads": 2,
        "nemo_conv_channels": 16,
        "bias_max_distance": 20,
        "ext_pw_out_channel": hidden,
        "depthwise_separable_out_channel": hidden,
    }
    return fields | {"vision_config": images, "audio_config": sounds}


def glm_image_small(rng: random.Random) -> dict[str, Any]:
    tower = qwen_tower(rng) | {"hidden_size": 32, "attention_bias": rng.choice([True, False])}
    return {"text_config": decoder(rng) | {"pad_token_id": 0}, "vision_config": tower}


def gemma4_unified(rng: random.Random) -> dict[str, Any]:
    text = decoder(rng) | {
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "global_head_dim": 32,
        "attention_k_eq_v": rng.choice([True, False]),
    }
    wide = rng.choice([32, 48])
    images = {"mm_embed_dim": wide, "output_proj_dims": wide, "mm_posemb_size": 10}
    return {
        "text_config": text,
        "vision_config": images,
        "audio_config": rng.choice([{"audio_embed_dim": 20}, None]),
    }
