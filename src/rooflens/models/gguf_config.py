"""GGUF metadata as the config.json it was converted from, so that one reader per family serves both.

What every architecture has stands here, what some have in ``gguf_metadata``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from rooflens.errors import UnsupportedError
from rooflens.models.file_input import quoted
from rooflens.models.gguf_metadata.dense import DENSE
from rooflens.models.gguf_metadata.experts import SPARSE
from rooflens.models.gguf_metadata.fields import Family
from rooflens.models.gguf_metadata.gemma import GEMMA
from rooflens.models.gguf_metadata.hybrids import HYBRIDS
from rooflens.models.gguf_metadata.keys import GgufKeys

#: What makes a config.json of each architecture's keys; an architecture that is not here is refused.
ARCHITECTURES: dict[str, Family] = {**DENSE, **SPARSE, **GEMMA, **HYBRIDS}


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
    keys = GgufKeys(metadata, tensors=tensors)
    family = ARCHITECTURES.get(keys.architecture)
    if family is None:
        near = difflib.get_close_matches(keys.architecture, ARCHITECTURES, n=3)
        raise UnsupportedError(
            f"the GGUF architecture {quoted(keys.architecture)} is not covered",
            allowed=f"{len(ARCHITECTURES)} architectures" + (f", nearest: {', '.join(near)}" if near else ""),
            next="give its sizes by hand with --params and --kv-bytes-per-token",
        )
    config = _shared(keys)
    scaling = _rope_scaling(keys, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return {**config, **family(keys)}


def _shared(keys: GgufKeys) -> dict[str, Any]:
    """What nearly all architectures have, under the names that most families read."""
    config: dict[str, Any] = {
        "hidden_size": keys.whole("embedding_length"),
        "num_hidden_layers": keys.layers,
        "max_position_embeddings": keys.whole("context_length"),
        "num_nextn_predict_layers": keys.predicted,
        "vocab_size": keys.vocabulary(),
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "rope_theta": keys.number("rope.freq_base", default=10000.0),
        "torch_dtype": "bfloat16",
    }
    for key, names in (
        ("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "norm_eps")),
        ("attention.layer_norm_epsilon", ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")),
    ):
        if keys.has(key):
            config.update(dict.fromkeys(names, keys.number(key)))
    if keys.has("feed_forward_length"):
        config["intermediate_size"] = max(keys.by_layer("feed_forward_length")) or None
    return {**config, **_heads(keys, config["hidden_size"])}


def _heads(keys: GgufKeys, hidden: int) -> dict[str, Any]:
    """Heads and their sizes; layers that have none count 0 heads, and the others must agree."""
    counts = set(keys.by_layer("attention.head_count")) if keys.has("attention.head_count") else {0}
    heads = max(counts)
    if not heads:
        return {}
    kv_heads = heads
    if keys.has("attention.head_count_kv"):
        kv_heads = max(keys.by_layer("attention.head_count_kv")) or heads
    size = keys.whole("attention.key_length", default=hidden // heads)
    rotated = keys.whole("rope.dimension_count", default=size)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "partial_rotary_factor": rotated / size if size and rotated != size else None,
    }


def _rope_scaling(keys: GgufKeys, factors: Sequence[float] | None) -> dict[str, Any] | None:
    if factors is not None:
        return {
            "rope_type": "longrope",
            "short_factor": list(factors),
            "long_factor": list(factors),
            "original_max_position_embeddings": keys.whole("context_length"),
            "attention_factor": 1.0,
        }
    kind = keys.get("rope.scaling.type")
    if kind is None and keys.holds("rope_factors_long.weight"):
        kind = "longrope"
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn", "longrope"):
        raise UnsupportedError("this rotary scaling of a GGUF file is not covered", value=kind)
    scaling: dict[str, Any] = {"rope_type": kind}
    if kind != "longrope":
        scaling["factor"] = keys.number("rope.scaling.factor")
    if keys.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = keys.whole("rope.scaling.original_context_length")
    return scaling
