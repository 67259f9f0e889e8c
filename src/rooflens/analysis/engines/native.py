"""Rooflens's own runtime: weights, one paged pool for all layers, the step's activations, the framework."""

from __future__ import annotations

from rooflens.analysis.engines.layer_caches import (
    fixed_bytes,
    growth_bytes_per_token,
    logical_bytes,
    longest_length,
)
from rooflens.analysis.ledger import (
    FRAMEWORK_OVERHEAD_BYTES,
    FRAMEWORK_OVERHEAD_RANGE_BYTES,
    CacheGroup,
    CacheReport,
    Ledger,
    LedgerInput,
    LedgerRow,
    widest_activation,
)
from rooflens.errors import UnsupportedError
from rooflens.models.accounting import weights_bytes
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.formats.kv import kv_element_bytes
from rooflens.models.spec import Attention, ModelSpec
from rooflens.units import GIB

#: Tokens of one KV block, and the most tokens of a step: the runtime's own defaults too.
BLOCK_TOKENS = 16
DEFAULT_BATCHED_TOKENS = 2048
#: On CPUs, which reach their multiply rate by then: a longer step only keeps other answers waiting.
CPU_BATCHED_TOKENS = 512
# An int8 cache keeps one fp32 scale per token and head, for keys and for values.
INT8_SCALE_BYTES = 4
LOGIT_BYTES = 4


def token_bytes(spec: ModelSpec, *, kv_dtype: str) -> int:
    """Bytes that the runtime's cache holds per token, all layers: windowed ones keep every token too.

    Raises UnsupportedError for layers that are not plain attention, which the runtime does not run.
    """
    element = kv_element_bytes(kv_dtype)
    scale = INT8_SCALE_BYTES if kv_dtype == "int8" else 0
    total = 0.0
    for layer in spec.layers:
        for mixer in layer.mixers:
            if not isinstance(mixer, Attention):
                raise UnsupportedError(
                    f"the rooflens runtime does not run {mixer.kind.value} layers",
                    value=spec.name,
                    next="use --engine none, or the engine that will serve the model",
                )
            if mixer.kv_elements_per_token:
                total += mixer.kv_heads * ((mixer.head_dim + mixer.value_dim) * element + 2 * scale)
    return int(total)


def native_ledger(given: LedgerInput) -> Ledger:
    """The ledger of Rooflens's runtime: what utilisation leaves after weights and a step is the pool."""
    if len(given.stages) != 1 or given.layout.devices != 1:
        raise UnsupportedError(
            "the rooflens runtime uses one device", value=f"{given.layout.devices} devices"
        )
    spec = given.stages[0]
    total = given.reported_bytes or given.capacity_bytes
    utilization = 0.9 if given.memory_utilization is None else given.memory_utilization
    usable = None if total is None else int(total * utilization)
    budget = given.max_batched_tokens or DEFAULT_BATCHED_TOKENS
    tokens = max(min(budget, given.batch * given.prompt), given.batch)
    activations = int(tokens * (widest_activation(spec) + 4 * spec.hidden_size) * dtype_bytes(spec.dtype))
    activations += given.batch * spec.vocab_size * LOGIT_BYTES
    fixed_rows = (
        LedgerRow("weights", weights_bytes(spec)),
        LedgerRow(
            "activations", activations, "assumed", source=f"{tokens} tokens and {given.batch} rows of logits"
        ),
        LedgerRow(
            "overhead",
            FRAMEWORK_OVERHEAD_BYTES,
            "assumed",
            *FRAMEWORK_OVERHEAD_RANGE_BYTES,
            source="the framework",
        ),
    )
    taken = sum(row.bytes for row in fixed_rows)
    block_tokens = given.block_size or BLOCK_TOKENS
    block_bytes = block_tokens * token_bytes(spec, kv_dtype=given.kv_dtype)
    pool = (
        given.kv_pool_bytes if given.kv_pool_bytes is not None else None if usable is None else usable - taken
    )
    blocks = None if pool is None or not block_bytes else max(0, pool) // block_bytes
    length = longest_length(given)
    each, longest = (-(-n // block_tokens) for n in (max(1, given.context), length))
    report = CacheReport(
        layout=f"blocks of {block_tokens} tokens, all layers; windowed layers keep every token",
        dtype=given.kv_dtype,
        fixed_bytes=fixed_bytes(spec, kv_dtype=given.kv_dtype),
        growth_bytes_per_token=growth_bytes_per_token(spec, kv_dtype=given.kv_dtype),
        logical_bytes=logical_bytes(spec, context=given.context, kv_dtype=given.kv_dtype),
        allocated_bytes=each * block_bytes,
        minimum_bytes=longest * block_bytes,
        groups=(CacheGroup("full", len(spec.layers), 0, block_tokens, block_bytes, each),),
        blocks=blocks,
        bytes_per_block=block_bytes,
    )
    reasons: tuple[str, ...] = ()
    if pool is not None and pool < block_bytes:
        reasons = (f"no room for one block of the cache: {-min(pool, 0) / GIB:.2f} GiB are missing",)
    share = None if total is None else (taken + each * block_bytes) / total
    return Ledger(
        rows=(*fixed_rows, LedgerRow("kv_cache", given.batch * report.allocated_bytes)),
        capacity_bytes=usable,
        kv_capacity_bytes=None if pool is None else max(0, pool),
        kv_capacity_tokens=None if blocks is None else blocks * block_tokens,
        max_sequences=None if blocks is None else blocks // each,
        max_concurrency=None if blocks is None else blocks / longest,
        reasons=reasons,
        cache=report,
        longest_context=None if blocks is None else min(blocks * block_tokens, length),
        minimum_utilization=None if share is None or share > 1 else share,
    )
