"""vLLM: utilisation x what the device reports, less weights, the profiled peak and what torch does not see;
all that is left becomes blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rooflens.analysis.engines.block_groups import BlockLayout, plan_blocks
from rooflens.analysis.engines.compressed_groups import is_compressed, plan_compressed
from rooflens.analysis.engines.layer_caches import fixed_bytes, growth_bytes_per_token, logical_bytes
from rooflens.analysis.engines.vllm_settings import (
    PADDED_LATENT_HEAD,
    Settings,
    StageMemory,
    measured_row,
    resolve_settings,
    stage_caches,
    stage_memory,
)
from rooflens.analysis.engines.vllm_words import notes, reasons
from rooflens.analysis.ledger import CacheGroup, CacheReport, Ledger, LedgerInput, LedgerRow
from rooflens.errors import UnsupportedError
from rooflens.models.spec import LatentAttention

# A smallest utilisation is given to four digits, rounded up.
UTILIZATION_STEPS = 10_000


def vllm_ledger(given: LedgerInput) -> Ledger:
    """The ledger as vLLM of ``given.engine_version`` would have it, for the stage with the least room.

    ``kv_capacity_tokens`` is the printed "GPU KV cache size", ``max_concurrency`` the printed one for
    max_model_len. ``reasons`` are start-up failures in the engine's words. Raises UnsupportedError for
    cache layouts that vLLM refuses or that are not covered.
    """
    if given.spec.free_form is not None:
        raise UnsupportedError(
            "vLLM's rules need the model's layers", value=given.spec.name, next="use --engine none"
        )
    settings = resolve_settings(given)
    stages = tuple(stage_memory(given, settings, number) for number in range(len(given.stages)))
    layout: BlockLayout | None
    if is_compressed(given.spec):
        layout = plan_compressed(
            given.stages,
            rules=settings.rules,
            kv_dtype=settings.kv_dtype,
            batched_tokens=settings.batched_tokens,
        )
    else:
        layout = plan_blocks(
            tuple(stage_caches(stage, settings) for stage in given.stages),
            rules=settings.rules,
            block_tokens=given.block_size,
            batched_tokens=settings.batched_tokens,
            state_blocks=settings.state_blocks,
        )
    return _Sizing(given, settings, stages, layout).ledger()


@dataclass(frozen=True)
class _Sizing:
    """The pool on every stage, and the answers that follow from it."""

    given: LedgerInput
    settings: Settings
    stages: tuple[StageMemory, ...]
    layout: BlockLayout | None

    def taken(self, number: int) -> int:
        """Bytes that the engine takes off before the cache."""
        return sum(row.bytes for row in self.stages[number].budgeted(self.settings.rules))

    def pool(self, number: int) -> int | None:
        """Bytes left for the cache; below zero where there is no room at all."""
        if self.given.kv_pool_bytes is not None:
            return self.given.kv_pool_bytes
        requested = self.settings.requested_bytes
        return None if requested is None else requested - self.taken(number)

    def blocks(self, number: int) -> int | None:
        """Blocks that the pool of a stage holds; every stage then keeps the fewest of all."""
        pool = self.pool(number)
        if self.layout is None or pool is None:
            return None
        return max(0, pool // self.layout.stage_block_bytes[number])

    def tightest(self) -> int:
        """The stage that holds the fewest blocks; without a known capacity, the heaviest one."""
        numbers = range(len(self.stages))
        if self.layout is None or self.pool(0) is None:
            return max(numbers, key=self.taken)
        return min(numbers, key=lambda number: (self.blocks(number) or 0, self.pool(number) or 0))

    def ledger(self) -> Ledger:
        """Rows of the tightest stage, the pool in tokens, and every reason not to start."""
        number = self.tightest()
        stage, settings, layout = self.stages[number], self.settings, self.layout
        report = self.report(number)
        rows = [*stage.budgeted(settings.rules)]
        outside = [measured_row("context", settings.context)]
        if stage.graphs is not None and stage.graphs not in rows:
            outside.append(stage.graphs)
        if layout is not None:
            rows.append(LedgerRow("kv_cache", self.given.batch * report.allocated_bytes))
        pool, blocks = self.pool(number), self.blocks(number)
        tokens = concurrency = sequences = None
        if blocks is not None and layout is not None:
            concurrency = blocks / layout.blocks(settings.max_model_len)
            tokens = self.printed_tokens(layout, blocks, concurrency)
            sequences = min(blocks // layout.blocks(self.asked), settings.sequences)
        longest = self.longest()
        return Ledger(
            rows=tuple(rows),
            capacity_bytes=settings.requested_bytes,
            kv_capacity_bytes=None if pool is None else max(0, pool),
            kv_capacity_tokens=tokens,
            max_sequences=sequences,
            max_concurrency=concurrency,
            notes=notes(self.given, settings, stage, report, printed_tokens=tokens),
            reasons=reasons(
                self.given, settings, stage, report, pool=pool, printed_tokens=tokens, longest=longest
            ),
            outside=tuple(outside),
            cache=report,
            longest_context=longest,
            minimum_utilization=self.minimum_utilization(number, report),
        )

    @property
    def asked(self) -> int:
        """The asked context, at least one token."""
        return max(1, self.given.context)

    def printed_tokens(self, layout: BlockLayout, blocks: int, concurrency: float) -> int:
        """The size in tokens as this version prints it."""
        settings = self.settings
        if settings.rules.prints_concurrency:
            return int(concurrency * settings.max_model_len)
        paged = [group.block_tokens for group in layout.groups if group.cache.kind != "state"]
        return blocks // len(layout.groups) * min(paged, default=settings.max_model_len)

    def report(self, number: int) -> CacheReport:
        """One sequence's cache on a stage: as the model needs it, and in blocks."""
        settings, layout, spec = self.settings, self.layout, self.stages[number].spec
        kv, asked = settings.kv_dtype, self.asked
        fixed = fixed_bytes(spec, kv_dtype=kv)
        growth = growth_bytes_per_token(spec, kv_dtype=kv)
        logical = logical_bytes(spec, context=asked, kv_dtype=kv)
        if layout is None:
            return CacheReport("no cache is kept", kv, fixed, growth, logical, 0, 0)
        block_bytes = layout.stage_block_bytes[number]
        groups = tuple(
            CacheGroup(
                kind=group.cache.kind,
                layers=group.per_stage[number],
                padding=group.padding,
                block_tokens=group.block_tokens,
                page_bytes=group.page_bytes,
                blocks=layout.group_blocks(group, asked),
                tokens_kept=group.cache.window,
            )
            for group in layout.groups
        )
        return CacheReport(
            layout=self.layout_words(layout),
            dtype=kv,
            fixed_bytes=fixed,
            growth_bytes_per_token=growth,
            logical_bytes=logical,
            allocated_bytes=layout.blocks(asked) * block_bytes,
            minimum_bytes=layout.need_bytes(settings.max_model_len, stage=number),
            groups=groups,
            blocks=self.blocks(number),
            bytes_per_block=block_bytes,
        )

    def layout_words(self, layout: BlockLayout) -> str:
        """The layout in one line, with what it assumes of latent attention."""
        rules = self.settings.rules
        sizes = sorted({group.block_tokens for group in layout.groups})
        words = f"vLLM {rules.version} ({'V1' if rules.v1 else 'V0'}): blocks of {sizes[0]}"
        words += f" to {sizes[-1]} tokens" if len(sizes) > 1 else " tokens"
        if len(layout.groups) > 1:
            words += f", {len(layout.groups)} groups"
        if any(isinstance(m, LatentAttention) for layer in self.given.spec.layers for m in layer.mixers):
            words += (
                ", one latent a token, whole on every tensor-parallel rank"
                if rules.latent_cache
                else f", latent attention kept per head, padded to {PADDED_LATENT_HEAD}"
            )
        return words

    def longest(self) -> int | None:
        """The longest sequence that fits in the pool of every stage, up to what the model takes."""
        layout = self.layout
        if layout is None or self.blocks(0) is None:
            return None
        fewest = min(self.blocks(number) or 0 for number in range(len(self.stages)))
        low, high = 0, max(self.settings.max_model_len, self.given.spec.max_context or 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if layout.blocks(middle) <= fewest else (low, middle - 1)
        return low

    def minimum_utilization(self, number: int, report: CacheReport) -> float | None:
        """The smallest share of the device with which one request of max_model_len fits; None above 1."""
        total = self.settings.total_bytes
        if total is None:
            return None
        share = (self.taken(number) + report.minimum_bytes) / total
        return ceil(share * UTILIZATION_STEPS) / UTILIZATION_STEPS if share <= 1 else None
