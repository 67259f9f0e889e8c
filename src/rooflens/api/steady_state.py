"""Steady state of continuous batching, and the search over what could serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rooflens.analysis.workload import DEFAULT_OUTPUT, DEFAULT_PROMPT
from rooflens.api.sources import DeviceSource, ModelSource, read_spec_of, resolve_device
from rooflens.errors import InputError
from rooflens.hardware.device import Device

if TYPE_CHECKING:
    from rooflens.analysis.parallelism import Layout
    from rooflens.analysis.plan import Plan
    from rooflens.analysis.pools import Pools
    from rooflens.analysis.requests import Requests
    from rooflens.analysis.search_result import SearchResult
    from rooflens.analysis.serving import Replica
    from rooflens.analysis.serving_result import Serving

Lengths = str | Path | Sequence[Sequence[float]]
"""A file of request lengths, or (prompt, output) or (prompt, output, how often) of each."""


def requests_of(
    *,
    prompt: int,
    output: int,
    prompt_std: float = 0.0,
    output_std: float = 0.0,
    lengths: Lengths | None = None,
    shared_prefix: float = 0.0,
) -> Requests:
    """Requests of fixed or spread lengths, or of ``lengths`` (a file, or pairs) in their place."""
    from rooflens.analysis.requests import observed_requests, spread_requests

    if lengths is None:
        return spread_requests(
            prompt=prompt,
            output=output,
            prompt_std=prompt_std,
            output_std=output_std,
            shared_prefix=shared_prefix,
        )
    if prompt_std or output_std:
        raise InputError("lengths and a spread are both given", next="leave one of them out")
    if isinstance(lengths, (str, Path)):
        from rooflens.interop.lengths import read_lengths

        lengths = read_lengths(lengths)
    pairs = [(int(one[0]), int(one[1]), float(one[2]) if len(one) > 2 else 1.0) for one in lengths]
    return observed_requests(pairs, shared_prefix=shared_prefix)


def serving_of(
    planned: Plan,
    *,
    requests: Requests,
    rate: float | None = None,
    concurrency: int | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
) -> Serving:
    """The steady state of a plan that is there already; ``ttft`` and ``tpot`` are the limits of goodput."""
    from rooflens.analysis.communication import shares_experts
    from rooflens.analysis.serving import steady_state

    for name, value in (("ttft", ttft), ("tpot", tpot)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive", value=value)
    work = planned.workload
    layout = work.layout
    if not shares_experts(layout):
        layout = replace(layout, dp=1)
    return steady_state(
        _replica(planned, layout),
        requests,
        rate_per_s=rate,
        concurrency=concurrency,
        replicas=work.layout.dp,
        kv_capacity_tokens=planned.ledger.kv_capacity_tokens,
        max_sequences=work.max_sequences,
        budget=work.max_batched_tokens,
        limits_s=(ttft, tpot),
    )


def pools_of_plan(
    planned: Plan,
    prefill_device: Device,
    *,
    requests: Requests,
    count: int,
    tp: int | None = None,
    rate: float | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
) -> Pools:
    """A plan's devices as a pool that only decodes, beside ``count`` of another that only prefills."""
    from rooflens.analysis.parallelism import resolve_layout
    from rooflens.analysis.plan import plan_spec
    from rooflens.analysis.pools import Pool, pools_of, transfer_of
    from rooflens.models.accounting import kv_sequence_bytes

    tp = count if tp is None else tp
    if count < 1 or tp < 1 or count % tp:
        raise InputError(
            "prefill_tp does not divide prefill_count", value=tp, allowed=f"a divisor of {count}"
        )
    work = replace(planned.workload, layout=resolve_layout(count=tp, tp=tp, pp=1, ep=1, dp=1), batch=1)
    source = plan_spec(
        planned.spec, prefill_device, work, inspection=planned.inspection, strict=False, remedies=False
    )
    if source.fits is False:
        raise InputError(
            f"the prefill pool does not fit on {tp} x {prefill_device.id}",
            value=source.ledger.deficit_bytes,
            next="give more devices an instance with --prefill-tp, or a smaller format",
        )
    layout = planned.workload.layout
    shared = layout.ep > 1 and layout.dp > 1
    target = replace(layout, dp=1) if not shared else layout
    prefill = Pool(
        prefill_device, count // tp, _replica(source, work.layout), work.layout,
        source.ledger.kv_capacity_tokens, budget=work.max_batched_tokens,
    )  # fmt: skip
    decode = Pool(
        planned.device, 1 if shared else layout.dp, _replica(planned, target), target,
        planned.ledger.kv_capacity_tokens, planned.workload.max_sequences,
    )  # fmt: skip
    sent = transfer_of(
        float(kv_sequence_bytes(planned.spec, context=requests.prompt, kv_dtype=work.kv_dtype)),
        prefill_device,
        planned.device,
        source_devices=tp,
        target_devices=target.devices,
        devices=count + layout.devices,
        network=work.network,
    )
    return pools_of(prefill, decode, requests, sent, rate_per_s=rate, limits_s=(ttft, tpot))


def _replica(planned: Plan, layout: Layout) -> Replica:
    """What prices the steps of a plan's model, device and engine under a layout."""
    from rooflens.analysis.estimate import setting_for
    from rooflens.analysis.serving import Replica

    work = planned.workload
    setting = setting_for(planned.spec, planned.device, work.engine)
    return Replica(planned.spec, layout, planned.rates.roof, setting, work.kv_dtype, work.network)


def search(
    model: ModelSource,
    devices: Sequence[DeviceSource],
    *,
    rate: float,
    ttft: float | None = None,
    tpot: float | None = None,
    prompt: int = DEFAULT_PROMPT,
    output: int = DEFAULT_OUTPUT,
    prompt_std: float = 0.0,
    output_std: float = 0.0,
    lengths: Lengths | None = None,
    shared_prefix: float = 0.0,
    engine: str = "vllm",
    weights: Sequence[str | None] | None = None,
    kv_dtypes: Sequence[str | None] | None = None,
    max_devices: int = 8,
    split: bool = True,
    prices: Mapping[str, float] | None = None,
    price_source: str = "auto",
    max_model_len: int | None = None,
    memory_utilization: float | None = None,
    devices_per_node: int | None = None,
    network: float | None = None,
) -> SearchResult:
    """Configurations that serve ``rate`` requests a second with likely TTFT and TPOT (seconds) under limits.

    Tries layouts (tensor, pipeline, expert and attention data parallel), replicas, ``weights`` and cache
    formats (default: the checkpoint's and what the engine offers), sequence limits and step budgets, and with
    ``split`` pools of their own for prefills and decodes, also of different devices; at most
    ``max_devices`` in all. ``prices`` are per device and hour by device name; other devices take theirs from
    ``price_source`` (auto, gpuhunt, snapshot, none). Without any, devices and power rank. Raises
    RooflensError.
    """
    from rooflens.analysis.advice import FORMATS
    from rooflens.analysis.search import search as run
    from rooflens.analysis.search_result import Goal
    from rooflens.analysis.search_units import Candidate
    from rooflens.analysis.workload import make_workload
    from rooflens.errors import RooflensError
    from rooflens.interop.prices import prices_of

    for name, value in (("rate", rate), ("ttft", ttft), ("tpot", tpot)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive", value=value)
    if not devices:
        raise InputError("no devices are given", allowed="one or more names that `rooflens devices` lists")
    asked = requests_of(
        prompt=prompt,
        output=output,
        prompt_std=prompt_std,
        output_std=output_std,
        lengths=lengths,
        shared_prefix=shared_prefix,
    )
    spec = read_spec_of(model)
    found = [resolve_device(device) for device in devices]
    formats = weights if weights is not None else (None, *FORMATS.get(engine, ("fp8", "awq")))
    candidates = []
    for form in dict.fromkeys(formats):
        try:
            changed = read_spec_of(spec, form)
        except RooflensError:
            if weights is not None:
                raise
            continue  # a format that this model's shapes refuse
        candidates += [Candidate(changed, device, form) for device in found]
    served = engine in ("vllm", "sglang")
    own = {resolve_device(name).id: price for name, price in (prices or {}).items()}
    priced, notes = prices_of(found, own=own, source=price_source)
    base = make_workload(
        spec,
        prompt=asked.prompt,
        output=asked.output,
        engine=engine,
        max_model_len=max_model_len or asked.full_context,
        memory_utilization=memory_utilization,
        devices_per_node=devices_per_node,
        network=network,
    )
    return run(
        candidates,
        Goal(asked, rate, ttft, tpot, max_devices),
        base=base,
        model=spec.name,
        kv_dtypes=kv_dtypes if kv_dtypes is not None else (None, "fp8") if served else (None,),
        prices=priced,
        split=split,
        notes=notes,
    )
