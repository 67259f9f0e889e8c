"""SGLang: a static fraction of the free memory for weights and cache; the rest is for everything else.

``mem_fraction_static`` covers weights and the token pool only. Activations, CUDA graphs and buffers live
in what it leaves, so a fraction can be too small for the weights and too large for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.analysis.engines.layer_caches import (
    LayerCache,
    fixed_bytes,
    growth_bytes_per_token,
    layer_caches,
    logical_bytes,
    longest_length,
)
from rooflens.analysis.engines.sglang_pool import (
    VERSION,
    Pools,
    default_fraction,
    minimum_fraction,
    running_limit,
    split_pool,
)
from rooflens.analysis.ledger import CacheGroup, CacheReport, Ledger, LedgerInput, LedgerRow
from rooflens.errors import UnsupportedError
from rooflens.models.accounting import weights_bytes
from rooflens.models.spec import CompressedAttention, ModelSpec
from rooflens.units import GIB

# Gone before the weights are loaded: the CUDA context; NCCL and its buffers where there are many ranks.
CONTEXT_BYTES = (GIB // 3, GIB // 2, GIB)
CONTEXT_WIDE_BYTES = (GIB, 5 * GIB // 2, 3 * GIB)


def sglang_ledger(given: LedgerInput) -> Ledger:
    """The ledger of SGLang; ``capacity_bytes`` is the static part, ``outside`` what must fit beside it.

    Raises UnsupportedError for a model known by four numbers only.
    """
    if given.spec.free_form is not None:
        raise UnsupportedError(
            "SGLang's rules need the model's layers", value=given.spec.name, next="use --engine none"
        )
    stages = [_Stage(given, stage) for stage in given.stages]
    return max(stages, key=lambda stage: stage.weights).ledger()


@dataclass(frozen=True)
class _Stage:
    """One device of a pipeline stage."""

    given: LedgerInput
    spec: ModelSpec

    @property
    def weights(self) -> int:
        return weights_bytes(self.spec)

    @property
    def asked(self) -> int:
        return max(1, self.given.context)

    @property
    def caches(self) -> tuple[LayerCache, ...] | None:
        """The layers' caches; None for compressed attention, whose layout is the engine's own."""
        if any(isinstance(m, CompressedAttention) for layer in self.spec.layers for m in layer.mixers):
            return None
        return tuple(layer_caches(self.spec, kv_dtype=self.given.kv_dtype))

    def sequence_bytes(self, tokens: int) -> int:
        """What one sequence occupies: every token in full layers, the window's in others, one state."""
        caches = self.caches
        if caches is None:
            return logical_bytes(self.spec, context=tokens, kv_dtype=self.given.kv_dtype)
        return sum(
            cache.token_bytes * min(tokens, cache.window or tokens) + cache.state_bytes for cache in caches
        )

    def report(self) -> CacheReport:
        kv, caches = self.given.kv_dtype, self.caches
        counts: dict[LayerCache, int] = {}
        for cache in caches or ():
            counts[cache] = counts.get(cache, 0) + 1
        groups = tuple(
            CacheGroup(
                kind=cache.kind,
                layers=count,
                padding=0,
                block_tokens=1,
                page_bytes=cache.token_bytes or cache.state_bytes,
                blocks=1 if cache.kind == "state" else min(self.asked, cache.window or self.asked),
                tokens_kept=cache.window,
            )
            for cache, count in counts.items()
        )
        layout = f"SGLang {VERSION}: one slot a token, windows in a pool of their own"
        if caches is None:
            layout = "the model's own bytes: SGLang's layout of compressed attention is not covered"
        return CacheReport(
            layout=layout,
            dtype=kv,
            fixed_bytes=fixed_bytes(self.spec, kv_dtype=kv),
            growth_bytes_per_token=growth_bytes_per_token(self.spec, kv_dtype=kv),
            logical_bytes=logical_bytes(self.spec, context=self.asked, kv_dtype=kv),
            allocated_bytes=self.sequence_bytes(self.asked),
            minimum_bytes=self.sequence_bytes(longest_length(self.given)),
            groups=groups,
        )

    def ledger(self) -> Ledger:
        given, weights, report = self.given, self.weights, self.report()
        rows = (LedgerRow("weights", weights), LedgerRow("kv_cache", given.batch * report.allocated_bytes))
        total = given.reported_bytes or given.capacity_bytes
        if total is None:
            return Ledger(rows, None, None, None, None, None, cache=report)
        wide = given.layout.tp * given.layout.pp > 2
        low, mid, high = CONTEXT_WIDE_BYTES if wide else CONTEXT_BYTES
        free = total - mid
        fraction = given.memory_utilization or default_fraction(given, total_bytes=total)
        static = int(free * fraction)
        pool = static - weights if given.kv_pool_bytes is None else given.kv_pool_bytes
        length, caches = longest_length(given), self.caches
        pools: Pools | None = None
        sequences = limit = None
        if caches:
            pools = split_pool(caches, max(0, pool))
            limit = running_limit(
                pools.tokens, context=length, slots=pools.state_slots, asked=given.max_sequences
            )
            sequences = min(pools.tokens // self.asked, limit)
        tokens = None if pools is None else pools.tokens
        return Ledger(
            rows=rows,
            capacity_bytes=static,
            kv_capacity_bytes=max(0, pool),
            kv_capacity_tokens=tokens,
            max_sequences=sequences,
            max_concurrency=max(0, pool) / report.minimum_bytes if tokens is None else tokens / length,
            notes=_notes(fraction, free, static, tokens, length, limit),
            reasons=_reasons(fraction, free, weights, pool, report),
            outside=(
                LedgerRow("context", mid, "assumed", low, high, "free memory in public SGLang logs"),
                LedgerRow("activations", free - static, source="what mem_fraction_static leaves"),
            ),
            cache=report,
            longest_context=None if tokens is None else min(tokens, given.spec.max_context or tokens),
            minimum_utilization=minimum_fraction(
                weights_bytes=weights, cache_bytes=report.allocated_bytes, free_bytes=free
            ),
        )


def _reasons(fraction: float, free: int, weights: int, pool: int, report: CacheReport) -> tuple[str, ...]:
    if pool > 0 or not report.allocated_bytes:
        return ()
    smallest = minimum_fraction(weights_bytes=weights, cache_bytes=0, free_bytes=free)
    return (
        f"Not enough memory: weights of {weights / GIB:.2f} GiB leave no room for the cache under "
        f"mem_fraction_static={fraction:g} of {free / GIB:.2f} GiB free: "
        + (f"the smallest fraction is {smallest:.4f}" if smallest else "no fraction is enough"),
    )


def _notes(
    fraction: float, free: int, static: int, tokens: int | None, length: int, limit: int | None
) -> tuple[str, ...]:
    said = [
        f"mem_fraction_static {fraction:g} of {free / GIB:.2f} GiB free is for weights and cache; "
        f"activations and graphs must fit in the other {(free - static) / GIB:.2f} GiB"
    ]
    if tokens is not None:
        said.append(
            f"max_total_num_tokens {tokens} is shared by all requests, {tokens / length:.2f} of {length} "
            f"tokens each; max_running_requests {limit} caps their number, however short they are"
        )
    return tuple(said)
