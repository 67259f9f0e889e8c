"""The plan: one model, one device, one workload; every answer of ``rooflens plan`` in one object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rooflens.analysis.communication import communication_bytes
from rooflens.analysis.engines import rules_for
from rooflens.analysis.estimate import DECODE, DECODE_1, PREFILL, Range, Setting, setting_for
from rooflens.analysis.ledger import Ledger, LedgerInput, LedgerRules
from rooflens.analysis.likely import likely_step_s
from rooflens.analysis.measured import measured_rates
from rooflens.analysis.on_chip import cache_bandwidth, on_chip_note, stays_on_chip
from rooflens.analysis.parallelism import rank_specs
from rooflens.analysis.ridge import ridge_batch
from rooflens.analysis.roofline import Roof, StepTimes, time_ops
from rooflens.analysis.step import Op, Phase, Step, decode_step, prefill_step, step_ops
from rooflens.analysis.workload import (
    Rates,
    Workload,
    device_rates,
    prefill_chunk_tokens,
)
from rooflens.display import Displayed
from rooflens.errors import UnsupportedError
from rooflens.hardware.device import Device
from rooflens.models.inspection import Inspection
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.analysis.advice import Advice
    from rooflens.analysis.own_runs import OwnRuns
    from rooflens.analysis.pools import Pools
    from rooflens.analysis.remedies import Remedy
    from rooflens.analysis.serving_result import Serving
    from rooflens.analysis.totals import Totals
    from rooflens.analysis.what_if import WhatIf


@dataclass(frozen=True)
class PhaseResult:
    """One phase of the plan. FLOPs and bytes are totals over all devices; seconds are of one step.

    ``times`` are those of the slowest device; ``bound_s`` is the time that nothing can beat;
    ``tokens_per_s`` counts all sequences at the bound.
    """

    phase: Phase
    tokens: int
    flops: float
    bytes: float
    times: StepTimes
    bound_s: float
    estimate: Range
    tokens_per_s: float
    sequences: int
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    devices: int

    @property
    def intensity_flops_per_byte(self) -> float:
        """FLOPs over the bytes that must move."""
        return self.flops / self.bytes

    @property
    def limited_by(self) -> str:
        """compute, memory or communication."""
        return self.times.limited_by

    @property
    def mfu_ceiling(self) -> float:
        """Share of the peak that the bound leaves in use: FLOPs / (bound x peak x devices)."""
        return self.flops / (self.bound_s * self.peak_flops_per_s * self.devices)

    @property
    def mbu_ceiling(self) -> float:
        """Share of the bandwidth that the bound leaves in use: bytes / (bound x bandwidth x devices)."""
        return self.bytes / (self.bound_s * self.bandwidth_bytes_per_s * self.devices)

    def to_dict(self) -> dict[str, Any]:
        """The phase as in the JSON contract."""
        result = {
            "tokens": self.tokens,
            "flops": self.flops,
            "bytes": self.bytes,
            "intensity_flops_per_byte": self.intensity_flops_per_byte,
            "compute_s": self.times.compute_s,
            "memory_s": self.times.memory_s,
            "communication_s": self.times.communication_s,
            "bound_s": self.bound_s,
            "limited_by": self.limited_by,
            "op_roofline_s": self.times.op_roofline_s,
            "estimate_s": self.estimate.to_dict(),
            "tokens_per_s": self.tokens_per_s,
            "mfu_ceiling": self.mfu_ceiling,
            "mbu_ceiling": self.mbu_ceiling,
        }
        if self.phase is Phase.DECODE:
            result["tokens_per_s_per_sequence"] = 1 / self.bound_s
            result["split_s"] = {
                "weights": self.times.weights_s,
                "kv": self.times.kv_s,
                "compute": self.times.compute_s,
            }
        return result


@dataclass(frozen=True)
class Plan(Displayed):
    """Everything that ``rooflens plan`` says; ``to_dict`` is its JSON."""

    spec: ModelSpec
    inspection: Inspection
    device: Device
    rates: Rates
    workload: Workload
    ledger: Ledger
    prefill: PhaseResult
    decode: PhaseResult
    ridge_batch: float | None
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    serving: Serving | None = None
    pools: Pools | None = None
    what_if: WhatIf | None = None

    @cached_property
    def totals(self) -> Totals:
        """What all devices hold and do together."""
        from rooflens.analysis.totals import totals_of

        return totals_of(self.spec, self.workload)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What would help, and by how much; worked out when first asked, since it plans many variants."""
        from rooflens.analysis.advice import advise

        return advise(self)

    @property
    def fits(self) -> bool | None:
        """Whether the fullest device holds everything; None where its memory is not known."""
        return self.ledger.fits

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON: SI units in the key names, null for unknown."""
        work, ledger, device = self.workload, self.ledger, self.device
        peak = self.decode.peak_flops_per_s
        return {
            "schema": "rooflens.plan/1",
            "model": self.inspection.to_dict(),
            "device": {
                "name": device.name,
                "id": device.id,
                "count": work.layout.devices,
                "memory_bytes": device.memory_bytes,
                "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
                "peak_flops_per_s": peak,
                "compute_dtype": self.rates.compute_dtype,
                "ridge_flops_per_byte": peak / device.bandwidth(),
                "evidence": {
                    "memory_bytes": device.memory_evidence,
                    "bandwidth_bytes_per_s": device.bandwidth_evidence,
                    "peak_flops_per_s": device.peak(self.rates.compute_dtype).evidence,
                },
                "measured": {
                    rate.name: rate.to_dict() for rate in measured_rates(device, self.rates.compute_dtype)
                },
            },
            "workload": {
                "batch": work.batch,
                "prompt": work.prompt,
                "output": work.output,
                "context": work.context,
                "tp": work.layout.tp,
                "pp": work.layout.pp,
                "ep": work.layout.ep,
                "dp": work.layout.dp,
                "engine": work.engine,
                "kv_dtype": work.kv_dtype,
                "max_model_len": work.max_model_len,
                "max_batched_tokens": work.max_batched_tokens,
                "max_sequences": work.max_sequences,
                "memory_utilization": work.memory_utilization,
                "engine_version": work.engine_version,
            },
            "memory": ledger.to_dict() | {"remedies": [remedy.to_dict() for remedy in self.remedies]},
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
            "ridge_batch": self.ridge_batch,
            "totals": self.totals.to_dict(),
            "serving": None if self.serving is None else self.serving.to_dict(),
            "pools": None if self.pools is None else self.pools.to_dict(),
            "what_if": None if self.what_if is None else self.what_if.to_dict(),
            "advice": [one.to_dict() for one in self.advice],
            "notes": list(self.notes),
        }


def plan_spec(
    spec: ModelSpec,
    device: Device,
    workload: Workload,
    *,
    inspection: Inspection,
    strict: bool = True,
    rules: LedgerRules | None = None,
    own_runs: OwnRuns | None = None,
    remedies: bool = True,
) -> Plan:
    """Plan ``workload`` of a model on (several of) a device.

    ``inspection`` is carried by the answer; ``strict`` refuses a compute type without a
    peak instead of running it as engines would; ``rules`` override the engine's memory rules;
    ``own_runs`` are the user's measured ones, which shift and narrow the estimate; without
    ``remedies`` none are sought where it does not fit. Raises UnsupportedError for a missing peak or
    bandwidth, InputError for a layout that does not fit the model's shapes.
    """
    stages = rank_specs(spec, workload.layout)
    batch = workload.replica_batch
    steps = (
        prefill_step(sequences=batch, prompt=workload.prompt),
        decode_step(sequences=batch, context=workload.context),
    )
    stage_ops = [[step_ops(stage, step, kv_dtype=workload.kv_dtype) for stage in stages] for step in steps]
    every = tuple(op for ops in stage_ops[0] for op in ops)
    rates = device_rates(spec, device, every, strict=strict, engine=workload.engine)
    setting = setting_for(spec, device, workload.engine, own_runs)
    prefill, decode = (
        _phase(spec, device, rates, setting, workload, step, ops)
        for step, ops in zip(steps, stage_ops, strict=True)
    )
    given = ledger_input(spec, device, workload)
    rules = rules or rules_for(workload.engine)
    ledger = rules(given)
    notes = (*spec.notes, *rates.notes, *ledger.notes, *on_chip_note(device, decode.times))
    return Plan(
        spec=spec,
        inspection=inspection,
        device=device,
        rates=rates,
        workload=workload,
        ledger=ledger,
        prefill=prefill,
        decode=decode,
        ridge_batch=ridge_batch(spec, rates.roof, kv_dtype=workload.kv_dtype),
        remedies=()
        if ledger.fits is not False or not remedies
        else _remedies(given, rules, device, workload),
        notes=tuple(dict.fromkeys(notes)),
    )


def ledger_input(spec: ModelSpec, device: Device, workload: Workload) -> LedgerInput:
    """What an engine's memory rules are asked. Raises InputError where the layout does not fit the shapes."""
    return LedgerInput(
        spec=spec,
        stages=rank_specs(spec, workload.layout),
        layout=workload.layout,
        batch=workload.replica_batch,
        prompt=workload.prompt,
        context=workload.context,
        kv_dtype=workload.kv_dtype,
        capacity_bytes=device.memory_bytes,
        reported_bytes=device.reported_memory_bytes,
        max_model_len=workload.max_model_len,
        max_batched_tokens=workload.max_batched_tokens,
        max_sequences=workload.max_sequences,
        memory_utilization=workload.memory_utilization,
        engine_version=workload.engine_version,
        kv_dtype_auto=workload.kv_dtype_auto,
        swa_full=workload.swa_full,
        device_name=device.name,
    )


def _remedies(
    given: LedgerInput, rules: LedgerRules, device: Device, workload: Workload
) -> tuple[Remedy, ...]:
    """Searched only when it is needed: it counts the ledger again for every candidate."""
    from rooflens.analysis.remedies import find_remedies

    step = decode_step(sequences=1, context=0)

    def runs(spec: ModelSpec) -> bool:
        try:
            device_rates(spec, device, step_ops(spec, step, kv_dtype=workload.kv_dtype), strict=True)
        except UnsupportedError:
            return False
        return True

    return find_remedies(given, rules, engine=workload.engine, runs=runs)


def _phase(
    spec: ModelSpec,
    device: Device,
    rates: Rates,
    setting: Setting,
    workload: Workload,
    step: Step,
    stage_ops: list[tuple[Op, ...]],
) -> PhaseResult:
    layout = workload.layout
    least = communication_bytes(spec, layout, tokens=step.tokens, least=True)
    per_stage = [time_ops(ops, rates.roof, communication_bytes=least) for ops in stage_ops]
    if step.phase is Phase.DECODE and stays_on_chip(device, per_stage):
        on_chip = replace(rates.roof, bandwidth_bytes_per_s=cache_bandwidth(device))
        per_stage = [time_ops(ops, on_chip, communication_bytes=least) for ops in stage_ops]
    slowest = max(per_stage, key=lambda times: float(times.bound_s))
    bound_s = float(slowest.bound_s)
    tokens = step.tokens
    if layout.pp > 1:
        bound_s = max(bound_s, _one_sequence_s(spec, workload, step, rates.roof))
    prefilling = step.phase is Phase.PREFILL
    chunk = prefill_chunk_tokens(workload) if prefilling else None
    likely_s = likely_step_s(
        spec,
        layout,
        rates.roof,
        setting,
        step,
        kv_dtype=workload.kv_dtype,
        eager=prefilling,
        chunks=1 if chunk is None else max(1.0, tokens / chunk),
        network=workload.network,
        stage_ops=stage_ops,
    )
    kind = PREFILL if prefilling else DECODE_1 if workload.batch == 1 else DECODE
    likely = setting.around(likely_s, kind, floor=bound_s)
    ranks = layout.tp * layout.dp
    return PhaseResult(
        phase=step.phase,
        tokens=tokens * layout.dp,
        flops=sum(float(times.cost.flops) for times in per_stage) * ranks,
        bytes=sum(float(times.cost.moved_bytes) for times in per_stage) * ranks,
        times=slowest,
        bound_s=bound_s,
        estimate=likely,
        tokens_per_s=tokens * layout.dp / bound_s,
        sequences=workload.batch,
        peak_flops_per_s=device.peak_flops_per_s(rates.compute_dtype),
        bandwidth_bytes_per_s=rates.roof.bandwidth_bytes_per_s,
        devices=layout.devices,
    )


def _one_sequence_s(spec: ModelSpec, workload: Workload, step: Step, roof: Roof) -> float:
    """The way of a single sequence's single token through all pipeline stages, one after the other."""
    single = Step(step.phase, 1, 1, step.context, 1)
    total = 0.0
    for stage in rank_specs(spec, workload.layout):
        total += float(time_ops(step_ops(stage, single, kv_dtype=workload.kv_dtype), roof).bound_s)
    return total
