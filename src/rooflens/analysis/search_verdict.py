"""What decides a search: which limits configurations meet, which of them kills, what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooflens.analysis.search_result import Constraint, Goal, Nearest, Option
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec

Array = np.ndarray[Any, Any]

TTFT, TPOT, RATE, MEMORY = "ttft", "tpot", "rate", "memory"
RELAXED = 1.1
"""How much a limit is loosened to see what that would do."""


@dataclass(frozen=True)
class Candidate:
    """A model's format on a device: what one replica is made of before layouts are chosen.

    ``weights`` None is the checkpoint's own format.
    """

    spec: ModelSpec
    device: Device
    weights: str | None


@dataclass(frozen=True)
class Block:
    """All configurations of one candidate, tensor degree and cache type: arrays [budget, replicas, limit]."""

    candidate: Candidate
    tp: int
    kv_dtype: str
    own_cache: bool
    budgets: Array
    replicas: Array
    limits: Array
    ttft_s: Array
    tpot_s: Array
    most_per_s: Array
    running: Array
    fits: Array

    def passes(self, goal: Goal, *, relax: str | None = None) -> dict[str, Array]:
        """Which configurations meet each limit; ``relax`` loosens one of them."""

        def slack(name: str) -> float:
            return RELAXED if relax == name else 1.0

        always = np.ones(self.fits.shape, dtype=bool)
        return {
            MEMORY: self.fits,
            RATE: self.most_per_s > goal.rate_per_s / slack(RATE),
            TTFT: always if goal.ttft_s is None else self.ttft_s <= goal.ttft_s * slack(TTFT),
            TPOT: always if goal.tpot_s is None else self.tpot_s <= goal.tpot_s * slack(TPOT),
        }


def explained(options: list[Option], goal: Goal) -> Iterator[Option]:
    """Why each is not better: what it is closest to the limit of, and what it costs over the first."""
    if not options:
        return
    first = options[0]
    for option in options:
        shares = {
            "rate": goal.rate_per_s / option.max_rate_per_s,
            **({} if goal.tpot_s is None else {"TPOT": option.tpot_s / goal.tpot_s}),
            **({} if goal.ttft_s is None else {"TTFT": option.ttft_s / goal.ttft_s}),
        }
        name = max(shares, key=lambda key: shares[key])
        near = f"{name} is at {shares[name]:.0%} of its limit"
        if option is first:
            yield replace(option, why=f"the cheapest that meets every limit; {near}")
            continue
        if option.price_per_hour and first.price_per_hour:
            ratio = option.price_per_hour / first.price_per_hour
            more = "the price of the first" if ratio < 1.005 else f"{ratio:.2f} times the price of the first"
        else:
            more = f"{option.devices} devices where the first needs {first.devices}"
        gained = first.tpot_s / option.tpot_s
        faster = f", {gained:.2f} times as fast per token" if gained > 1.05 else ", and no faster"
        yield replace(option, why=f"{more}{faster}; {near}")


def _over(block: Block, goal: Goal) -> dict[str, Array]:
    """Figure over limit of every configuration."""
    over = {RATE: goal.rate_per_s / block.most_per_s}
    if goal.ttft_s is not None:
        over[TTFT] = block.ttft_s / goal.ttft_s
    if goal.tpot_s is not None:
        over[TPOT] = block.tpot_s / goal.tpot_s
    return over


def nearest(blocks: list[Block], goal: Goal) -> Nearest | None:
    """The configuration whose worst miss is the smallest; None where nothing fits in memory."""
    found: tuple[float, Nearest] | None = None
    for block in blocks:
        over = _over(block, goal)
        worst = np.where(block.fits, np.maximum.reduce(list(over.values())), np.inf)
        at = np.unravel_index(int(np.argmin(worst)), worst.shape)
        value = float(worst[at])
        if np.isfinite(value) and (found is None or value < found[0]):
            misses = tuple((name, float(ratio[at])) for name, ratio in over.items())
            spec = block.candidate.spec
            found = (
                value,
                Nearest(
                    device=block.candidate.device.id,
                    devices=block.tp * int(block.replicas[at[1]]),
                    weights=block.candidate.weights or spec.quantization or spec.dtype,
                    tp=block.tp,
                    over=misses,
                ),
            )
    return None if found is None else found[1]


def constraints(blocks: list[Block], goal: Goal, larger: list[Block]) -> Iterator[Constraint]:
    """``larger`` are the same configurations on devices with a tenth more memory, or none."""
    limits = {MEMORY: None, RATE: goal.rate_per_s, TTFT: goal.ttft_s, TPOT: goal.tpot_s}
    for name, limit in limits.items():
        if limit is None and name != MEMORY:
            continue
        fails = alone = 0
        relaxed: int | None = 0
        best: float | None = None
        for block in blocks:
            passes = block.passes(goal)
            others = np.logical_and.reduce([passed for key, passed in passes.items() if key != name])
            fails += int((~passes[name]).sum())
            alone += int((~passes[name] & others).sum())
            if name != MEMORY:
                assert relaxed is not None
                loose = block.passes(goal, relax=name)
                relaxed += int(np.logical_and.reduce(list(loose.values())).sum())
            best = _best(block, name, others, best)
        if name == MEMORY:
            passed = (np.logical_and.reduce(list(one.passes(goal).values())) for one in larger)
            relaxed = sum(int(one.sum()) for one in passed) if larger else None
        yield Constraint(name, limit, fails, alone, best, relaxed)


def _best(block: Block, name: str, others: Array, best: float | None) -> float | None:
    """The best figure reached by configurations that meet all other limits."""
    if name == MEMORY or not others.any():
        return best
    if name == RATE:
        reached = float(block.most_per_s[others].max())
        return reached if best is None else max(best, reached)
    values = block.ttft_s if name == TTFT else block.tpot_s
    reached = float(values[others].min())
    return reached if best is None else min(best, reached)
