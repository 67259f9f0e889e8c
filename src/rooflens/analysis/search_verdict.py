"""What decides a search: which limits configurations meet, which of them kills, what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rooflens.analysis.search_blocks import MEMORY, RATE, RELAXED, TPOT, TTFT, Block, Place
from rooflens.analysis.search_result import Constraint, Goal, Nearest, Option, PoolChoice
from rooflens.analysis.search_text import Reason
from rooflens.units import format_rate, format_seconds

Array = np.ndarray[Any, Any]

_BETTER = 1.05
"""A gain worth a word."""


def choices(place: Place) -> tuple[PoolChoice, ...]:
    """The pools of a place as they are shown."""
    unit, prefill = place.unit, place.prefill
    own = PoolChoice("decode" if prefill else "serve", unit.candidate.device.id, place.count, unit.layout)
    if prefill is None:
        return (own,)
    other = PoolChoice("prefill", prefill.candidate.device.id, place.prefill_count, prefill.layout)
    return (other, own)


def explained(options: Sequence[Option], goal: Goal) -> Iterator[Option]:
    """Why each is not better: what it costs over the first and gives for it, the limit it is nearest to, and
    (last, from where it was found) what fewer devices would do."""
    if not options:
        return
    first = options[0]
    for option in options:
        said = [Reason("cheapest")] if option is first else [*_against(option, first)]
        shares = _shares(option, goal)
        name = max(shares, key=lambda key: shares[key])
        said.append(Reason("near", {"limit": name, "share": _percent(shares[name])}))
        yield replace(option, reasons=(*said, *option.reasons))


def _against(option: Option, first: Option) -> Iterator[Reason]:
    if option.price_per_hour is not None and first.price_per_hour:
        ratio = option.price_per_hour / first.price_per_hour
        yield Reason("price.same") if ratio < 1.005 else Reason("price", {"ratio": f"{ratio:.2f}"})
    elif option.devices == first.devices:
        yield Reason("devices.same")
    else:
        yield Reason("devices", {"devices": str(option.devices), "first": str(first.devices)})
    gains = {
        "token": first.tpot_s / option.tpot_s,
        "first": first.ttft_s / option.ttft_s,
        "carries": option.max_rate_per_s / first.max_rate_per_s,
    }
    better = [Reason(key, {"ratio": f"{gain:.2f}"}) for key, gain in gains.items() if gain > _BETTER]
    yield from better or [Reason("dominated")]


def _shares(option: Option, goal: Goal) -> dict[str, float]:
    """How much of each limit an option uses."""
    shares = {RATE: goal.rate_per_s / option.max_rate_per_s}
    if goal.tpot_s is not None:
        shares[TPOT] = option.tpot_s / goal.tpot_s
    if goal.ttft_s is not None:
        shares[TTFT] = option.ttft_s / goal.ttft_s
    return shares


def with_fewer(block: Block, number: int, goal: Goal) -> Reason:
    """What would become of a place with the next smaller number of devices of the same kinds."""
    place = block.places[number]
    smaller = [
        index
        for index, one in enumerate(block.places)
        if one.devices < place.devices and one.prefill is place.prefill
    ]
    if not smaller:
        return Reason("least")
    nearest_to = max(smaller, key=lambda index: block.places[index].devices)
    less = str(place.devices - block.places[nearest_to].devices)
    worst, share = _least_miss(block, nearest_to, goal)
    if worst == MEMORY:
        return Reason("fewer.memory", {"devices": less})
    if share <= 1:
        return Reason("fewer.enough", {"devices": less})
    return Reason("fewer", {"devices": less, "limit": worst, "share": _percent(share)})


def _least_miss(block: Block, number: int, goal: Goal) -> tuple[str, float]:
    """The limit that decides at a place, and the share of it that the best configuration there uses."""
    fits = block.fits[:, number]
    if not fits.any():
        return MEMORY, 1.0
    over = {name: values[:, number] for name, values in _over(block, goal).items()}
    worst = np.where(fits, np.maximum.reduce(list(over.values())), np.inf)
    at = np.unravel_index(int(np.argmin(worst)), worst.shape)
    name = max(over, key=lambda key: over[key][at])
    return name, float(over[name][at])


def _over(block: Block, goal: Goal) -> dict[str, Array]:
    """Figure over limit of every configuration. Where more arrives than is carried, queues have no end: the
    first token then misses as much as the rate does."""
    over = {RATE: goal.rate_per_s / block.most_per_s}
    if goal.ttft_s is not None:
        over[TTFT] = np.where(over[RATE] < 1, block.ttft_s / goal.ttft_s, over[RATE])
    if goal.tpot_s is not None:
        over[TPOT] = block.tpot_s / goal.tpot_s
    return over


def nearest(blocks: Sequence[Block], goal: Goal) -> Nearest | None:
    """The configuration whose worst miss is the smallest; None where nothing fits in memory."""
    found: tuple[float, Nearest] | None = None
    for block in blocks:
        over = _over(block, goal)
        worst = np.where(block.fits, np.maximum.reduce(list(over.values())), np.inf)
        at = np.unravel_index(int(np.argmin(worst)), worst.shape)
        value = float(worst[at])
        if np.isfinite(value) and (found is None or value < found[0]):
            misses = tuple((name, float(ratio[at])) for name, ratio in over.items())
            place = block.places[int(at[1])]
            found = (value, Nearest(choices(place), place.unit.candidate.format, misses))
    return None if found is None else found[1]


def constraints(blocks: Sequence[Block], goal: Goal, larger: Sequence[Block]) -> Iterator[Constraint]:
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
                relaxed += int(block.passing(goal, relax=name).sum())
            best = _best(block, name, others, best)
        if name == MEMORY:
            relaxed = sum(int(one.passing(goal).sum()) for one in larger) if larger else None
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


def verdict(found: Sequence[Constraint], tried: int) -> Iterator[Reason]:
    """Of a search that finds nothing: which limit kills it, and what a tenth looser would do to each."""
    memory = next(one for one in found if one.name == MEMORY)
    killers = [one for one in found if one.fails_alone]
    if memory.fails == tried:
        yield Reason("kills.memory")
    elif not killers:
        yield Reason("kills.together")
    for one in sorted(killers, key=lambda one: -one.fails_alone):
        if one.name != MEMORY and one.best is not None:
            shown = _shown(one.name, one.best)
            facts = {"limit": one.name, "count": f"{one.fails_alone:,}", "best": shown}
            yield Reason("kills.alone", facts)
    for one in found:
        count = f"{one.passes_relaxed or 0:,}"
        if one.name == MEMORY:
            if memory.fails:
                yield Reason(
                    "relaxed.memory" if one.passes_relaxed else "relaxed.memory.none", {"count": count}
                )
        elif one.passes_relaxed and one.limit is not None:
            loose = one.limit / RELAXED if one.name == RATE else one.limit * RELAXED
            yield Reason("relaxed", {"limit": one.name, "loose": _shown(one.name, loose), "count": count})
        else:
            yield Reason("relaxed.none", {"limit": one.name})


def _percent(share: float) -> str:
    """Close to the limit with a digit more, so that 100.4 % does not read as met."""
    return f"{share:.1%}" if 0.9 < share < 1.1 else f"{share:.0%}"


def _shown(name: str, value: float) -> str:
    return f"{format_rate(value)}/s" if name == RATE else format_seconds(value)
