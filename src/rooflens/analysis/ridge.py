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

    def lead(batch: float) -> float:
        """Compute time less weight-reading time."""
        ops = step_ops(spec, decode_step(sequences=batch, context=0), kv_dtype=kv_dtype)
        compute_s = weights_bytes = 0.0
        for op in ops:
            if op.name.endswith((".core", "embedding")):
                continue
            moved = op.cost.weight_bytes if op.expected_weight_bytes is None else op.expected_weight_bytes
            compute_s += op.cost.flops / roof.peaks_flops_per_s[op.compute_dtype] * op.count
            weights_bytes += moved * op.count
        return compute_s - weights_bytes / roof.bandwidth_bytes_per_s

    low, high = 0.0, 1.0
    sparse = any(
        op.expected_weight_bytes is not None
        for op in step_ops(spec, decode_step(sequences=1, context=0), kv_dtype=kv_dtype)
    )
    at_one = lead(1.0)
    if not sparse:
        # Compute grows in proportion to the batch and the weights do not: one division finds it.
        weights_s = -(lead(0.5) * 2 - at_one)
        slope = at_one + weights_s
        return weights_s / slope if slope > 0 else None
    while lead(high) < 0:
        low, high = high, high * 2
        if high > LARGEST_BATCH:
            return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if lead(middle) >= 0 else (middle, high)
    return high
