"""What each GGUF architecture adds to the fields that all share: dense decoders and plain experts.

Where llama.cpp keeps a number in its code instead of the file (Gemma 3's pattern of windows, for one), it is
stated here with the reason. Source: the loaders of the architectures in llama.cpp, ``src/models``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

from rooflens.errors import UnsupportedError
from rooflens.models.gguf_keys import GgufKeys

Family = Callable[[GgufKeys], dict[str, Any]]

FULL, SLIDING = "full_attention", "sliding_attention"
Q_BIAS, O_BIAS, QK_NORM = "attn_q.bias", "attn_output.bias", "attn_q_norm.weight"

#: llama.cpp's own rule: only these sizes scale queries by hidden size over heads instead of head size.
_QUERY_BY_HIDDEN = {("gemma2", 46), ("gemma3", 62)}


def like(model_type: str, **fields: Any) -> Family:
    """An architecture that the shared fields describe, and ``fields`` that are the same in every file."""
    return lambda keys: {"model_type": model_type, **fields}


def windowed(keys: GgufKeys, *, pattern: int) -> dict[str, Any]:
    """The window and its layers: from the file's pattern, else all but every ``pattern``-th layer."""
    if not keys.has("attention.sliding_window") or not keys.whole("attention.sliding_window"):
        return {"sliding_window": None}
    stated = keys.get("attention.sliding_window_pattern")
    if isinstance(stated, tuple):
        slides = [bool(value) for value in keys.by_layer("attention.sliding_window_pattern")]
    else:
        every = keys.whole("attention.sliding_window_pattern", default=pattern) or 1
        slides = [(index + 1) % every != 0 for index in range(keys.layers)]
    return {
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": [SLIDING if sliding else FULL for sliding in slides],
    }


def experts(keys: GgufKeys) -> dict[str, Any]:
    """Routed experts under the names that most families read."""
    return {
        "num_experts": keys.whole("expert_count"),
        "num_local_experts": keys.whole("expert_count"),
        "n_routed_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length")
        if keys.has("expert_feed_forward_length")
        else None,
        "first_k_dense_replace": keys.whole("leading_dense_block_count", default=0),
        "n_shared_experts": keys.whole("expert_shared_count", default=0),
    }


def _llama(keys: GgufKeys) -> dict[str, Any]:
    """Llama, Mistral, and Mixtral where there are experts."""
    if keys.has("expert_count") and keys.whole("expert_count"):
        return {"model_type": "mixtral", "sliding_window": None, **experts(keys)}
    return {
        "model_type": "llama",
        "attention_bias": keys.holds(Q_BIAS),
        "mlp_bias": keys.holds("ffn_gate.bias"),
    }


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


def _mistral3(keys: GgufKeys) -> dict[str, Any]:
    """Ministral 3 and Mistral Small 3."""
    return {"model_type": "ministral3", "sliding_window": None}


def _qwen(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "qwen", "seq_length": keys.whole("context_length")}


def _qwen2_moe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length"),
        "qkv_bias": keys.holds(Q_BIAS),
    }


def _with_experts(model_type: str, **fields: Any) -> Family:
    return lambda keys: {**experts(keys), "model_type": model_type, **fields}


def _gemma(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}


def _query_scalar(keys: GgufKeys) -> int:
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    if (keys.architecture, keys.layers) in _QUERY_BY_HIDDEN:
        return hidden // heads
    return keys.whole("attention.key_length", default=hidden // heads)


def _gemma2(keys: GgufKeys) -> dict[str, Any]:
    return {
        **_gemma(keys),
        "model_type": "gemma2",
        **windowed(keys, pattern=2),
        "query_pre_attn_scalar": _query_scalar(keys),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", default=50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", default=30.0),
    }


def _gemma3(keys: GgufKeys) -> dict[str, Any]:
    local = "rope.freq_base_swa" if keys.has("rope.freq_base_swa") else "rope.local.freq_base"
    return {
        **_gemma(keys),
        "model_type": "gemma3_text",
        **windowed(keys, pattern=6),
        "query_pre_attn_scalar": _query_scalar(keys),
        "final_logit_softcapping": keys.number("final_logit_softcapping", default=0.0) or None,
        "rope_local_base_freq": keys.number(local, default=10000.0),
        "use_bidirectional_attention": keys.architecture == "gemma-embedding",
    }


def _phi3(keys: GgufKeys) -> dict[str, Any]:
    window = keys.whole("attention.sliding_window", default=0) or None
    original = "rope.scaling.original_context_length"
    return {
        "model_type": "phi3",
        "sliding_window": window,
        "original_max_position_embeddings": keys.whole(original) if keys.has(original) else None,
    }


def _phimoe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **_phi3(keys),
        **experts(keys),
        "model_type": "phimoe",
        "attention_bias": keys.holds(Q_BIAS),
        "lm_head_bias": "output.bias" in keys.tensors,
    }


def _gpt2(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_inner": keys.whole("feed_forward_length"),
        "n_positions": keys.rows("position_embd.weight") or keys.whole("context_length"),
    }


def _starcoder(keys: GgufKeys) -> dict[str, Any]:
    return {
        **_gpt2(keys),
        "model_type": "gpt_bigcode",
        "multi_query": keys.whole("attention.head_count_kv", default=0) == 1,
    }


def _gptneox(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox",
        "use_parallel_residual": keys.flag("use_parallel_residual", default=True),
        "attention_bias": keys.holds("attn_qkv.bias"),
    }


def _falcon(keys: GgufKeys) -> dict[str, Any]:
    kv_heads = keys.whole("attention.head_count_kv", default=keys.whole("attention.head_count"))
    return {
        "model_type": "falcon",
        "new_decoder_architecture": keys.holds("attn_norm_2.weight"),
        "multi_query": kv_heads == 1,
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": keys.whole("feed_forward_length"),
    }


def _mpt(keys: GgufKeys) -> dict[str, Any]:
    hidden, wide = keys.whole("embedding_length"), keys.whole("feed_forward_length")
    if not hidden or wide % hidden:
        raise UnsupportedError("MPT's feed-forward is not a multiple of its hidden size", value=wide)
    return {
        "model_type": "mpt",
        "expansion_ratio": wide // hidden,
        "attn_config": {
            "alibi": keys.number("attention.max_alibi_bias", default=0.0) > 0,
            "clip_qkv": keys.number("attention.clamp_kqv", default=0.0) or None,
        },
    }


def _stablelm(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "stablelm",
        "use_qkv_bias": keys.holds(Q_BIAS),
        "qk_layernorm": keys.holds(QK_NORM),
        # A file says only how the code of its time was called; the second norm tells what it needs.
        "use_parallel_residual": bool(keys.tensors) and not keys.holds("ffn_norm.weight"),
    }


def _orion(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "orion", "rms_norm_eps": keys.number("attention.layer_norm_epsilon")}


def _minicpm(keys: GgufKeys) -> dict[str, Any]:
    hidden, layers = keys.whole("embedding_length"), keys.layers
    # The defaults are those of llama.cpp for files older than these keys.
    return {
        "model_type": "minicpm",
        "scale_emb": keys.number("embedding_scale", default=12.0),
        "scale_depth": keys.number("residual_scale", default=1.4 / sqrt(layers)) * sqrt(layers),
        "dim_model_base": max(1, round(keys.number("logit_scale", default=256 / max(hidden, 1)) * hidden)),
    }


def _command_r(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "cohere",
        "logit_scale": keys.number("logit_scale", default=1.0),
        "use_qk_norm": keys.holds(QK_NORM),
    }


def _cohere2(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "cohere2",
        **windowed(keys, pattern=4),
        "logit_scale": keys.number("logit_scale", default=1.0),
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


def _olmo(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "olmo", "clip_qkv": keys.number("attention.clamp_kqv", default=0.0) or None}


def _olmo2(keys: GgufKeys) -> dict[str, Any]:
    """OLMo 2, and OLMo 3 where there is a window."""
    windows = windowed(keys, pattern=4)
    return {"model_type": "olmo3" if windows["sliding_window"] else "olmo2", **windows}


def _chatglm(keys: GgufKeys) -> dict[str, Any]:
    """ChatGLM in its own form, whose q, k, v are fused, or in that of transformers."""
    if keys.holds("attn_q.weight"):
        return {"model_type": "glm", "attention_bias": keys.holds(Q_BIAS)}
    heads = keys.whole("attention.head_count")
    return {
        "model_type": "chatglm",
        "num_layers": keys.layers,
        "seq_length": keys.whole("context_length"),
        "layernorm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "kv_channels": keys.whole("attention.key_length", default=keys.whole("embedding_length") // heads),
        "multi_query_attention": True,
        "multi_query_group_num": keys.whole("attention.head_count_kv", default=heads),
        "padded_vocab_size": keys.vocabulary(),
        "add_qkv_bias": keys.holds("attn_qkv.bias"),
        "add_bias_linear": keys.holds(O_BIAS),
        "rope_ratio": keys.number("rope.freq_base", default=10000.0) / 10000.0,
    }


def _with_bias(model_type: str, **fields: Any) -> Family:
    return lambda keys: {"model_type": model_type, "attention_bias": keys.holds(Q_BIAS), **fields}


def _glm4_moe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "glm4_moe",
        "attention_bias": keys.holds(Q_BIAS),
        "use_qk_norm": keys.holds(QK_NORM),
    }


def _exaone(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "exaone", "num_layers": keys.layers}


def _exaone4(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "exaone4", **windowed(keys, pattern=4)}


def _exaone_moe(keys: GgufKeys) -> dict[str, Any]:
    shared = keys.whole("expert_shared_count", default=0)
    return {
        **experts(keys),
        "model_type": "exaone_moe",
        **windowed(keys, pattern=4),
        "num_shared_experts": shared,
    }


def granite_scales(keys: GgufKeys) -> dict[str, Any]:
    """Granite's four multipliers."""
    return {
        "attention_multiplier": keys.number("attention.scale", default=0.0) or None,
        "embedding_multiplier": keys.number("embedding_scale", default=1.0),
        "residual_multiplier": keys.number("residual_scale", default=1.0),
        "logits_scaling": keys.number("logit_scale", default=1.0) or 1.0,
    }


def _granite(keys: GgufKeys) -> dict[str, Any]:
    bias = {"attention_bias": keys.holds(Q_BIAS), "mlp_bias": keys.holds("ffn_gate.bias")}
    if not keys.whole("expert_count", default=0):
        return {"model_type": "granite", **bias, **granite_scales(keys)}
    shared = keys.whole("expert_shared_feed_forward_length", default=0)
    return {
        **experts(keys),
        **bias,
        **granite_scales(keys),
        "model_type": "granitemoeshared" if shared else "granitemoe",
        "shared_intermediate_size": shared,
    }


def _nemotron(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "nemotron",
        "norm_eps": keys.number("attention.layer_norm_epsilon"),
        "attention_bias": keys.holds(Q_BIAS),
        "mlp_bias": keys.holds("ffn_up.bias"),
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


def _smollm3(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "smollm3", "no_rope_layer_interval": 4}


def _gpt_oss(keys: GgufKeys) -> dict[str, Any]:
    return {**experts(keys), "model_type": "gpt_oss", **windowed(keys, pattern=2)}


def _seed_oss(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "seed_oss",
        "attention_bias": keys.holds(Q_BIAS),
        "attention_out_bias": keys.holds(O_BIAS),
    }


def _minimax_m2(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        "model_type": "minimax_m2",
        "intermediate_size": keys.whole("expert_feed_forward_length"),
        "rotary_dim": keys.whole("rope.dimension_count"),
    }


DENSE: dict[str, Family] = {
    "llama": _llama,
    "llama4": _llama4,
    "mistral3": _mistral3,
    "qwen": _qwen,
    "qwen2": like("qwen2"),
    "qwen2vl": like("qwen2"),
    "qwen2moe": _qwen2_moe,
    "qwen3": like("qwen3"),
    "qwen3vl": like("qwen3"),
    "qwen3moe": _with_experts("qwen3_moe"),
    "qwen3vlmoe": _with_experts("qwen3_moe"),
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma-embedding": _gemma3,
    "phi2": like("phi"),
    "phi3": _phi3,
    "phimoe": _phimoe,
    "gpt2": _gpt2,
    "starcoder": _starcoder,
    "starcoder2": like("starcoder2"),
    "gptneox": _gptneox,
    "bloom": like("bloom"),
    "falcon": _falcon,
    "mpt": _mpt,
    "baichuan": like("baichuan"),
    "stablelm": _stablelm,
    "orion": _orion,
    "internlm2": lambda keys: {"model_type": "internlm2", "bias": keys.holds(Q_BIAS)},
    "minicpm": _minicpm,
    "xverse": like("xverse"),
    "command-r": _command_r,
    "cohere2": _cohere2,
    "dbrx": _dbrx,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmoe": _with_experts("olmoe"),
    "chatglm": _chatglm,
    "glm4": _with_bias("glm4"),
    "glm4moe": _glm4_moe,
    "exaone": _exaone,
    "exaone4": _exaone4,
    "exaone-moe": _exaone_moe,
    "granite": _granite,
    "granitemoe": _granite,
    "nemotron": _nemotron,
    "ernie4_5": like("ernie4_5"),
    "ernie4_5-moe": _ernie_moe,
    "hunyuan-dense": _with_bias("hunyuan_v1_dense"),
    "hunyuan-moe": _hunyuan_moe,
    "smollm3": _smollm3,
    "gpt-oss": _gpt_oss,
    "arcee": _with_bias("arcee"),
    "seed_oss": _seed_oss,
    "apertus": _with_bias("apertus"),
    "jais2": _with_bias("jais2"),
    "dots1": _with_experts("dots1"),
    "minimax-m2": _minimax_m2,
    "bitnet": like("bitnet"),
}
