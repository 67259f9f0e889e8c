"""Whether a case can run at all: asked of the ledger before anything starts."""

from __future__ import annotations

import torch

from rooflens.analysis.engines.native import BLOCK_TOKENS, native_ledger
from rooflens.analysis.ledger import LedgerInput
from rooflens.analysis.parallelism import Layout
from rooflens.bench.cases import Case
from rooflens.measure.environment import available_memory_bytes
from rooflens.runtime.backend import NativeBackend
from rooflens.units import format_bytes

#: Share of the memory that the ledger may fill: the rest is for what nobody foresees.
UTILIZATION = 0.9


def capacity_bytes(backend: NativeBackend) -> int | None:
    """Memory for weights, cache and everything else: what is free, and what the loaded model holds."""
    held = backend.report.held_bytes + backend.cache.total_bytes
    if backend.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(backend.device)
        return int(free) + held
    free_bytes = available_memory_bytes()
    return None if free_bytes is None else free_bytes + held


def blocks_of(case: Case) -> int:
    """KV blocks that the case's running sequences can fill, and one for what is copied."""
    return case.batch * -(-(case.prompt + case.output) // BLOCK_TOKENS) + 1


def why_not(backend: NativeBackend, case: Case, *, capacity: int | None) -> str | None:
    """Why the case would not fit, with both numbers; None where it does."""
    longest = case.prompt + case.output
    if longest > backend.context:
        return f"{longest:,} tokens exceed the context of {backend.context:,}"
    ledger = native_ledger(
        LedgerInput(
            spec=backend.spec,
            stages=(backend.spec,),
            layout=Layout(),
            batch=case.batch,
            prompt=case.prompt,
            context=longest,
            kv_dtype=backend.kv_dtype,
            capacity_bytes=capacity,
            memory_utilization=UTILIZATION,
        )
    )
    if ledger.reasons:
        return "; ".join(ledger.reasons)
    if ledger.max_sequences is None or ledger.kv_capacity_bytes is None or ledger.cache is None:
        return None
    if case.batch <= ledger.max_sequences:
        return None
    needed = case.batch * ledger.cache.allocated_bytes
    return (
        f"{case.batch:,} sequences of {longest:,} tokens need {format_bytes(needed)} of KV cache,"
        f" {format_bytes(ledger.kv_capacity_bytes)} are left: {int(ledger.max_sequences):,} fit"
    )
