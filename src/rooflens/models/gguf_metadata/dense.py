"""Dense GGUF architectures: what each adds to the fields that all share.

Where llama.cpp keeps a number in its code instead of the file, it is stated here with the reason. Source:
the loaders of the architectures in llama.cpp, ``src/models``.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from rooflens.errors import UnsupportedError
from rooflens.models.gguf_metadata.fields import O_BIAS, Q_BIAS, QK_NORM, Family, experts, like, windowed
from rooflens.models.gguf_metadata.keys import GgufKeys


def _llama(keys: GgufKeys) -> dict[str, Any]:
    """Llama, Mistral, and Mixtral where there are experts."""
    if keys.has("expert_count") and keys.whole("expert_count"):
        return {"model_type": "mixtral", "sliding_window": None, **experts(keys)}
    return {
        "model_type": "llama",
        "attention_bias": keys.holds(Q_BIAS),
        "mlp_bias": keys.holds("ffn_gate.bias"),
    }


def _mistral3(keys: GgufKeys) -> dict[str, Any]:
    """Ministral 3 and Mistral Small 3."""
    return {"model_type": "ministral3", "sliding_window": None}


def _qwen(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "qwen", "seq_length": keys.whole("context_length")}


def phi3(keys: GgufKeys) -> dict[str, Any]:
    window = keys.whole("attention.sliding_window", default=0) or None
    original = "rope.scaling.original_context_length"
    return {
        "model_type": "phi3",
        "sliding_window": window,
        "original_max_position_embeddings": keys.whole(original) if keys.has(original) else None,
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
    heads = keys.size("attention.head_count")
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


def _exaone(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "exaone", "num_layers": keys.layers}


def _exaone4(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "exaone4", **windowed(keys, pattern=4)}


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


def _smollm3(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "smollm3", "no_rope_layer_interval": 4}


def _seed_oss(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "seed_oss",
        "attention_bias": keys.holds(Q_BIAS),
        "attention_out_bias": keys.holds(O_BIAS),
    }


DENSE: dict[str, Family] = {
    "llama": _llama,
    "mistral3": _mistral3,
    "qwen": _qwen,
    "qwen2": like("qwen2"),
    "qwen2vl": like("qwen2"),
    "qwen3": like("qwen3"),
    "qwen3vl": like("qwen3"),
    "phi2": like("phi"),
    "phi3": phi3,
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
    "olmo": _olmo,
    "olmo2": _olmo2,
    "chatglm": _chatglm,
    "glm4": _with_bias("glm4"),
    "exaone": _exaone,
    "exaone4": _exaone4,
    "granite": _granite,
    "granitemoe": _granite,
    "nemotron": _nemotron,
    "ernie4_5": like("ernie4_5"),
    "hunyuan-dense": _with_bias("hunyuan_v1_dense"),
    "smollm3": _smollm3,
    "arcee": _with_bias("arcee"),
    "seed_oss": _seed_oss,
    "apertus": _with_bias("apertus"),
    "jais2": _with_bias("jais2"),
    "bitnet": like("bitnet"),
}
