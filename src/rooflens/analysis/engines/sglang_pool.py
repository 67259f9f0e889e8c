"""SGLang's sizes: the default static fraction, and how a pool of bytes becomes tokens and state slots.

Source: SGLang 0.5.10, server_args and the memory-pool configuration; constants are the engine's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from rooflens.analysis.engines.layer_caches import LayerCache
from rooflens.analysis.ledger import LedgerInput
from rooflens.models.spec import LatentAttention
from rooflens.units import GIB, MIB

VERSION = "0.5.10"
# Tokens of the windows' pool for each token of the full one; state memory for each byte of the full pool.
WINDOW_TOKENS_RATIO = 0.8
STATE_MEMORY_RATIO = 0.9
# State slots that a running request takes with prefix caching: three, and two to write into by turns.
STATE_SLOTS_PER_REQUEST = 5
WINDOW_KINDS = ("sliding", "chunked")
FRACTION_STEPS = 10_000
TOWER_SHARE = 0.95


@dataclass(frozen=True)
class Tier:
    """Defaults for devices of less than ``below_bytes``: prefill chunk, largest decode graph."""

    below_bytes: float
    chunk_tokens: int
    graph_batch: int
    wide_graph_batch: int  # with tp of 4 and more


TIERS = (
    Tier(20 * GIB, 2048, 8, 8),
    Tier(35 * GIB, 2048, 24, 80),
    Tier(60 * GIB, 4096, 32, 160),
    Tier(160 * GIB, 8192, 256, 512),
    Tier(inf, 16384, 512, 512),
)
LARGE_DEVICE_BYTES = 60 * GIB
LARGE_DEVICE_RESERVE_BYTES = 10 * GIB
# What the default fraction keeps free: metadata, activations per chunk token, graphs per batch row, and
# buffers per rank; prefill graphs per token count, or a lump for latent attention.
METADATA_BYTES = 512 * MIB
CHUNK_TOKEN_BYTES = 3 * MIB // 2
GRAPH_ROW_BYTES = 2 * MIB
RANK_BYTES = GIB // 8
PREFILL_GRAPH_BYTES = 8 * MIB
LATENT_GRAPH_BYTES = 3 * GIB // 2
_PREFILL_GRAPH_TOKENS = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))
_PREFILL_GRAPH_STEP = 512


def prefill_graphs(limit: int) -> int:
    """How many token counts up to ``limit`` have a prefill graph of their own."""
    counts = sum(len(range(a, min(b, limit) + 1, step)) for a, b, step in _PREFILL_GRAPH_TOKENS)
    last = _PREFILL_GRAPH_TOKENS[-1][1]
    return counts + max(0, (limit - last) // _PREFILL_GRAPH_STEP)


def reserved_bytes(given: LedgerInput, *, total_bytes: int) -> float:
    """Memory that the default fraction leaves for everything but weights and cache."""
    tier = next(tier for tier in TIERS if total_bytes < tier.below_bytes)
    chunk = given.max_batched_tokens or tier.chunk_tokens
    rows = tier.wide_graph_batch if given.layout.tp >= 4 else tier.graph_batch
    latent = any(isinstance(m, LatentAttention) for layer in given.spec.layers for m in layer.mixers)
    reserved = METADATA_BYTES + max(chunk, 2048) * CHUNK_TOKEN_BYTES + rows * GRAPH_ROW_BYTES
    reserved += given.layout.tp * given.layout.pp * RANK_BYTES
    reserved += LATENT_GRAPH_BYTES if latent else prefill_graphs(chunk) * PREFILL_GRAPH_BYTES
    return max(reserved, LARGE_DEVICE_RESERVE_BYTES) if total_bytes > LARGE_DEVICE_BYTES else reserved


def default_fraction(given: LedgerInput, *, total_bytes: int) -> float:
    """The default mem_fraction_static; a vision tower of usual size takes a further twentieth."""
    fraction = round(1 - reserved_bytes(given, total_bytes=total_bytes) / total_bytes, 3)
    towers = any(component.kind == "vision" for component in given.spec.components)
    return round(fraction * TOWER_SHARE, 3) if towers else fraction


@dataclass(frozen=True)
class Pools:
    """Tokens of the full pool and of the windows' pool, and state slots; None where there is none."""

    tokens: int
    window_tokens: int | None
    state_slots: int | None


def split_pool(caches: tuple[LayerCache, ...], pool_bytes: int) -> Pools:
    """Divide the pool as the engine does: state by a ratio of bytes, windows by a ratio of tokens."""
    state = sum(cache.state_bytes for cache in caches)
    full = sum(cache.token_bytes for cache in caches if cache.kind not in WINDOW_KINDS)
    windows = sum(cache.token_bytes for cache in caches if cache.kind in WINDOW_KINDS)
    slots = None
    if state:
        slots = int(pool_bytes * STATE_MEMORY_RATIO / (1 + STATE_MEMORY_RATIO)) // state
        pool_bytes -= slots * state
    if windows and full:
        tokens = int(pool_bytes / (full + WINDOW_TOKENS_RATIO * windows))
        return Pools(tokens, int(tokens * WINDOW_TOKENS_RATIO), slots)
    per_token = full + windows
    return Pools(pool_bytes // per_token if per_token else 0, None, slots)


def running_limit(tokens: int, *, context: int, slots: int | None, asked: int | None) -> int:
    """max_running_requests: as asked, else 512 x pool over context between 2048 and 4096; state caps both."""
    limit = asked or min(max(int(tokens / context * 512), 2048), 4096)
    return limit if slots is None else min(limit, slots // STATE_SLOTS_PER_REQUEST)


def minimum_fraction(*, weights_bytes: float, cache_bytes: float, free_bytes: float) -> float | None:
    """The smallest mem_fraction_static that holds weights and this much cache; None above 1.

    ``free_bytes`` is what is free before loading: 125.65 GiB of weights in 137.90 free need 0.9112.
    """
    share = (weights_bytes + cache_bytes) / free_bytes
    return ceil(share * FRACTION_STEPS) / FRACTION_STEPS if share <= 1 else None
