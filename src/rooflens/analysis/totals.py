"""What all devices of a plan hold and do together, beside the fullest one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.analysis.communication import communication_bytes
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.analysis.step import decode_step, prefill_step, step_ops, total_cost
from rooflens.analysis.workload import Workload
from rooflens.models.accounting import kv_sequence_bytes, state_sequence_bytes, weights_bytes
from rooflens.models.spec import ModelSpec


@dataclass(frozen=True)
class PhaseTotals:
    """A step on the slowest device and on all: FLOPs, bytes that must move, bytes sent (likely) by each."""

    flops: tuple[float, float]
    moved_bytes: tuple[float, float]
    sent_bytes: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: ``per_device`` and ``total`` of each."""
        return {
            name: {"per_device": pair[0], "total": pair[1]}
            for name, pair in (
                ("flops", self.flops), ("bytes", self.moved_bytes), ("sent_bytes", self.sent_bytes),
            )
        }  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """(fullest device, all devices) in bytes; copies on several devices count as often as they are held."""

    devices: int
    weights_bytes: tuple[int, int]
    kv_cache_bytes: tuple[int, int]
    prefill: PhaseTotals
    decode: PhaseTotals

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        memory = (("weights_bytes", self.weights_bytes), ("kv_cache_bytes", self.kv_cache_bytes))
        return {
            "devices": self.devices,
            **{name: {"per_device": pair[0], "total": pair[1]} for name, pair in memory},
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
        }


def totals_of(spec: ModelSpec, work: Workload) -> Totals:
    """Sums over the ranks of every pipeline stage; the cache is that of the whole batch at its context."""
    layout = work.layout
    stages = rank_specs(spec, layout)
    ranks = layout.tp * layout.dp
    weights = [weights_bytes(stage) for stage in stages]
    caches = [
        work.replica_batch
        * int(
            kv_sequence_bytes(stage, context=work.context, kv_dtype=work.kv_dtype)
            + state_sequence_bytes(stage)
        )
        for stage in stages
    ]
    return Totals(
        devices=layout.devices,
        weights_bytes=(max(weights), sum(weights) * ranks),
        kv_cache_bytes=(max(caches), sum(caches) * ranks),
        prefill=_phase(spec, layout, stages, work, prefill=True),
        decode=_phase(spec, layout, stages, work, prefill=False),
    )


def _phase(
    spec: ModelSpec, layout: Layout, stages: tuple[ModelSpec, ...], work: Workload, *, prefill: bool
) -> PhaseTotals:
    step = (
        prefill_step(sequences=work.replica_batch, prompt=work.prompt)
        if prefill
        else decode_step(sequences=work.replica_batch, context=work.context)
    )
    costs = [total_cost(step_ops(stage, step, kv_dtype=work.kv_dtype)) for stage in stages]
    ranks = layout.tp * layout.dp
    sent = float(communication_bytes(spec, layout, tokens=step.tokens))
    flops = [float(cost.flops) for cost in costs]
    moved = [float(cost.moved_bytes) for cost in costs]
    return PhaseTotals(
        flops=(max(flops), sum(flops) * ranks),
        moved_bytes=(max(moved), sum(moved) * ranks),
        sent_bytes=(sent, sent * layout.devices),
    )
