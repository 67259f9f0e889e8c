"""What each layer of a rank keeps: bytes per token, the window it may forget behind, the state it updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from rooflens.analysis.ledger import LedgerInput
from rooflens.errors import UnsupportedError
from rooflens.models.accounting import kv_growth_elements, kv_sequence_bytes, state_sequence_bytes
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.formats.kv import kv_element_bytes
from rooflens.models.spec import (
    CompressedAttention,
    LatentAttention,
    Mixer,
    MixerKind,
    ModelSpec,
    Recurrent,
)

# The indexer of DeepSeek-V3.2 caches fp8 keys with one fp32 scale per 128 of them, whatever the cache type.
INDEXER_SCALE_GROUP = 128
INDEXER_SCALE_BYTES = 4


@dataclass(frozen=True)
class LayerCache:
    """One layer's cache on one rank: ``token_bytes`` per token kept, ``state_bytes`` per sequence.

    ``kind``: full, mla, sliding or chunked (``window`` tokens), cross (``window`` encoder tokens), state.
    """

    kind: str
    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0


def indexer_bytes(key_dim: int) -> int:
    """Bytes of one cached indexer key with its scales; 0 without an indexer."""
    return key_dim + ceil(key_dim / INDEXER_SCALE_GROUP) * INDEXER_SCALE_BYTES if key_dim else 0


def mixer_cache(mixer: Mixer, spec: ModelSpec, *, kv_dtype: str) -> LayerCache | None:
    """The cache of one mixer, None where it keeps nothing.

    Raises UnsupportedError for compressed attention (DeepSeek-V4), whose engines' layout is their own.
    """
    element = kv_element_bytes(kv_dtype)
    if isinstance(mixer, Recurrent):
        state = mixer.state_elements * dtype_bytes(mixer.state_dtype)
        return LayerCache("state", state_bytes=ceil(state + mixer.conv_elements * dtype_bytes(spec.dtype)))
    if isinstance(mixer, CompressedAttention):
        raise UnsupportedError(
            "the engine's layout of compressed attention is not covered",
            value=spec.model_type,
            next="use --engine none for the bytes that the model itself needs",
        )
    if isinstance(mixer, LatentAttention):
        key = indexer_bytes(mixer.indexer_key_dim) if mixer.indexer_cached else 0
        return LayerCache("mla", ceil(mixer.latent_dim * element) + key)
    elements = mixer.kv_elements_per_token - mixer.indexer_key_dim
    if elements <= 0:
        return None
    token_bytes = ceil(elements * element) + indexer_bytes(mixer.indexer_key_dim)
    if mixer.kind is MixerKind.CROSS:
        return LayerCache("cross", token_bytes, mixer.cross_tokens)
    return LayerCache(mixer.kind.value, token_bytes, mixer.window)


def layer_caches(spec: ModelSpec, *, kv_dtype: str) -> Iterator[LayerCache]:
    """The caches of a rank's layers, in order; a layer with two mixers may have two."""
    for layer in spec.layers:
        for mixer in layer.mixers:
            cache = mixer_cache(mixer, spec, kv_dtype=kv_dtype)
            if cache is not None:
                yield cache


def per_head_latent(mixer: LatentAttention, *, kv_dtype: str, head_dim: int | None = None) -> LayerCache:
    """The cache of latent attention in engines that kept keys and values per head instead.

    ``head_dim`` is what both are padded to; None keeps keys of nope + rope and values of v features.
    """
    keys = mixer.nope_dim + mixer.rope_dim if head_dim is None else head_dim
    values = mixer.v_head_dim if head_dim is None else head_dim
    return LayerCache("full", ceil(mixer.heads * (keys + values) * kv_element_bytes(kv_dtype)))


def growth_bytes_per_token(spec: ModelSpec, *, kv_dtype: str) -> float:
    """Bytes that one more token adds at long context, by the model alone."""
    if spec.free_form is not None:
        return spec.free_form.kv_bytes_per_token
    return kv_growth_elements(spec) * kv_element_bytes(kv_dtype)


def logical_bytes(spec: ModelSpec, *, context: int, kv_dtype: str) -> int:
    """Bytes one sequence needs at ``context`` tokens, by the model alone: cache and state."""
    return int(kv_sequence_bytes(spec, context=context, kv_dtype=kv_dtype)) + state_sequence_bytes(spec)


def fixed_bytes(spec: ModelSpec, *, kv_dtype: str) -> int:
    """Bytes one long sequence needs besides growth: full windows, encoder tokens and state."""
    if spec.free_form is not None:
        return 0
    windows = [mixer.window or 0 for layer in spec.layers for mixer in layer.mixers]
    far = max((1, *windows)) * 2
    # Compressed entries grow in steps of their ratio: a multiple of all ratios leaves no remainder.
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, CompressedAttention) and mixer.ratio:
                far *= mixer.ratio if far % mixer.ratio else 1
    growth = growth_bytes_per_token(spec, kv_dtype=kv_dtype)
    return round(logical_bytes(spec, context=far, kv_dtype=kv_dtype) - growth * far)


def longest_length(given: LedgerInput) -> int:
    """max_model_len: as asked, else the model's own, else the asked context."""
    return given.max_model_len or given.spec.max_context or max(given.context, 1)
