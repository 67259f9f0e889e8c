"""Search: which devices, layouts, formats and limits meet the asked latencies and rate, the cheapest first.

Every instance (device, layout, weight format, cache type) is priced once over a grid of concurrencies;
numbers of instances, sequence limits and step budgets, and all pairs of a prefill and a decode pool, are
then whole arrays, so a million configurations cost a few hundred vectorised steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflens.analysis.goodput import Latencies, Wait, goodput
from rooflens.analysis.launch import Launch
from rooflens.analysis.prices import Price
from rooflens.analysis.search_blocks import RELAXED, Block, apart, together
from rooflens.analysis.search_result import Goal, Option, SearchResult
from rooflens.analysis.search_units import BUDGETS, GRID, Candidate, Unit, units
from rooflens.analysis.search_verdict import choices, constraints, explained, nearest, verdict, with_fewer
from rooflens.analysis.serving import (
    first_tokens_s,
    met_by_arrivals,
    place_wait_of,
    prompt_wait_of,
    tpot_std_s,
)
from rooflens.analysis.workload import Workload
from rooflens.errors import InputError
from rooflens.hardware.device import Device

_AS_GOOD = 1.02
_ALIKE = 6  # options of the same devices that are shown though others beat them
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
SPLITTING = ("vllm", "sglang")
"""Engines that can run prefills and decodes in pools of their own."""


def search(
    candidates: Sequence[Candidate],
    goal: Goal,
    *,
    base: Workload,
    model: str,
    kv_dtypes: Sequence[str | None] = (None,),
    prices: Mapping[str, Price] | None = None,
    split: bool = True,
    longest: int = 30,
    notes: Sequence[str] = (),
) -> SearchResult:
    """Price every configuration of the candidates under ``base``'s engine and settings.

    ``kv_dtypes`` None is the model's own; ``prices`` are by device id. ``split`` also tries pools of their
    own for prefills and decodes, of different devices too. Raises InputError where none can be priced.
    """
    refused: Counter[str] = Counter()
    blocks = _blocks(candidates, goal, base, kv_dtypes, refused, split)
    if not blocks:
        reasons = "; ".join(why for why, _ in refused.most_common(3))
        raise InputError("no configuration can be priced", value=model, next=reasons or "give more devices")
    priced = dict(prices or {})
    found = [option for block in blocks for option in _found(block, goal, base, model, priced)]
    kept = _kept(_with_pareto(sorted(_undominated(found), key=_cost)), longest)
    options = [_finished(one, goal) for one in kept]
    tried = sum(block.fits.size for block in blocks)
    larger: list[Block] = []
    if not options:
        # Only now is it worth asking what a tenth more memory would do.
        roomy = [replace(one, device=_with_memory(one.device, RELAXED)) for one in candidates]
        larger = _blocks(roomy, goal, base, kv_dtypes, Counter(), split)
    limits = tuple(constraints(blocks, goal, larger))
    return SearchResult(
        model=model,
        engine=base.engine,
        goal=goal,
        tried=tried,
        feasible=sum(int(block.passing(goal).sum()) for block in blocks),
        options=tuple(explained(options, goal)),
        constraints=limits,
        nearest=None if options else nearest(blocks, goal),
        verdict=() if options else tuple(verdict(limits, tried)),
        refused=tuple(refused.most_common()),
        prices=tuple(sorted(priced.items())),
        notes=tuple(notes),
    )


def _blocks(
    candidates: Sequence[Candidate],
    goal: Goal,
    base: Workload,
    kv_dtypes: Sequence[str | None],
    refused: Counter[str],
    split: bool,
) -> list[Block]:
    """Instances that do both, then pools of their own for prefills and decodes of one format."""
    found = list(units(candidates, goal, base, kv_dtypes, refused))
    blocks = [together(unit, goal) for unit in found]
    if not split or base.engine not in SPLITTING:
        return blocks
    alike: dict[tuple[str, str], list[Unit]] = defaultdict(list)
    for unit in found:
        if unit.layout.pp == 1:
            alike[unit.candidate.format, unit.kv_dtype].append(unit)
    for members in alike.values():
        made = (apart(unit, members, goal, base.network) for unit in members)
        blocks += [block for block in made if block is not None]
    return blocks


@dataclass(frozen=True)
class _Found:
    """An option and where in its block it is: (budget, place, limit)."""

    option: Option
    block: Block
    at: tuple[int, int, int]


def _cost(found: _Found) -> tuple[float, float, float, float]:
    """Price where it is known, then devices, power and how slow it is."""
    option = found.option
    price = option.price_per_hour
    return (np.inf if price is None else price, option.devices, option.watts or np.inf, option.tpot_s)


def _found(
    block: Block, goal: Goal, base: Workload, model: str, prices: Mapping[str, Price]
) -> Iterator[_Found]:
    """The best limits and budget for each place: the least of the larger share of a limit."""
    good = block.passing(goal)
    strain = np.maximum(
        block.tpot_s / (goal.tpot_s or np.median(block.tpot_s)),
        block.ttft_s / (goal.ttft_s or np.median(block.ttft_s)),
    )
    for number in np.flatnonzero(good.any(axis=(0, 2))).tolist():
        chosen = np.where(good[:, number, :], strain[:, number, :], np.inf)
        # Of those that are as good, the one with the most room for more requests.
        level = chosen <= _AS_GOOD * chosen.min()
        roomiest = np.where(level, block.most_per_s[:, number, :], -np.inf)
        budget, limit = np.unravel_index(int(np.argmax(roomiest)), roomiest.shape)
        at = (int(budget), number, int(limit))
        yield _Found(_option(block, at, goal, base, model, prices), block, at)


def _option(
    block: Block,
    at: tuple[int, int, int],
    goal: Goal,
    base: Workload,
    model: str,
    prices: Mapping[str, Price],
) -> Option:
    place = block.places[at[1]]
    unit = place.unit
    pools = choices(place)
    devices = [one.candidate.device for one in (place.prefill, unit) if one is not None]
    costs = [prices.get(device.id) for device in devices]
    watts = [device.tdp_w for device in devices]
    sizes = [pool.devices for pool in pools]
    launches = tuple(
        Launch(
            engine=base.engine,
            model=model,
            weights=unit.candidate.weights,
            kv_dtype=None if unit.own_cache else unit.kv_dtype,
            layout=pool.layout,
            replicas=pool.instances,
            max_model_len=base.max_model_len or goal.requests.full_context,
            max_sequences=int(block.limits[at]),
            budget=int(block.budgets[at[0]]),
            devices_per_node=base.network.devices_per_node,
            role=pool.role,
            device=pool.device,
            visible=_VISIBLE.get((device.vendor or "").lower()),
        )
        for pool, device in zip(pools, devices, strict=True)
    )
    return Option(
        pools=pools,
        weights=unit.candidate.format,
        kv_dtype=unit.kv_dtype,
        max_sequences=int(block.limits[at]),
        budget=int(block.budgets[at[0]]),
        ttft_s=float(block.ttft_s[at]),
        tpot_s=float(block.tpot_s[at]),
        max_rate_per_s=float(block.most_per_s[at]),
        running=float(block.running[at]),
        price_per_hour=None
        if None in costs
        else sum(cost.per_hour * size for cost, size in zip(costs, sizes, strict=True) if cost),
        watts=None
        if None in watts
        else sum((one or 0) * size for one, size in zip(watts, sizes, strict=True)),
        transfer_s=place.transfer_s if place.prefill else None,
        launches=launches,
    )


def _finished(found: _Found, goal: Goal) -> Option:
    """With what only those that are shown need: the goodput, and what fewer devices would do."""
    fewer = with_fewer(found.block, found.at[1], goal)
    spread = _latencies(found, goal)
    good = goodput(spread, goal.rate_per_s, ttft_s=goal.ttft_s, tpot_s=goal.tpot_s)
    return replace(found.option, reasons=(fewer,), goodput=good)


def _latencies(found: _Found, goal: Goal) -> Latencies:
    """How the latencies of an option spread over requests."""
    option, block, requests = found.option, found.block, goal.requests
    place = block.places[found.at[1]]
    unit, source = place.unit, place.prefill or place.unit
    running = option.running / (place.count * unit.ranks)
    rate = goal.rate_per_s / (place.count * unit.ranks)
    limit = int(found.block.limits[found.at])
    beside = met_by_arrivals(running, limit)
    step_s, more_s = np.interp([beside, beside + 1], GRID, unit.decode_s)
    column = len(BUDGETS) - 1 if place.prefill else found.at[0]
    prompts_s = [float(value) for value in source.prompts_s[:, column]]
    alone_s = sum(prompts_s) / len(prompts_s)
    shared_s = unit.shared * alone_s if place.prefill is None else 0.0
    if place.prefill is None:
        wait = prompt_wait_of(rate, shared_s, prompts_s, step_s=float(step_s))
        before_s = unit.request_s
    else:
        servers = place.prefill_count * place.prefill.ranks
        wait = prompt_wait_of(goal.rate_per_s, alone_s, prompts_s, servers=servers)
        before_s = place.prefill.request_s + place.transfer_s
    places: Wait = place_wait_of(running, limit, option.tpot_s, requests)
    return Latencies(
        prompts_s=first_tokens_s(before_s, prompts_s, float(step_s)),
        prompt_wait=wait,
        place_wait=places,
        tpot_s=option.tpot_s,
        tpot_std_s=tpot_std_s(
            requests,
            running=running,
            tpot_s=option.tpot_s,
            slope_s=float(more_s - step_s),
            shared_s=shared_s,
            arrivals=True,
        ),
    )


def _undominated(found: Sequence[_Found]) -> list[_Found]:
    """Of one set of devices in one format, those that no other one beats in every figure."""
    alike: dict[tuple[object, ...], list[_Found]] = defaultdict(list)
    for one in found:
        alike[_owned(one.option), one.option.weights, one.option.kv_dtype].append(one)
    return [one for members in alike.values() for one in _best_of(members)]


def _best_of(members: Sequence[_Found]) -> list[_Found]:
    figures = np.array([(m.option.ttft_s, m.option.tpot_s, -m.option.max_rate_per_s) for m in members])
    order = np.argsort(figures.sum(axis=1), kind="stable")
    kept: list[int] = []
    for index in order.tolist():
        if not kept or not (figures[kept] <= figures[index]).all(axis=1).any():
            kept.append(index)
    return [members[index] for index in kept]


def _with_pareto(found: Sequence[_Found]) -> list[_Found]:
    """Marks those that no other beats in cost, time per token and rate at once (by a fiftieth or less is a
    tie). ``found`` is by cost."""
    front: list[Option] = []
    marked = []
    for one in found:  # whatever beats it costs no more, so it came before
        option = one.option
        beaten = any(
            other.tpot_s <= _AS_GOOD * option.tpot_s
            and other.max_rate_per_s >= option.max_rate_per_s / _AS_GOOD
            for other in front
        )
        if not beaten:
            front.append(option)
        marked.append(replace(one, option=replace(option, pareto=not beaten)))
    return marked


def _kept(found: Sequence[_Found], longest: int) -> list[_Found]:
    """The cheapest, and what is worth its higher price; of the same devices only a few that are not."""
    shown: Counter[tuple[tuple[str, int], ...]] = Counter()
    kept: list[_Found] = []
    for one in found:
        owned = _owned(one.option)
        if not one.option.pareto and (shown[owned] >= _ALIKE or len(kept) >= longest):
            continue
        shown[owned] += 1
        kept.append(one)
    return kept[: 2 * longest]


def _owned(option: Option) -> tuple[tuple[str, int], ...]:
    """How many of which device."""
    owned: Counter[str] = Counter()
    for pool in option.pools:
        owned[pool.device] += pool.devices
    return tuple(sorted(owned.items()))


def _with_memory(device: Device, factor: float) -> Device:
    """The device with more memory."""
    reported = device.reported_memory_bytes
    return replace(
        device,
        memory_bytes=None if device.memory_bytes is None else round(device.memory_bytes * factor),
        reported_memory_bytes=None if reported is None else round(reported * factor),
    )
