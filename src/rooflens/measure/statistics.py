"""Medians, spreads and convergence: one definition of each, and the thresholds by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

GROUP_BATCHES = 4
"""Batches whose median is one step of the convergence test."""
CONVERGED_GROUPS = 3
"""Consecutive group medians that must agree."""
CONVERGED_WITHIN = 0.01
"""How closely they must agree: largest over smallest, less one."""
NOISY_SPREAD = 0.10
"""A figure whose (p90 - p10) / median is above this was disturbed."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What repeated samples of one quantity say; all in the unit of the samples."""

    count: int
    median: float
    p10: float
    p90: float

    @property
    def spread(self) -> float:
        """(p90 - p10) / median: 0 for samples that are all equal."""
        return (self.p90 - self.p10) / self.median


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, interpolated between neighbours.

    Hyndman and Fan's definition 7, numpy's default: rank share x (n - 1). Raises ValueError for no values
    or a share outside 0 to 1.
    """
    if not values:
        raise ValueError("percentile of no values")
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in 0 to 1, got {share}")
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return percentile(values, 0.5)


def summarize(values: Sequence[float]) -> Summary:
    """Median and p10 to p90 of at least one positive value; ValueError otherwise."""
    if any(not math.isfinite(value) or value <= 0 for value in values):
        raise ValueError("samples must be positive and finite")
    return Summary(len(values), median(values), percentile(values, 0.1), percentile(values, 0.9))


def converged(samples: Sequence[float]) -> bool:
    """Whether the last three groups of batches have medians within 1 % of one another.

    Groups do not overlap: running medians over shared samples would agree by construction.
    """
    needed = GROUP_BATCHES * CONVERGED_GROUPS
    if len(samples) < needed:
        return False
    last = samples[-needed:]
    medians = [median(last[start : start + GROUP_BATCHES]) for start in range(0, needed, GROUP_BATCHES)]
    return max(medians) / min(medians) - 1 <= CONVERGED_WITHIN
