"""Steady state of continuous batching, and the search over what could serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rooflens.analysis.workload import DEFAULT_OUTPUT, DEFAULT_PROMPT
from rooflens.api.sources import DeviceSource, ModelSource, read_spec_of, resolve_device
from rooflens.errors import InputError

if TYPE_CHECKING:
    from rooflens.analysis.plan import Plan
    from rooflens.analysis.search_result import SearchResult
    from rooflens.analysis.serving import Serving


def serving_of(
    planned: Plan,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    output_cv: float = 0.0,
    shared_prefix: float = 0.0,
) -> Serving:
    """The same for a plan that is there already."""
    from rooflens.analysis.estimate import setting_for
    from rooflens.analysis.serving import Replica, Requests, steady_state

    if not 0 <= shared_prefix <= 1:
        raise InputError("shared_prefix is not usable", value=shared_prefix, allowed="0 to 1")
    if output_cv < 0:
        raise InputError("output_cv is not usable", value=output_cv, allowed="0 or more")
    work = planned.workload
    setting = setting_for(planned.spec, planned.device, work.engine)
    layout = replace(work.layout, dp=1, ep=min(work.layout.ep, work.layout.tp))
    return steady_state(
        Replica(planned.spec, layout, planned.rates.roof, setting, work.kv_dtype),
        Requests(work.prompt, work.output, output_cv, shared_prefix),
        rate_per_s=rate,
        concurrency=concurrency,
        replicas=work.layout.dp,
        kv_capacity_tokens=planned.ledger.kv_capacity_tokens,
        max_sequences=work.max_sequences,
        budget=work.max_batched_tokens,
    )


def search(
    model: ModelSource,
    devices: Sequence[DeviceSource],
    *,
    rate: float,
    ttft: float | None = None,
    tpot: float | None = None,
    prompt: int = DEFAULT_PROMPT,
    output: int = DEFAULT_OUTPUT,
    engine: str = "vllm",
    weights: Sequence[str | None] | None = None,
    kv_dtypes: Sequence[str | None] | None = None,
    max_devices: int = 8,
    prices: Mapping[str, float] | None = None,
    output_cv: float = 0.0,
    shared_prefix: float = 0.0,
    max_model_len: int | None = None,
    memory_utilization: float | None = None,
) -> SearchResult:
    """Configurations that serve ``rate`` requests a second with likely TTFT and TPOT (seconds) under limits.

    Tries tensor parallel degrees, replicas, ``weights`` and cache formats (default: the checkpoint's and what
    the engine offers), sequence limits and step budgets, with at most ``max_devices``. ``prices`` are per
    device and hour by device name; without them devices and power rank. Raises RooflensError.
    """
    from rooflens.analysis.advice import FORMATS
    from rooflens.analysis.search import search as run
    from rooflens.analysis.search_result import Goal
    from rooflens.analysis.search_verdict import Candidate
    from rooflens.analysis.serving import Requests
    from rooflens.analysis.workload import make_workload
    from rooflens.errors import RooflensError

    for name, value in (("rate", rate), ("ttft", ttft), ("tpot", tpot)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive", value=value)
    if not devices:
        raise InputError("no devices are given", allowed="one or more names that `rooflens devices` lists")
    spec = read_spec_of(model)
    found = [resolve_device(device) for device in devices]
    asked = weights if weights is not None else (None, *FORMATS.get(engine, ("fp8", "awq")))
    candidates = []
    for form in dict.fromkeys(asked):
        try:
            changed = read_spec_of(spec, form)
        except RooflensError:
            if weights is not None:
                raise
            continue  # a format that this model's shapes refuse
        candidates += [Candidate(changed, device, form) for device in found]
    served = engine in ("vllm", "sglang")
    priced = {resolve_device(name).id: price for name, price in (prices or {}).items()}
    base = make_workload(
        spec,
        prompt=prompt,
        output=output,
        engine=engine,
        max_model_len=max_model_len or prompt + output,
        memory_utilization=memory_utilization,
    )
    return run(
        candidates,
        Goal(Requests(prompt, output, output_cv, shared_prefix), rate, ttft, tpot, max_devices),
        base=base,
        model=spec.name,
        kv_dtypes=kv_dtypes if kv_dtypes is not None else (None, "fp8") if served else (None,),
        prices=priced,
        price_source="given by the user" if priced else None,
    )
