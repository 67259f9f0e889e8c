"""The batch at which decode turns compute-bound, KV reads set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooflens.analysis.numeric import Quantity
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import decode_step, step_ops
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    import numpy as np

# A batch beyond this is out of any engine's reach: the model then never turns compute-bound.
LARGEST_BATCH = 2**24

# The octave that holds the answer is cut into parts, then the part that does, and so on, to 2**-48 of it.
_PARTS, _ROUNDS = 256, 7


def ridge_batch(spec: ModelSpec, roof: Roof, *, kv_dtype: str) -> float | None:
    """Sequences per step at which reading the weights takes as long as computing with them.

    KV reads and attention are left out: they grow with the batch too and only push the point away. For
    a dense model this is ridge x bytes per weight / 2. Experts count as many as uniform routing visits,
    so for sparse models it is an estimate. None where no batch reaches it.
    """

    def times(batch: Quantity) -> tuple[Quantity, Quantity, bool]:
        """Seconds of arithmetic, seconds of reading weights, and whether there are routed experts."""
        compute_s: Quantity = 0.0
        weights_bytes: Quantity = 0.0
        sparse = False
        for op in step_ops(spec, decode_step(sequences=batch, context=0), kv_dtype=kv_dtype):
            if op.name.endswith((".core", "embedding")):
                continue
            moved = op.cost.weight_bytes
            if op.expected_weight_bytes is not None:
                sparse, moved = True, op.expected_weight_bytes
            compute_s = compute_s + op.cost.flops / roof.peaks_flops_per_s[op.compute_dtype] * op.count
            weights_bytes = weights_bytes + moved * op.count
        return compute_s, weights_bytes / roof.bandwidth_bytes_per_s, sparse

    compute_s, weights_s, sparse = times(1.0)
    if not sparse:
        # Compute grows in proportion to the batch and the weights do not: one division finds it.
        return float(weights_s / compute_s) if compute_s > 0 else None

    import numpy as np  # a dense model's plan needs none of it

    def first_enough(batches: np.ndarray) -> int | None:
        """Where, in growing batches, computing first takes as long as reading weights."""
        compute_s, weights_s, _ = times(batches)
        enough = np.flatnonzero(compute_s >= weights_s)
        return int(enough[0]) if enough.size else None

    batches = np.concatenate(([0.0], 2.0 ** np.arange(int(np.log2(LARGEST_BATCH)) + 1)))
    for _ in range(_ROUNDS):
        at = first_enough(batches[1:])
        if at is None:
            return None
        low, high = batches[at], batches[at + 1]
        batches = np.linspace(low, high, _PARTS + 1)
    return float(high)
