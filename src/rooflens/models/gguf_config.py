"""GGUF metadata as the config.json it was converted from, so that one reader per family serves both.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Where llama.cpp keeps a number in its code
instead of the file (Gemma 3's pattern of windows, for one), it is stated here with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from rooflens.errors import InputError, UnsupportedError

#: The model_type of each architecture read here. Mixtral is "llama" with experts.
ARCHITECTURES: dict[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}

#: Gemma 2: every other layer has the window; Gemma 3: five of six. Neither is in the file.
_WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6}
#: llama.cpp's own rule: only these sizes scale queries by hidden size over heads instead of head size.
_QUERY_BY_HIDDEN = {("gemma2", 46), ("gemma3", 62)}


def spec_from_gguf_metadata(
    metadata: Mapping[str, Any],
    *,
    tensors: Mapping[str, Sequence[int]] | None = None,
    rope_factors: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The fields of a config.json for the model of this GGUF header; `read_spec` makes the ModelSpec.

    ``tensors``: shapes by name, from which tied heads, biases and the vocabulary are told.
    ``rope_factors``: the values of the tensor ``rope_freqs.weight`` where the file has one (Llama 3.1 and
    later keep their rotary scaling there: each frequency is divided by its factor).
    Raises UnsupportedError for an architecture that is not covered, InputError for a missing key.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise InputError("the GGUF file names no general.architecture", value=architecture)
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"the GGUF architecture '{architecture}' is not covered", allowed=", ".join(ARCHITECTURES)
        )
    keys = _Keys(metadata, architecture)
    shapes = tensors or {}
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    config: dict[str, Any] = {
        "model_type": ARCHITECTURES[architecture],
        "hidden_size": hidden,
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", default=heads),
        "head_dim": keys.whole("attention.key_length", default=hidden // heads),
        "intermediate_size": keys.whole("feed_forward_length"),
        "max_position_embeddings": keys.whole("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", default=10000.0),
        "vocab_size": _vocabulary(keys, shapes),
        "tie_word_embeddings": "output.weight" not in shapes,
        "torch_dtype": "bfloat16",
    }
    scaling = _rope_scaling(keys, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    if "blk.0.attn_q.bias" in shapes and architecture in ("llama", "qwen3"):
        config["attention_bias"] = True
    if architecture.startswith("gemma"):
        _add_gemma(config, keys, architecture)
    if keys.has("expert_count"):
        _add_experts(config, keys, architecture)
    return config


class _Keys:
    """The architecture's own keys, checked."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    def has(self, key: str) -> bool:
        return self.metadata.get(f"{self.architecture}.{key}") is not None

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, tuple) and value and len(set(value)) == 1:
            value = value[0]  # one entry per layer, all equal
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._unusable(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise self._unusable(key, value)
        return float(value)

    def _unusable(self, key: str, value: Any) -> InputError:
        return InputError(
            f"the GGUF key {self.architecture}.{key} is {'missing' if value is None else 'not usable'}",
            value=value,
        )


def _vocabulary(keys: _Keys, shapes: Mapping[str, Sequence[int]]) -> int:
    if "token_embd.weight" in shapes:
        return int(shapes["token_embd.weight"][0])
    if keys.has("vocab_size"):
        return keys.whole("vocab_size")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        raise InputError("the GGUF file has neither a token table nor a vocabulary")
    return len(tokens)


def _rope_scaling(keys: _Keys, factors: Sequence[float] | None) -> dict[str, Any] | None:
    if factors is not None:
        return {
            "rope_type": "longrope",
            "short_factor": list(factors),
            "long_factor": list(factors),
            "original_max_position_embeddings": keys.whole("context_length"),
            "attention_factor": 1.0,
        }
    kind = keys.get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedError("this rotary scaling of a GGUF file is not covered", value=kind)
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if keys.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = keys.whole("rope.scaling.original_context_length")
    return scaling


def _add_gemma(config: dict[str, Any], keys: _Keys, architecture: str) -> None:
    config["hidden_activation"] = "gelu_pytorch_tanh"
    if architecture == "gemma":
        return
    config["sliding_window"] = keys.whole("attention.sliding_window")
    pattern, layers = _WINDOW_PATTERN[architecture], config["num_hidden_layers"]
    config["layer_types"] = [
        "full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(layers)
    ]
    by_hidden = (architecture, layers) in _QUERY_BY_HIDDEN
    head_size = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = head_size if by_hidden else config["head_dim"]
    if architecture == "gemma2":
        config["attn_logit_softcapping"] = keys.number("attn_logit_softcapping", default=50.0)
        config["final_logit_softcapping"] = keys.number("final_logit_softcapping", default=30.0)
    else:
        config["rope_local_base_freq"] = keys.number("rope.local.freq_base", default=10000.0)


def _add_experts(config: dict[str, Any], keys: _Keys, architecture: str) -> None:
    experts, used = keys.whole("expert_count"), keys.whole("expert_used_count")
    config["num_experts_per_tok"] = used
    if architecture == "llama":
        config["model_type"] = "mixtral"
        config["num_local_experts"] = experts
        return
    config["num_experts"] = experts
    config["moe_intermediate_size"] = keys.whole("expert_feed_forward_length")
    if keys.has("expert_shared_feed_forward_length"):
        config["shared_expert_intermediate_size"] = keys.whole("expert_shared_feed_forward_length")
