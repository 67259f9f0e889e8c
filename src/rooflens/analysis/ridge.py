"""The batch at which decode turns compute-bound, KV reads set aside."""

from __future__ import annotations

from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import decode_step, step_ops
from rooflens.models.spec import ModelSpec

# A batch beyond this is out of any engine's reach: the model then never turns compute-bound.
LARGEST_BATCH = 2**24


def ridge_batch(spec: ModelSpec, roof: Roof, *, kv_dtype: str) -> float | None:
    """Sequences per step at which reading the weights takes as long as computing with them.

    KV reads and attention are left out: they grow with the batch too and only push the point away. For
    a dense model this is ridge x bytes per weight / 2. Experts count as many as uniform routing visits,
    so for sparse models it is an estimate. None where no batch reaches it.
    """

    def times(batch: float) -> tuple[float, float, bool]:
        """Seconds of arithmetic, seconds of reading weights, and whether there are routed experts."""
        compute_s = weights_bytes = 0.0
        sparse = False
        for op in step_ops(spec, decode_step(sequences=batch, context=0), kv_dtype=kv_dtype):
            if op.name.endswith((".core", "embedding")):
                continue
            moved = op.cost.weight_bytes
            if op.expected_weight_bytes is not None:
                sparse, moved = True, op.expected_weight_bytes
            compute_s += op.cost.flops / roof.peaks_flops_per_s[op.compute_dtype] * op.count
            weights_bytes += moved * op.count
        return compute_s, weights_bytes / roof.bandwidth_bytes_per_s, sparse

    compute_s, weights_s, sparse = times(1.0)
    if not sparse:
        # Compute grows in proportion to the batch and the weights do not: one division finds it.
        return weights_s / compute_s if compute_s > 0 else None

    def short(batch: float) -> bool:
        """Whether reading weights still takes longer."""
        compute_s, weights_s, _ = times(batch)
        return compute_s < weights_s

    low, high = 0.0, 1.0
    while short(high):
        low, high = high, high * 2
        if high > LARGEST_BATCH:
            return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return high
