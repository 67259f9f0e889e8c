"""Plans, and what is made of them: sweeps, comparisons, rooflines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflens.analysis.workload import DEFAULT_OUTPUT, DEFAULT_PROMPT
from rooflens.api.sources import DeviceSource, ModelSource, in_format, read_spec_of, resolve_device
from rooflens.api.steady_state import Lengths, pools_of_plan, requests_of, serving_of
from rooflens.errors import InputError
from rooflens.hardware import Device
from rooflens.models.inspection import Inspection, inspect_spec
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.analysis.compare import Comparison
    from rooflens.analysis.own_runs import OwnRuns
    from rooflens.analysis.plan import Plan
    from rooflens.analysis.points import RooflineView
    from rooflens.analysis.serving_result import Serving
    from rooflens.analysis.sweep import Sweep
    from rooflens.analysis.workload import Workload


def inspect(
    model: ModelSource,
    *,
    context: int | None = None,
    kv_dtype: str | None = None,
    weights: str | None = None,
) -> Inspection:
    """What a model is: parameters, weight bytes, cache per token and per sequence, layers by kind.

    ``context`` in tokens fills the cache figures (default: the longest the model allows); ``weights``
    and ``kv_dtype`` name formats to apply. Raises RooflensError for anything unusable.
    """
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 0):
        raise InputError("context is not usable", value=context, allowed="a whole number from 0")
    return inspect_spec(read_spec_of(model, weights), context=context, kv_dtype=kv_dtype)


def _prepare(
    model: ModelSource,
    device: DeviceSource | None,
    weights: str | None,
    by_hand: Mapping[str, float | None],
    settings: Mapping[str, Any],
) -> tuple[ModelSpec, Device, Workload]:
    from rooflens.analysis.workload import make_workload

    spec = read_spec_of(model, weights)
    if weights is None and spec.dtype == "fp32":
        from rooflens.analysis.engines import served_dtype

        served = served_dtype(settings.get("engine", "none"), spec.dtype)
        if served is not None and spec.quantization is None and spec.free_form is None:
            note = f"{settings['engine']} runs fp32 checkpoints in {served} unless fp32 is asked for"
            spec = _with_note(in_format(spec, served), note)
    return spec, resolve_device(device, **by_hand), make_workload(spec, **settings)


@lru_cache(maxsize=64)
def _with_note(spec: ModelSpec, note: str) -> ModelSpec:
    return replace(spec, notes=(*spec.notes, note))


def plan(
    model: ModelSource,
    device: DeviceSource | None = None,
    *,
    count: int = 1,
    tp: int | None = None,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    batch: int = 1,
    prompt: int = DEFAULT_PROMPT,
    output: int = DEFAULT_OUTPUT,
    context: int | None = None,
    weights: str | None = None,
    kv_dtype: str | None = None,
    engine: str = "none",
    engine_version: str | None = None,
    max_model_len: int | None = None,
    max_batched_tokens: int | None = None,
    max_sequences: int | None = None,
    memory_utilization: float | None = None,
    swa_full: bool = False,
    peak: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    runs: str | Path | OwnRuns | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    prompt_std: float = 0.0,
    output_std: float = 0.0,
    lengths: Lengths | None = None,
    shared_prefix: float = 0.0,
    ttft: float | None = None,
    tpot: float | None = None,
    devices_per_node: int | None = None,
    network: float | None = None,
    prefill_device: DeviceSource | None = None,
    prefill_count: int | None = None,
    prefill_tp: int | None = None,
    techniques: Sequence[str] = (),
    remedies: bool = True,
) -> Plan:
    """The memory ledger, the limits of prefill and decode and the estimate of one workload.

    ``tp`` defaults to what ``count`` leaves after pp and dp; ``context`` (tokens held per sequence when
    a decode step is priced) to prompt + output; ``weights`` and ``kv_dtype`` to the checkpoint's own.
    ``engine`` picks whose memory rules apply: none, rooflens, vllm, sglang, llama.cpp, ollama.
    A missing peak is refused for formats that are asked for; a checkpoint's own format runs as engines
    would run it, which ``notes`` say. ``runs`` is what ``calibrate`` saved (a path, or ``latest``): the
    estimate then moves to and narrows around the user's own runs of this device and engine. With ``rate``
    (requests a second) or ``concurrency`` (clients) the plan also says what continuous batching settles at,
    for lengths spread by ``prompt_std`` and ``output_std`` tokens or as in ``lengths`` (a file or pairs),
    prompts whose ``shared_prefix`` is cached, and the goodput under limits of ``ttft`` and ``tpot`` seconds.
    ``devices_per_node`` and ``network`` (bytes/s a device) matter where a layout spans nodes. With any of
    ``prefill_device`` (default: the same), ``prefill_count`` (default 1) and ``prefill_tp`` (default: all of
    them) prompts run on a pool of their own, and the other devices only decode. ``techniques`` are added to
    the plan one after the other, as ``weights=fp8`` or ``draft=4:0.7`` (``analysis.what_if.FORMS``). Without
    ``remedies`` it is not sought what would make a plan fit, which takes longest. Raises RooflensError for
    anything unusable.
    """
    from rooflens.analysis.plan import plan_spec

    asked = None
    if rate is not None or concurrency is not None or lengths is not None:
        asked = requests_of(
            prompt=prompt,
            output=output,
            prompt_std=prompt_std,
            output_std=output_std,
            lengths=lengths,
            shared_prefix=shared_prefix,
        )
        prompt, output = asked.prompt, asked.output

    spec, found, workload = _prepare(
        model,
        device,
        weights,
        {"peak": peak, "bandwidth": bandwidth, "memory": memory},
        {
            "count": count, "tp": tp, "pp": pp, "ep": ep, "dp": dp,
            "batch": batch, "prompt": prompt, "output": output, "context": context,
            "kv_dtype": kv_dtype, "engine": engine, "engine_version": engine_version,
            "max_model_len": max_model_len, "max_batched_tokens": max_batched_tokens,
            "max_sequences": max_sequences, "memory_utilization": memory_utilization,
            "swa_full": swa_full, "devices_per_node": devices_per_node, "network": network,
        },
    )  # fmt: skip
    inspection = inspect_spec(spec, context=workload.context, kv_dtype=workload.kv_dtype)
    planned = plan_spec(
        spec,
        found,
        workload,
        inspection=inspection,
        strict=weights is not None,
        own_runs=_own_runs(runs),
        remedies=remedies,
    )
    if techniques:
        from rooflens.analysis.what_if import what_if

        planned = replace(planned, what_if=what_if(planned, techniques))
    if prefill_device is not None or prefill_count is not None or prefill_tp is not None:
        if concurrency is not None:
            raise InputError("pools are planned for a rate", value="concurrency", next="give --rate")
        requests = asked or requests_of(prompt=prompt, output=output, shared_prefix=shared_prefix)
        source = found if prefill_device is None else resolve_device(prefill_device)
        count = prefill_count if prefill_count is not None else prefill_tp or 1
        pools = pools_of_plan(
            planned, source, requests=requests, count=count, tp=prefill_tp, rate=rate, ttft=ttft, tpot=tpot
        )
        return replace(planned, pools=pools)
    if asked is None or (rate is None and concurrency is None):
        return planned
    served = serving_of(planned, requests=asked, rate=rate, concurrency=concurrency, ttft=ttft, tpot=tpot)
    return replace(planned, serving=served)


def sweep(
    model: ModelSource,
    device: DeviceSource | None = None,
    *,
    batch: Sequence[int] | int = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    context: Sequence[int] | int | None = None,
    weights: str | None = None,
    peak: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    **settings: Any,
) -> Sweep:
    """Decode over every (batch, context) in one vectorised call: a mapping of numpy columns.

    Remaining ``settings`` are those of ``plan``. The result also says where the knee is and why.
    """
    from rooflens.analysis.sweep import sweep_spec

    spec, found, workload = _prepare(
        model, device, weights, {"peak": peak, "bandwidth": bandwidth, "memory": memory}, settings
    )
    if context is None:
        context = workload.context
    return sweep_spec(
        spec,
        found,
        workload,
        batch=[batch] if isinstance(batch, int) else batch,
        context=[context] if isinstance(context, int) else context,
        strict=weights is not None,
    )


def compare(
    model: ModelSource,
    devices: Sequence[DeviceSource],
    *,
    weights: Sequence[str | None] = (None,),
    **settings: Any,
) -> Comparison:
    """One plan per device and weight format, side by side; a combination that cannot be is kept with
    its reason. Remaining ``settings`` are those of ``plan``.
    """
    from rooflens.analysis.compare import Cell, Comparison
    from rooflens.errors import UnsupportedError
    from rooflens.models.formats.catalogue import find_format

    spec = read_spec_of(model)
    for name in weights:
        if name is not None:
            find_format(name)  # a name that no format has is an error, not a cell
    cells = []
    for device in devices:
        found = resolve_device(device)
        for name in weights:
            label = name or spec.quantization or spec.dtype
            try:
                cells.append(Cell(found, label, plan(spec, found, weights=name, **settings)))
            except UnsupportedError as error:
                if len(devices) * len(weights) == 1:
                    raise
                cells.append(Cell(found, label, None, error))
    return Comparison(tuple(cells))


def roofline(
    device: DeviceSource | None = None,
    *,
    intensities: Sequence[float] = (),
    dtype: str | None = None,
    model: ModelSource | None = None,
    batch: Sequence[int] | int = (1, 8, 32, 128),
    peak: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    **settings: Any,
) -> RooflineView:
    """The roof of a device with points at ``intensities`` (FLOP/byte) and at a model's phases.

    The phases are the prefill at the first ``batch`` and decode at each. ``settings`` are those of
    ``plan``; they and ``batch`` matter with a ``model`` only.
    """
    from rooflens.analysis.points import roofline_view

    found = resolve_device(device, peak=peak, bandwidth=bandwidth, memory=memory)
    plans = []
    if model is not None:
        spec = read_spec_of(model)
        batches = [batch] if isinstance(batch, int) else batch
        plans = [plan(spec, found, batch=one, **settings) for one in batches]
    return roofline_view(found, intensities=intensities, plans=plans, dtype=dtype)


def serving(
    model: ModelSource,
    device: DeviceSource | None = None,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    **settings: Any,
) -> Serving:
    """What continuous batching settles at under ``rate`` requests a second, or ``concurrency`` clients.

    ``settings`` are those of ``plan``, among them the lengths, their spread and the limits of goodput.
    Raises RooflensError.
    """
    if rate is None and concurrency is None:
        raise InputError(
            "either a request rate or a concurrency is needed", allowed="one of rate, concurrency"
        )
    served = plan(model, device, rate=rate, concurrency=concurrency, **settings).serving
    assert served is not None
    return served


def _own_runs(runs: str | Path | OwnRuns | None) -> OwnRuns | None:
    if runs is None:
        return None
    from rooflens.analysis.own_runs import OwnRuns

    if isinstance(runs, OwnRuns):
        return runs
    from rooflens.interop.own_runs import load_own_runs

    return load_own_runs(runs)
