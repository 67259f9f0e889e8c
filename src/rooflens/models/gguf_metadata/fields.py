"""What many GGUF architectures have in common beside sizes and heads: windows, experts, kinds of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflens.errors import UnsupportedError
from rooflens.models.gguf_metadata.keys import GgufKeys

#: From an architecture's keys to the fields of a config.json that not all architectures share.
Family = Callable[[GgufKeys], dict[str, Any]]

FULL, SLIDING = "full_attention", "sliding_attention"
Q_BIAS, O_BIAS, QK_NORM = "attn_q.bias", "attn_output.bias", "attn_q_norm.weight"


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


def layer_kinds(keys: GgufKeys) -> list[str]:
    """The kinds of layers, from the pattern that these files must have."""
    slides = keys.by_layer("attention.sliding_window_pattern")
    return [SLIDING if sliding else FULL for sliding in slides]


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


def by_kind(keys: GgufKeys, key: str, kinds: list[str]) -> dict[str, int]:
    """A number that differs by the kind of layer only; raises UnsupportedError where it does not."""
    values = keys.by_layer(key)
    found: dict[str, int] = {}
    for kind, value in zip(kinds, values, strict=True):
        if found.setdefault(kind, value) != value:
            raise UnsupportedError(
                f"the GGUF key {keys.architecture}.{key} differs among layers of one kind", value=values[:8]
            )
    return found
