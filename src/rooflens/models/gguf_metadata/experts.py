"""GGUF architectures with experts: what each adds to the fields that all share.

Source: the loaders of the architectures in llama.cpp, ``src/models``.
"""

from __future__ import annotations

from typing import Any

from rooflens.errors import UnsupportedError
from rooflens.models.gguf_metadata.dense import phi3
from rooflens.models.gguf_metadata.fields import Q_BIAS, QK_NORM, Family, experts, windowed
from rooflens.models.gguf_metadata.keys import GgufKeys


def _llama4(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "llama4_text",
        "intermediate_size": keys.whole("expert_feed_forward_length"),
        "intermediate_size_mlp": keys.whole("feed_forward_length"),
        "interleave_moe_layer_step": keys.whole("interleave_moe_layer_step"),
        "attention_chunk_size": 8192,  # in llama.cpp's code, as the pattern of three chunked layers in four
        "no_rope_layer_interval": 4,
    }


def _qwen2_moe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length"),
        "qkv_bias": keys.holds(Q_BIAS),
    }


def _with_experts(model_type: str, **fields: Any) -> Family:
    return lambda keys: {**experts(keys), "model_type": model_type, **fields}


def _phimoe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **phi3(keys),
        **experts(keys),
        "model_type": "phimoe",
        "attention_bias": keys.holds(Q_BIAS),
        "lm_head_bias": "output.bias" in keys.tensors,
    }


def _dbrx(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "dbrx",
        "d_model": keys.whole("embedding_length"),
        "n_layers": keys.layers,
        "n_heads": keys.whole("attention.head_count"),
        "attn_config": {
            "kv_n_heads": keys.whole("attention.head_count_kv"),
            "clip_qkv": keys.number("attention.clamp_kqv", default=0.0) or None,
            "rope_theta": keys.number("rope.freq_base", default=10000.0),
        },
        "ffn_config": {
            "ffn_hidden_size": keys.whole("feed_forward_length"),
            "moe_num_experts": keys.whole("expert_count"),
            "moe_top_k": keys.whole("expert_used_count"),
            "ffn_act_fn": {"name": "silu"},
        },
    }


def _glm4_moe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "glm4_moe",
        "attention_bias": keys.holds(Q_BIAS),
        "use_qk_norm": keys.holds(QK_NORM),
    }


def _exaone_moe(keys: GgufKeys) -> dict[str, Any]:
    shared = keys.whole("expert_shared_count", default=0)
    return {
        **experts(keys),
        "model_type": "exaone_moe",
        **windowed(keys, pattern=4),
        "num_shared_experts": shared,
    }


def _ernie_moe(keys: GgufKeys) -> dict[str, Any]:
    routed = experts(keys)
    return {
        **routed,
        "model_type": "ernie4_5_moe",
        "moe_num_experts": routed["num_experts"],
        "moe_k": routed["num_experts_per_tok"],
        "moe_num_shared_experts": routed["n_shared_experts"],
        "moe_layer_start_index": routed["first_k_dense_replace"],
        "moe_layer_interval": keys.whole("interleave_moe_layer_step", default=1) or 1,
    }


def _hunyuan_moe(keys: GgufKeys) -> dict[str, Any]:
    width, shared = keys.whole("feed_forward_length"), keys.whole("expert_shared_feed_forward_length")
    if not width or shared % width:
        raise UnsupportedError("the shared expert is not a multiple of the feed-forward", value=shared)
    return {
        **experts(keys),
        "model_type": "hunyuan_v1_moe",
        "moe_topk": keys.whole("expert_used_count"),
        "num_shared_expert": shared // width,
    }


def _gpt_oss(keys: GgufKeys) -> dict[str, Any]:
    return {**experts(keys), "model_type": "gpt_oss", **windowed(keys, pattern=2)}


def _minimax_m2(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "minimax_m2",
        "intermediate_size": keys.whole("expert_feed_forward_length"),
        "rotary_dim": keys.whole("rope.dimension_count"),
    }


SPARSE: dict[str, Family] = {
    "llama4": _llama4,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _with_experts("qwen3_moe"),
    "qwen3vlmoe": _with_experts("qwen3_moe"),
    "phimoe": _phimoe,
    "dbrx": _dbrx,
    "olmoe": _with_experts("olmoe"),
    "glm4moe": _glm4_moe,
    "exaone-moe": _exaone_moe,
    "ernie4_5-moe": _ernie_moe,
    "hunyuan-moe": _hunyuan_moe,
    "gpt-oss": _gpt_oss,
    "dots1": _with_experts("dots1"),
    "minimax-m2": _minimax_m2,
}
