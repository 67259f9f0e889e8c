"""What is measured, and what each case must at least read and compute: the plan's own operators."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.protocol import Case
from rooflens.analysis.step import Step, decode_step, prefill_step, step_ops
from rooflens.models.spec import ModelSpec

#: In an order in which each prompt leaves behind what the decode after it needs.
CASES = (
    Case("prefill", 512),
    Case("decode", 64),
    Case("prefill", 2048, every=2),
    Case("decode", 2000),
    Case("decode", 64, batch=4, every=2),
    Case("decode", 64, batch=8, every=2),
    Case("decode", 64, batch=32, tokens=8, every=3),
)
QUICK_CASES = (Case("prefill", 512), Case("decode", 64))
#: The end of the names of operators that multiply the cache.
ATTENTION_CORE = ".attention.core"
LARGEST_BATCH = max(case.batch for case in CASES)


@dataclass(frozen=True)
class Need:
    """What one run of a case costs at least: bytes to read (weights once, the cache once) and FLOPs.

    ``attention_flops`` are those of ``flops`` that multiply the cache, whatever the weights are.
    """

    read_bytes: float
    flops: float
    attention_flops: float


def need(spec: ModelSpec, case: Case, *, kv_dtype: str) -> Need:
    """The need of one decode step, midway through the sample, or of the whole prompt."""
    ops = step_ops(spec, _step(case), kv_dtype=kv_dtype)
    return Need(
        read_bytes=float(sum(op.total.weight_bytes + op.total.kv_read_bytes for op in ops)),
        flops=float(sum(op.total.flops for op in ops)),
        attention_flops=float(sum(op.total.flops for op in ops if op.name.endswith(ATTENTION_CORE))),
    )


def tokens_per_s(case: Case, seconds: float) -> float:
    """Tokens per second of all sequences: made by a step, or read of a prompt."""
    return (case.context if case.kind == "prefill" else case.batch) / seconds


def _step(case: Case) -> Step:
    if case.kind == "prefill":
        return prefill_step(sequences=1, prompt=case.context)
    return decode_step(sequences=case.batch, context=case.context + case.tokens // 2)
