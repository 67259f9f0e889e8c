"""Gemma in GGUF: windows by a pattern, Gemma 3n's and 4's shared caches and per-layer inputs.

Source: the loaders of the architectures in llama.cpp, ``src/models``.
"""

from __future__ import annotations

from typing import Any

from rooflens.models.gguf_metadata.fields import (
    FULL,
    SLIDING,
    Family,
    by_kind,
    experts,
    layer_kinds,
    windowed,
)
from rooflens.models.gguf_metadata.keys import GgufKeys

#: llama.cpp's own rule: only these sizes scale queries by hidden size over heads instead of head size.
_QUERY_BY_HIDDEN = {("gemma2", 46), ("gemma3", 62)}


def _gemma(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}


def _query_scalar(keys: GgufKeys) -> int:
    hidden, heads = keys.whole("embedding_length"), keys.size("attention.head_count")
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


def _per_layer_input(keys: GgufKeys) -> dict[str, Any]:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": keys.whole("attention.sliding_window"),
        "num_kv_shared_layers": keys.whole("attention.shared_kv_layers", default=0),
        "hidden_size_per_layer_input": keys.whole("embedding_length_per_layer_input", default=0),
        "vocab_size_per_layer_input": keys.rows("per_layer_token_embd.weight") or keys.vocabulary(),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", default=10000.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", default=0.0) or None,
    }


def _gemma3n(keys: GgufKeys) -> dict[str, Any]:
    rank = next((int(keys.tensors[f"blk.{i}.laurel_l.weight"][0]) for i, held in
                 enumerate(keys.layers_with("laurel_l.weight")) if held), 64)  # fmt: skip
    return {
        **_per_layer_input(keys),
        "model_type": "gemma3n_text",
        "intermediate_size": keys.by_layer("feed_forward_length"),
        "layer_types": layer_kinds(keys),
        # Older files do not say how many layers have a cache of their own: 20, in llama.cpp's code.
        "num_kv_shared_layers": keys.whole("attention.shared_kv_layers", default=max(0, keys.layers - 20)),
        "altup_num_inputs": keys.whole("altup.num_inputs"),
        "laurel_rank": rank,
        "final_logit_softcapping": keys.number("final_logit_softcapping", default=30.0),
    }


def _gemma4(keys: GgufKeys) -> dict[str, Any]:
    kinds = layer_kinds(keys)
    kv_heads = by_kind(keys, "attention.head_count_kv", kinds)
    values, shared = keys.layers_with("attn_v.weight"), keys.whole("attention.shared_kv_layers", default=0)
    own = list(zip(kinds, values, strict=True))[: len(kinds) - shared]
    key_is_value = bool(keys.tensors) and any(kind == FULL and not held for kind, held in own)
    wide = keys.by_layer("feed_forward_length")
    sparse = keys.whole("expert_count", default=0) > 0
    return {
        **(experts(keys) if sparse else {}),
        **_per_layer_input(keys),
        "model_type": "gemma4_text",
        "layer_types": kinds,
        "num_key_value_heads": kv_heads.get(SLIDING) or kv_heads.get(FULL),
        "num_global_key_value_heads": kv_heads.get(FULL),
        "head_dim": keys.whole("attention.key_length_swa"),
        "global_head_dim": keys.whole("attention.key_length"),
        "partial_rotary_factor": None,
        "attention_k_eq_v": key_is_value,
        "enable_moe_block": sparse,
        "intermediate_size": wide[0],
        "use_double_wide_mlp": wide[-1] == 2 * wide[0],
    }


GEMMA: dict[str, Family] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma-embedding": _gemma3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
}
