"""Predicted beside measured, phase by phase and module by module: the names are the same on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rooflens.analysis.roofline import Roof, time_ops
from rooflens.analysis.step import Op
from rooflens.analysis.workload import device_rates
from rooflens.errors import UnsupportedError
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec
from rooflens.runtime.engine.records import PHASES
from rooflens.runtime.profile.engine import EngineProfile, ProfiledStep
from rooflens.runtime.profile.predict import mean_ops

PhaseName = Literal["prefill", "decode"]


@dataclass(frozen=True)
class ModuleRow:
    """All modules of one name in a mean step; seconds, None where a side does not know it.

    ``roofline_s`` is the operator alone, its inputs and outputs in memory.
    """

    name: str
    count: int
    roofline_s: float | None
    measured_s: float | None


@dataclass(frozen=True)
class PhaseRun:
    """The mean step of one phase. Times are None without a roof or where they were not measured.

    ``step_s`` is the clock's, with the gap to the step before; ``parts_s`` splits it as the engine saw it.
    ``mfu`` and ``mbu``: FLOPs and bytes that the step needs over what the roofs would do in ``step_s``.
    """

    phase: PhaseName
    steps: int
    tokens: float
    step_s: float
    parts_s: dict[str, float]
    flops: float
    moved_bytes: float
    bound_s: float | None
    limited_by: str | None
    mfu: float | None
    mbu: float | None
    rows: tuple[ModuleRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Names that only one side has."""
        return tuple(row.name for row in self.rows if row.roofline_s is None or row.measured_s is None)


def phase_runs(
    profile: EngineProfile, spec: ModelSpec, *, kv_dtype: str, device: Device | None
) -> tuple[PhaseRun, ...]:
    """Prefill and decode of a profile, those that took place; mixed steps are in neither."""
    made = []
    phases: tuple[PhaseName, ...] = ("prefill", "decode")
    for phase in phases:
        steps = [step for step in profile.steps if step.record.phase == phase]
        if steps:
            made.append(_phase_run(phase, steps, spec, kv_dtype=kv_dtype, device=device))
    return tuple(made)


def roof_of(spec: ModelSpec, device: Device, ops: tuple[Op, ...]) -> Roof | None:
    """The device's roofs for these operators; None where it has no figure for their type."""
    try:
        return device_rates(spec, device, ops, strict=True).roof
    except UnsupportedError:
        return None


def _phase_run(
    phase: PhaseName,
    steps: Sequence[ProfiledStep],
    spec: ModelSpec,
    *,
    kv_dtype: str,
    device: Device | None,
) -> PhaseRun:
    ops = mean_ops(spec, [step.record.work for step in steps], kv_dtype=kv_dtype)
    roof = None if device is None else roof_of(spec, device, ops)
    records = [step.record for step in steps]
    step_s = sum(record.total_s + (record.gap_s or 0.0) for record in records) / len(records)
    parts = {part: sum(getattr(r, part) for r in records) / len(records) for part in PHASES}
    parts["gap_s"] = sum(record.gap_s or 0.0 for record in records) / len(records)
    flops = float(sum(op.total.flops for op in ops))
    moved = float(sum(op.total.moved_bytes for op in ops))
    times = None if roof is None else time_ops(ops, roof)
    return PhaseRun(
        phase=phase,
        steps=len(steps),
        tokens=sum(record.prefill_tokens + record.decode_tokens for record in records) / len(records),
        step_s=step_s,
        parts_s=parts,
        flops=flops,
        moved_bytes=moved,
        bound_s=None if times is None else float(times.bound_s),
        limited_by=None if times is None else times.limited_by,
        # FLOPs over their own peaks: a step may have operators of several types.
        mfu=None if times is None else float(times.compute_s) / step_s,
        mbu=None if times is None else float(times.memory_s) / step_s,
        rows=_rows(ops, steps, roof),
    )


def _rows(ops: Sequence[Op], steps: Sequence[ProfiledStep], roof: Roof | None) -> tuple[ModuleRow, ...]:
    timed = [step.modules.by_operator() for step in steps if step.modules is not None]
    if not timed:
        return ()
    measured: dict[str, tuple[int, float]] = {}
    for one in timed:
        for name, (calls, seconds) in one.items():
            known = measured.get(name, (0, 0.0))
            measured[name] = (calls, known[1] + seconds / len(timed))
    predicted = {op.name: op for op in ops}
    rows = []
    for name in dict.fromkeys([*measured, *predicted]):
        op, found = predicted.get(name), measured.get(name)
        count = op.count if op is not None else found[0] if found is not None else 0
        alone = None if op is None or roof is None else float(time_ops((op,), roof).op_roofline_s)
        rows.append(ModuleRow(name, count, alone, None if found is None else found[1]))
    return tuple(rows)
