"""Search: which devices, layouts, formats and limits meet the asked latencies and rate, the cheapest first.

Every combination of device, tensor parallel degree, weight format and cache type is priced once over a
grid of concurrencies; replicas, sequence limits and step budgets are then whole arrays, so a million
configurations cost a few hundred vectorised steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rooflens.analysis.calibration import calibration
from rooflens.analysis.engines import rules_for
from rooflens.analysis.estimate import setting_for
from rooflens.analysis.launch import Launch, command_line
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.plan import ledger_input
from rooflens.analysis.search_result import Goal, Option, SearchResult
from rooflens.analysis.search_verdict import RELAXED, Block, Candidate, constraints, explained, nearest
from rooflens.analysis.serving import Replica, arrival_wait_s, rate_of, token_s
from rooflens.analysis.step import decode_step, step_ops
from rooflens.analysis.workload import Workload, device_rates
from rooflens.errors import InputError, RooflensError
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec

Array = np.ndarray[Any, Any]

BUDGETS = (2048, 4096, 8192, 16384)
TENSOR = (1, 2, 4, 8)
LIMITS = np.unique(np.round(np.geomspace(1, 1024, 96)).astype(int))
_AS_GOOD = 1.02
GRID = np.unique(np.round(np.geomspace(1, 1024, 48)).astype(int)).astype(float)


def search(
    candidates: Sequence[Candidate],
    goal: Goal,
    *,
    base: Workload,
    model: str,
    kv_dtypes: Sequence[str | None] = (None,),
    prices: Mapping[str, float] | None = None,
    price_source: str | None = None,
    longest: int = 30,
) -> SearchResult:
    """Price every configuration of the candidates under ``base``'s engine and settings.

    ``kv_dtypes`` None is the model's own; ``prices`` are per hour and device id. Raises InputError where no
    candidate can be priced at all.
    """
    refused: Counter[str] = Counter()
    blocks = list(_blocks(candidates, goal, base, kv_dtypes, refused))
    if not blocks:
        reasons = "; ".join(why for why, _ in refused.most_common(3))
        raise InputError("no configuration can be priced", value=model, next=reasons or "give more devices")
    priced = dict(prices or {})
    options = [option for block in blocks for option in _options(block, goal, base, model, priced)]
    options.sort(key=_cost)
    kept = _kept(_with_pareto(options), longest)
    tried = sum(block.fits.size for block in blocks)
    larger: list[Block] = []
    if not options:
        # Only now is it worth asking what a tenth more memory would do.
        roomy = [replace(one, device=_with_memory(one.device, RELAXED)) for one in candidates]
        larger = list(_blocks(roomy, goal, base, kv_dtypes, Counter()))
    feasible = sum(int(np.logical_and.reduce(list(block.passes(goal).values())).sum()) for block in blocks)
    return SearchResult(
        model=model,
        engine=base.engine,
        goal=goal,
        tried=tried,
        feasible=feasible,
        options=tuple(explained(kept, goal)),
        constraints=tuple(constraints(blocks, goal, larger)),
        nearest=None if options else nearest(blocks, goal),
        refused=tuple(refused.most_common()),
        prices=tuple(sorted(priced.items())),
        price_source=price_source,
    )


def _cost(option: Option) -> tuple[float, float, float, float]:
    """Price where it is known, then devices, power and how slow it is."""
    price = option.price_per_hour
    return (np.inf if price is None else price, option.devices, option.watts or np.inf, option.tpot_s)


def _blocks(
    candidates: Sequence[Candidate],
    goal: Goal,
    base: Workload,
    kv_dtypes: Sequence[str | None],
    refused: Counter[str],
) -> Iterator[Block]:
    for candidate in candidates:
        for tp in TENSOR:
            if tp > goal.max_devices:
                break
            for kv_dtype in kv_dtypes:
                try:
                    yield _block(candidate, goal, base, tp, kv_dtype)
                except RooflensError as error:
                    refused[error.what] += 1


def _block(candidate: Candidate, goal: Goal, base: Workload, tp: int, kv_dtype: str | None) -> Block:
    spec, device, requests = candidate.spec, candidate.device, goal.requests
    work = replace(base, layout=Layout(tp=tp))
    if kv_dtype is not None:
        work = replace(work, kv_dtype=kv_dtype, kv_dtype_auto=False)
    probe = step_ops(spec, decode_step(sequences=1, context=1), kv_dtype=work.kv_dtype)
    roof = device_rates(spec, device, probe, strict=False, engine=work.engine).roof
    setting = setting_for(spec, device, work.engine)
    one = Replica(spec, work.layout, roof, setting, work.kv_dtype)
    budgets = np.array(BUDGETS, dtype=float)
    prefill_s = np.broadcast_to(one.prefill_s(requests, budgets), budgets.shape)
    decode_s = np.broadcast_to(one.decode_s(GRID, requests), GRID.shape)
    held = np.array([_held(spec, device, replace(work, max_batched_tokens=budget)) for budget in BUDGETS])
    replicas = np.arange(1, goal.max_devices // tp + 1)
    # Axes: step budget, replicas, sequence limit.
    by_memory = (held // requests.mean_context)[:, None, None]
    limits = np.minimum(LIMITS[None, None, :], np.maximum(by_memory, 0))
    fits = (limits >= 1) & (held[:, None, None] >= requests.prompt + requests.output)
    limits = np.maximum(limits, 1)
    rate = goal.rate_per_s / replicas[None, :, None]
    shape = np.broadcast_shapes(limits.shape, rate.shape)
    shared_s = (calibration().table["general"]["mix"] * prefill_s)[:, None, None]
    carried = rate_of(
        GRID[None, :], decode_s=decode_s[None, :], prefill_s=prefill_s[:, None], output=requests.output
    )
    running = np.empty(shape)
    most = np.empty(shape)
    for index in range(len(BUDGETS)):
        curve = np.maximum.accumulate(carried[index])
        running[index] = np.interp(rate[0], np.concatenate([[0.0], curve]), np.concatenate([[0.0], GRID]))
        most[index] = np.interp(limits[index], GRID, curve)
    running = np.minimum(running, limits)
    step_s = np.interp(np.maximum(running, 1), GRID, decode_s)
    tpot_s = token_s(running=running, decode_s=step_s, shared_s=shared_s, output=requests.output)
    wait_s = arrival_wait_s(
        rate=rate, running=running, limit=limits, shared_s=shared_s, tpot_s=tpot_s, requests=requests
    )
    return Block(
        candidate=candidate,
        tp=tp,
        kv_dtype=work.kv_dtype,
        own_cache=kv_dtype is None,
        budgets=np.array(BUDGETS),
        replicas=replicas,
        limits=np.broadcast_to(LIMITS[None, None, :], shape),
        ttft_s=setting.engine.request_s + prefill_s[:, None, None] + step_s / 2 + wait_s,
        tpot_s=tpot_s,
        most_per_s=most * replicas[None, :, None],
        running=running * replicas[None, :, None],
        fits=np.broadcast_to(fits, shape),
    )


def _held(spec: ModelSpec, device: Device, work: Workload) -> int:
    """Tokens of cache that one replica holds; 0 where it does not start."""
    ledger = rules_for(work.engine)(ledger_input(spec, device, work))
    if ledger.kv_capacity_tokens is None or ledger.reasons:
        return 0
    return ledger.kv_capacity_tokens


def _options(
    block: Block, goal: Goal, base: Workload, model: str, prices: Mapping[str, float]
) -> Iterator[Option]:
    """The best limits and budget for each number of replicas: the least of the larger share of a limit."""
    good = np.logical_and.reduce(list(block.passes(goal).values()))
    strain = np.maximum(
        block.tpot_s / (goal.tpot_s or np.median(block.tpot_s)),
        block.ttft_s / (goal.ttft_s or np.median(block.ttft_s)),
    )
    device = block.candidate.device
    for place, count in enumerate(block.replicas.tolist()):
        allowed = good[:, place, :]
        if not allowed.any():
            continue
        chosen = np.where(allowed, strain[:, place, :], np.inf)
        # Of those that are as good, the one with the most room for more requests.
        level = chosen <= _AS_GOOD * chosen.min()
        roomiest = np.where(level, block.most_per_s[:, place, :], -np.inf)
        budget, limit = np.unravel_index(int(np.argmax(roomiest)), roomiest.shape)
        at = (budget, place, limit)
        devices = block.tp * count
        price = prices.get(device.id)
        launch = Launch(
            engine=base.engine,
            model=model,
            weights=block.candidate.weights,
            kv_dtype=None if block.own_cache else block.kv_dtype,
            tp=block.tp,
            pp=1,
            dp=count,
            max_model_len=base.max_model_len or goal.requests.prompt + goal.requests.output,
            max_sequences=int(block.limits[at]),
            budget=int(block.budgets[budget]),
        )
        yield Option(
            device=device.id,
            weights=block.candidate.weights
            or block.candidate.spec.quantization
            or block.candidate.spec.dtype,
            kv_dtype=block.kv_dtype,
            tp=block.tp,
            replicas=count,
            max_sequences=launch.max_sequences,
            budget=launch.budget,
            ttft_s=float(block.ttft_s[at]),
            tpot_s=float(block.tpot_s[at]),
            max_rate_per_s=float(block.most_per_s[at]),
            running=float(block.running[at]),
            price_per_hour=None if price is None else price * devices,
            watts=None if device.tdp_w is None else device.tdp_w * devices,
            command=command_line(launch),
            why="",
        )


def _with_pareto(options: list[Option]) -> list[Option]:
    """Marks those that no other beats in cost, time per token and rate at once. ``options`` are by cost."""
    front: list[Option] = []
    marked = []
    for option in options:  # whatever beats it costs no more, so it came before
        beaten = any(
            one.tpot_s <= option.tpot_s and one.max_rate_per_s >= option.max_rate_per_s for one in front
        )
        if not beaten:
            front.append(option)
        marked.append(replace(option, pareto=not beaten))
    return marked


def _kept(options: list[Option], longest: int) -> list[Option]:
    """The cheapest, and what is worth its higher price."""
    return [option for place, option in enumerate(options) if place < longest or option.pareto][: 2 * longest]


def _with_memory(device: Device, factor: float) -> Device:
    """The device with more memory."""
    reported = device.reported_memory_bytes
    return replace(
        device,
        memory_bytes=None if device.memory_bytes is None else round(device.memory_bytes * factor),
        reported_memory_bytes=None if reported is None else round(reported * factor),
    )
