"""All configurations of an instance as whole arrays: alone, or prefills and decodes in pools of their own.

Axes of every array: step budget, place (how many instances of which kind), limit of sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflens.analysis.communication import Network
from rooflens.analysis.pools import transfer_of
from rooflens.analysis.search_result import Goal
from rooflens.analysis.search_units import BUDGETS, GRID, Unit
from rooflens.analysis.serving import arrival_wait_s, met_by_arrivals, queue_s, rate_of, token_s

Array = np.ndarray[Any, Any]

TTFT, TPOT, RATE, MEMORY = "ttft", "tpot", "rate", "memory"
RELAXED = 1.1
"""How much a limit is loosened to see what that would do."""
LIMITS = np.unique(np.round(np.geomspace(1, 1024, 96)).astype(int))
_FULL = 0.999
_MORE = 6


@dataclass(frozen=True)
class Place:
    """A place: ``count`` instances that decode (and prefill, where there is no pool for that)."""

    unit: Unit
    count: int
    prefill: Unit | None = None
    prefill_count: int = 0
    transfer_s: float = 0.0

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.unit.devices * self.count + (
            self.prefill.devices * self.prefill_count if self.prefill else 0
        )


@dataclass(frozen=True)
class Block:
    """Configurations of one kind of instance: arrays [budget, place, limit]."""

    places: tuple[Place, ...]
    budgets: Array
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

    def passing(self, goal: Goal, *, relax: str | None = None) -> Array:
        """Which configurations meet every limit."""
        passed: Array = np.logical_and.reduce(list(self.passes(goal, relax=relax).values()))
        return passed


def together(unit: Unit, goal: Goal) -> Block:
    """Instances that prefill and decode, 1 to as many as there are devices for."""
    requests = goal.requests
    counts = np.arange(1, goal.max_devices // unit.devices + 1)
    limits, fits = _limits(unit, goal)
    rate = goal.rate_per_s / (counts * unit.ranks)[None, :, None]
    shape = np.broadcast_shapes(limits.shape, rate.shape)
    shared_s = unit.shared * unit.prefill_s
    carried = rate_of(
        GRID[None, :], decode_s=_met_s(unit)[None, :], shared_s=shared_s[:, None], output=requests.output
    )
    running, most = np.empty(shape), np.empty(shape)
    for index in range(len(BUDGETS)):
        curve = np.maximum.accumulate(carried[index])
        running[index] = np.interp(rate[0], np.concatenate([[0.0], curve]), np.concatenate([[0.0], GRID]))
        most[index] = np.interp(limits[index], GRID, curve)
    running = np.minimum(running, limits)
    step_s = np.interp(met_by_arrivals(running, limits), GRID, unit.decode_s)
    shared_3 = shared_s[:, None, None]
    tpot_s = token_s(
        running=running, decode_s=step_s, shared_s=shared_3, output=requests.output, arrivals=True
    )
    wait_s = arrival_wait_s(
        rate=rate,
        running=running,
        limit=limits,
        shared_s=shared_3,
        tpot_s=tpot_s,
        step_s=step_s,
        requests=requests,
    )
    all_ranks = (counts * unit.ranks)[None, :, None]
    return Block(
        places=tuple(Place(unit, int(count)) for count in counts),
        budgets=np.array(BUDGETS),
        limits=np.broadcast_to(LIMITS[None, None, :], shape),
        ttft_s=unit.request_s + unit.prefill_s[:, None, None] + step_s / 2 + wait_s,
        tpot_s=tpot_s,
        most_per_s=most * all_ranks,
        running=running * all_ranks,
        fits=np.broadcast_to(fits, shape),
    )


def apart(unit: Unit, prefills: Sequence[Unit], goal: Goal, network: Network) -> Block | None:
    """Decodes on instances of ``unit``, prefills on a pool of any of ``prefills``; None where none has room.

    The decode pool has no prompts between its steps; a prompt's cache is sent from one pool to the other, and
    the first token reaches the client after the next decode step.
    """
    requests = goal.requests
    places = tuple(_places(unit, prefills, goal, network))
    if not places:
        return None
    last = len(BUDGETS) - 1
    one = np.array([place.count * unit.ranks for place in places], dtype=float)[None, :, None]
    servers = np.array([p.prefill_count * p.prefill.ranks for p in places if p.prefill], dtype=float)
    alone_s = np.array([p.prefill.prefill_s[last] for p in places if p.prefill], dtype=float)
    before_s = np.array([p.prefill.request_s + p.transfer_s for p in places if p.prefill], dtype=float)
    room = np.array([p.prefill.held_tokens[last] for p in places if p.prefill]) >= requests.full_context
    limits, fits = (part[last:] for part in _limits(unit, goal))
    rate = goal.rate_per_s / one
    curve = np.maximum.accumulate(rate_of(GRID, decode_s=_met_s(unit), shared_s=0.0, output=requests.output))
    running = np.interp(rate, np.concatenate([[0.0], curve]), np.concatenate([[0.0], GRID]))
    running = np.minimum(running, limits)
    step_s = np.interp(met_by_arrivals(running, limits), GRID, unit.decode_s)
    decodes_most = np.interp(limits, GRID, curve) * one
    wait_s = queue_s(
        busy=np.minimum(goal.rate_per_s * alone_s / servers, _FULL),
        service_s=alone_s,
        servers=servers,
        variation=(1 + requests.prompt_cv**2) / 2,
    )
    places_s = queue_s(
        busy=np.minimum(running / limits, _FULL),
        service_s=requests.output * step_s,
        servers=limits,
        variation=(1 + requests.output_cv**2) / 2,
    )
    shape = np.broadcast_shapes(limits.shape, running.shape)
    return Block(
        places=places,
        budgets=np.array(BUDGETS[last:]),
        limits=np.broadcast_to(LIMITS[None, None, :], shape),
        ttft_s=(before_s + wait_s + alone_s)[None, :, None] + step_s / 2 + places_s,
        tpot_s=np.broadcast_to(step_s, shape),
        most_per_s=np.minimum(decodes_most, (servers / alone_s)[None, :, None]),
        running=np.broadcast_to(running * one, shape),
        fits=np.broadcast_to(fits & room[None, :, None], shape),
    )


def _met_s(unit: Unit) -> Array:
    """Steps as arriving requests meet them: with one sequence more than run in the mean."""
    met: Array = np.interp(GRID + 1, GRID, unit.decode_s)
    return met


def _limits(unit: Unit, goal: Goal) -> tuple[Array, Array]:
    """Sequences at once of a rank by memory and by limit, and whether that is any: [budget, 1, limit]."""
    requests, held = goal.requests, unit.held_tokens
    by_memory = (held // requests.mean_context)[:, None, None]
    limits = np.minimum(LIMITS[None, None, :], np.maximum(by_memory, 0))
    fits = (limits >= 1) & (held[:, None, None] >= requests.full_context)
    return np.maximum(limits, 1), fits


def _counts(least: float, most: int) -> list[int]:
    """Sizes of a pool that are worth trying: from a little under what the rate needs to a few times that.

    Fewer cannot carry it even with the rate a tenth lower, many more are idle. At least one, the nearest.
    """
    if most < 1:
        return []
    first = max(1, min(most, int(least / RELAXED)))
    last = min(most, max(first + _MORE, int(3 * least)))
    if last - first < 2 * _MORE:
        return list(range(first, last + 1))
    return sorted({round(value) for value in np.linspace(first, last, 2 * _MORE)})


def _places(unit: Unit, prefills: Sequence[Unit], goal: Goal, network: Network) -> Iterator[Place]:
    """Pairs of pools with devices enough between them."""
    requests, last = goal.requests, len(BUDGETS) - 1
    curve = rate_of(GRID, decode_s=_met_s(unit), shared_s=0.0, output=requests.output)
    decodes = goal.rate_per_s / (float(np.max(curve)) * unit.ranks)
    for prefill in prefills:
        needed = goal.rate_per_s * float(prefill.prefill_s[last]) / prefill.ranks
        for count in _counts(decodes, (goal.max_devices - prefill.devices) // unit.devices):
            left = goal.max_devices - count * unit.devices
            for others in _counts(needed, left // prefill.devices):
                sent = transfer_of(
                    prefill.prompt_cache_bytes,
                    prefill.candidate.device,
                    unit.candidate.device,
                    source_devices=prefill.devices,
                    target_devices=unit.devices,
                    devices=count * unit.devices + others * prefill.devices,
                    network=network,
                )
                yield Place(unit, count, prefill, others, sent.seconds)
