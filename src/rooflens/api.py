"""The Python API: names in, one answer out. The command line, the page and notebooks call these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflens.analysis.workload import DEFAULT_OUTPUT, DEFAULT_PROMPT
from rooflens.errors import InputError
from rooflens.hardware import Device, device_by_hand, device_with, find_device
from rooflens.models.free_form import dense
from rooflens.models.inspection import Inspection, inspect_spec
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.analysis.calibrate import CalibrationResult
    from rooflens.analysis.compare import Comparison
    from rooflens.analysis.own_runs import OwnRuns
    from rooflens.analysis.plan import Plan
    from rooflens.analysis.points import RooflineView
    from rooflens.analysis.search_result import SearchResult
    from rooflens.analysis.serving import Serving
    from rooflens.analysis.sweep import Sweep
    from rooflens.analysis.validate import Validation
    from rooflens.analysis.workload import Workload
    from rooflens.hardware import LocalDevice

__all__ = [
    "calibrate",
    "compare",
    "dense",
    "detected_devices",
    "inspect",
    "plan",
    "resolve_device",
    "roofline",
    "search",
    "serving",
    "sweep",
    "validate",
]

ModelSource = str | Path | Mapping[str, Any] | ModelSpec
DeviceSource = str | Path | Device

LOCAL = "local"


def read_spec_of(model: ModelSource, weights: str | None = None) -> ModelSpec:
    """The ModelSpec of a bundled name, Hub id, directory, file or ready spec, in ``weights`` if asked."""
    if isinstance(model, ModelSpec):
        spec = model
    else:
        from rooflens.models.read import read_model

        spec = read_model(model)
    return spec if weights is None else _in_format(spec, weights)


@lru_cache(maxsize=64)
def _in_format(spec: ModelSpec, weights: str) -> ModelSpec:
    from rooflens.models.formats.apply import apply_format

    return apply_format(spec, weights)


def resolve_device(
    device: DeviceSource | None,
    *,
    peak: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
) -> Device:
    """The device of a catalogue name, a saved probe, ``local``, or figures given by hand.

    ``peak`` in FLOP/s, ``bandwidth`` in bytes/s, ``memory`` in bytes; beside a named device they
    replace its figures. Raises InputError or NotFoundError.
    """
    if device is None:
        if peak is None or bandwidth is None:
            raise InputError(
                "no device is given",
                allowed="--device NAME, or --peak and --bandwidth (and --memory) by hand",
                next="`rooflens devices` lists the names",
            )
        return device_by_hand(peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth, memory_bytes=memory)
    if not isinstance(device, Device):
        device = _named_device(str(device))
    if peak is None and bandwidth is None and memory is None:
        return device
    return device_with(device, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth, memory_bytes=memory)


def _named_device(name: str) -> Device:
    if name.lower() == LOCAL:
        from rooflens.hardware import local_device
        from rooflens.measure.roofs import probe_device
        from rooflens.measure.storage import latest_probe

        record = latest_probe()
        return local_device(None if record is None else probe_device(record))
    if name.endswith(".json"):
        from rooflens.measure.roofs import probe_device
        from rooflens.measure.storage import load_probe

        return probe_device(load_probe(name))
    return find_device(name)


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
            spec = _with_note(_in_format(spec, served), note)
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
    output_cv: float = 0.0,
    shared_prefix: float = 0.0,
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
    for outputs of spread ``output_cv`` and prompts whose ``shared_prefix`` is cached. Without ``remedies``
    it is not sought what would make a plan fit, which takes longest. Raises RooflensError for anything
    unusable.
    """
    from rooflens.analysis.plan import plan_spec

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
            "swa_full": swa_full,
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
    if rate is None and concurrency is None:
        return planned
    from dataclasses import replace

    served = serving_of(
        planned, rate=rate, concurrency=concurrency, output_cv=output_cv, shared_prefix=shared_prefix
    )
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


def detected_devices() -> tuple[LocalDevice, ...]:
    """What this machine has: the CPU always, accelerators where a driver or the system names them."""
    from rooflens.hardware import detect_local

    return tuple(detect_local())


def validate(path: str | Path) -> Validation:
    """Every row of a CSV file of measurements against the bound and the estimate.

    Bad rows are told one by one and the rest is judged. Raises InputError where the file is no such table.
    """
    from rooflens.analysis.validate import validate_cases
    from rooflens.interop.exceptions import known_exceptions
    from rooflens.interop.measured_models import resolve_cases
    from rooflens.interop.measurements import load_measurements

    file = load_measurements(path)
    cases, skipped = resolve_cases(file.rows)
    return validate_cases(
        cases,
        problems=[(problem.row_id, problem.line, problem.why) for problem in file.problems],
        skipped=skipped,
        exceptions=known_exceptions(),
    )


def calibrate(paths: Sequence[str | Path], *, save: bool | str | Path = True) -> CalibrationResult:
    """What a few measured runs (CSV files as for ``validate``) say of the estimate on their devices.

    ``save`` keeps it under the data directory, or in the file that it names; ``plan(runs=...)`` uses it.
    Raises InputError where no run can be used.
    """
    from dataclasses import replace
    from datetime import UTC, datetime

    from rooflens.analysis.calibrate import calibrate_runs
    from rooflens.analysis.validate import validate_cases
    from rooflens.interop.measured_models import resolve_cases
    from rooflens.interop.measurements import load_measurements
    from rooflens.interop.own_runs import save_own_runs

    if not paths:
        raise InputError("no runs are given", allowed="one or more CSV files of measurements")
    files = [load_measurements(path) for path in paths]
    cases, skipped = resolve_cases(row for file in files for row in file.rows)
    problems = [(problem.row_id, problem.line, problem.why) for file in files for problem in file.problems]
    judged = validate_cases(cases, problems=problems, skipped=skipped)
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    result = calibrate_runs(judged, files=tuple(str(path) for path in paths), created=created)
    if save is False:
        return result
    return replace(result, path=str(save_own_runs(result.own, None if save is True else Path(save))))


def serving(
    model: ModelSource,
    device: DeviceSource | None = None,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    output_cv: float = 0.0,
    shared_prefix: float = 0.0,
    **settings: Any,
) -> Serving:
    """What continuous batching settles at under ``rate`` requests a second, or ``concurrency`` clients.

    ``output_cv`` is the spread of output lengths (standard deviation over mean), ``shared_prefix`` the share
    of every prompt that is cached; ``settings`` are those of ``plan``. Raises RooflensError.
    """
    return serving_of(
        plan(model, device, **settings),
        rate=rate,
        concurrency=concurrency,
        output_cv=output_cv,
        shared_prefix=shared_prefix,
    )


def serving_of(
    planned: Plan,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    output_cv: float = 0.0,
    shared_prefix: float = 0.0,
) -> Serving:
    """The same for a plan that is there already."""
    from dataclasses import replace

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


def _own_runs(runs: str | Path | OwnRuns | None) -> OwnRuns | None:
    if runs is None:
        return None
    from rooflens.analysis.own_runs import OwnRuns

    if isinstance(runs, OwnRuns):
        return runs
    from rooflens.interop.own_runs import load_own_runs

    return load_own_runs(runs)
