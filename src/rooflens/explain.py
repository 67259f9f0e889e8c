"""The account: every millisecond of a step, from the bound to the clock, joined by name.

Prediction and measurement meet here and nowhere else. Both come in as plain data: operators from
``analysis.step``, module times from a profiler whose names are the operators'. What is left over on either
side is listed, and what nothing accounts for has a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rooflens.analysis.roofline import COMPUTE, MEMORY, Roof, time_ops
from rooflens.analysis.step import Op
from rooflens.display import Displayed
from rooflens.measure.statistics import NOISY_SPREAD
from rooflens.units import format_share

UNEXPLAINED_LIMIT = 0.05
"""An account of a decode step whose unexplained share is above this is not finished."""
WATCHING_LIMIT = 1.25
"""Steps whose modules are timed and that take this many times as long as others do not stand for them."""

Group = Literal["roofline", "device", "host", "rest"]

#: Rows in the order of the waterfall, and which part of the step they belong to. ``forward`` stands for the
#: device's other rows where modules were not timed.
ROWS: dict[str, Group] = {
    "weights": "roofline",
    "kv": "roofline",
    "compute": "roofline",
    "forward": "device",
    "attention": "device",
    "matmuls": "device",
    "small_operators": "device",
    "launch": "device",
    "sampling": "host",
    "scheduling": "host",
    "detokenisation": "host",
    "drafting": "host",
    "queues": "host",
    "profiler": "rest",
    "unexplained": "rest",
}


@dataclass(frozen=True)
class MeasuredModule:
    """One module of a step, all its places together: calls, seconds and framework calls per step."""

    name: str
    calls: float
    seconds: float
    dispatches: float = 0.0


@dataclass(frozen=True)
class MeasuredStep:
    """A step as it was measured; means over ``steps`` equal ones. Seconds and counts are per step.

    clock_s: from the end of the step before to the end of this one, of the same steps as everything else;
    model_s: the forward pass; the others are the engine's, outside of it. whole_s: the clock of equal steps
    whose modules were not timed, None if there were none. spread: (p90 - p10) / median of the steps' clocks.
    dispatch_s, module_call_s and timer_s: what one
    framework call, one module call and one timed call cost before any work; ``loose_dispatches`` are made
    by no module in ``modules``, ``module_calls`` counts all modules, those without work of their own too.
    around_call_s: of a step in one call, what that took outside of its operators, threads started for it.
    """

    phase: str
    steps: int
    sequences: float
    new_tokens: float
    context: float
    clock_s: float
    model_s: float
    sampling_s: float = 0.0
    scheduling_s: float = 0.0
    detokenisation_s: float = 0.0
    drafting_s: float = 0.0
    queues_s: float = 0.0
    modules: tuple[MeasuredModule, ...] = ()
    module_calls: float = 0.0
    loose_dispatches: float = 0.0
    dispatch_s: float = 0.0
    module_call_s: float = 0.0
    timer_s: float = 0.0
    around_call_s: float = 0.0
    whole_s: float | None = None
    spread: float = 0.0


@dataclass(frozen=True)
class AccountRow:
    """One step of the waterfall. Negative where a module was faster than its roofline."""

    name: str
    group: Group
    seconds: float
    share: float


@dataclass(frozen=True)
class ModuleRow:
    """Prediction and measurement of one operator, all its places together; seconds per step.

    roofline_s: the larger of its FLOPs at the peak and its weight and cache bytes at the bandwidth;
    launch_s: the part of the gap that framework calls cost; mfu and mbu: shares of peak and bandwidth.
    """

    name: str
    kind: str
    calls: float
    flops: float
    bytes: float
    limited_by: str
    roofline_s: float
    measured_s: float
    launch_s: float
    mfu: float
    mbu: float

    @property
    def gap_s(self) -> float:
        """Measured beyond the roofline."""
        return self.measured_s - self.roofline_s


@dataclass(frozen=True)
class Account(Displayed):
    """One kind of step, explained. The rows add up to ``clock_s`` exactly.

    bound_s: what nothing can beat, all operators overlapping; roofline_s: the operators one after the other.
    mfu: time that the step's FLOPs take at the peak, over the clock; mbu: the same for bytes that must move.
    """

    phase: str
    steps: int
    sequences: float
    new_tokens: float
    context: float
    clock_s: float
    whole_s: float | None
    spread: float
    bound_s: float
    roofline_s: float
    limited_by: str
    mfu: float
    mbu: float
    dispatches: float
    rows: tuple[AccountRow, ...]
    modules: tuple[ModuleRow, ...]
    only_predicted: tuple[str, ...]
    only_measured: tuple[str, ...]
    remarks: tuple[Remark, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks in English."""
        return tuple(remark.sentence for remark in self.remarks)

    def seconds(self, *names: str) -> float:
        """The sum of the rows of these names."""
        return sum(row.seconds for row in self.rows if row.name in names)

    def share(self, *names: str) -> float:
        """The same as a share of the clock."""
        return self.seconds(*names) / self.clock_s

    @property
    def times_bound(self) -> float:
        """How many times the bound the step took."""
        return self.clock_s / self.bound_s

    @property
    def stands_for_others(self) -> bool:
        """Whether equal steps that were left alone take about as long; they may be captured or compiled."""
        return self.whole_s is None or self.clock_s <= WATCHING_LIMIT * self.whole_s

    @property
    def unexplained_share(self) -> float:
        """What no row accounts for, as a share of the clock."""
        return self.share("unexplained")

    def to_dict(self) -> dict[str, Any]:
        """As JSON, schema ``rooflens.account/1``."""
        plain = asdict(self)
        plain["notes"] = list(self.notes)
        plain["modules"] = [asdict(module) | {"gap_s": module.gap_s} for module in self.modules]
        return {
            "schema": "rooflens.account/1",
            **plain,
            "times_bound": self.times_bound,
            "unexplained_share": self.unexplained_share,
        }


def account(ops: Iterable[Op], measured: MeasuredStep, roof: Roof) -> Account:
    """Explain ``measured`` by the predicted ``ops`` of the same step on a device with this ``roof``.

    Without module times (a compiled step) the whole forward pass is compared as one.
    """
    ops = tuple(ops)
    times = time_ops(ops, roof)
    predicted = {op.name: op for op in ops}
    found = {module.name: module for module in measured.modules}
    names = [name for name in predicted if name in found] if found else list(predicted)
    roofs = {name: _roofline(predicted[name], roof) for name in names}
    seconds = dict.fromkeys(ROWS, 0.0)
    for part in roofs.values():
        seconds[part.limited_by_row] += part.total_s - part.kv_share_s
        seconds["kv"] += part.kv_share_s
    modules = tuple(
        _module_row(predicted[name], found[name], roofs[name], measured) for name in names if found
    )
    for row in modules:
        seconds[row.kind] += row.gap_s - row.launch_s
        seconds["launch"] += row.launch_s
    _between_modules(seconds, measured, sum(part.total_s for part in roofs.values()))
    seconds["sampling"] = measured.sampling_s
    seconds["scheduling"] = measured.scheduling_s
    seconds["detokenisation"] = measured.detokenisation_s
    seconds["drafting"] = measured.drafting_s
    seconds["queues"] = measured.queues_s
    seconds["unexplained"] = measured.clock_s - sum(seconds.values())
    return Account(
        phase=measured.phase,
        steps=measured.steps,
        sequences=measured.sequences,
        new_tokens=measured.new_tokens,
        context=measured.context,
        clock_s=measured.clock_s,
        whole_s=measured.whole_s,
        spread=measured.spread,
        bound_s=float(times.bound_s),
        roofline_s=sum(_roofline(op, roof).total_s for op in ops),
        limited_by=times.limited_by,
        mfu=float(times.compute_s) / measured.clock_s,
        mbu=float(times.memory_s) / measured.clock_s,
        dispatches=measured.loose_dispatches + sum(module.dispatches for module in measured.modules),
        rows=tuple(
            AccountRow(name, group, seconds[name], seconds[name] / measured.clock_s)
            for name, group in ROWS.items()
        ),
        modules=modules,
        only_predicted=tuple(name for name in predicted if name not in found) if found else (),
        only_measured=tuple(name for name in found if name not in predicted),
        remarks=_remarks(modules, measured),
    )


@dataclass(frozen=True)
class _Roofline:
    """The least time of an operator, all places together, and what takes it."""

    compute_s: float
    memory_s: float
    kv_share: float

    @property
    def total_s(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def limited_by(self) -> str:
        return COMPUTE if self.compute_s > self.memory_s else MEMORY

    @property
    def limited_by_row(self) -> str:
        return "compute" if self.limited_by == COMPUTE else "weights"

    @property
    def kv_share_s(self) -> float:
        return self.memory_s * self.kv_share if self.limited_by == MEMORY else 0.0


def _roofline(op: Op, roof: Roof) -> _Roofline:
    cost = op.total
    flops, moved = float(cost.flops), float(cost.moved_bytes)
    compute_s = flops / roof.peaks_flops_per_s[op.compute_dtype] if flops else 0.0
    kv_bytes = float(cost.kv_read_bytes + cost.kv_write_bytes)
    return _Roofline(compute_s, moved / roof.bandwidth_bytes_per_s, kv_bytes / moved if moved else 0.0)


def _module_row(op: Op, module: MeasuredModule, part: _Roofline, measured: MeasuredStep) -> ModuleRow:
    gap_s = module.seconds - part.total_s
    return ModuleRow(
        name=op.name,
        kind=_kind(op),
        calls=module.calls,
        flops=float(op.total.flops),
        bytes=float(op.total.moved_bytes),
        limited_by=part.limited_by,
        roofline_s=part.total_s,
        measured_s=module.seconds,
        launch_s=min(max(0.0, gap_s), module.dispatches * measured.dispatch_s),
        mfu=part.compute_s / module.seconds if module.seconds else 0.0,
        mbu=part.memory_s / module.seconds if module.seconds else 0.0,
    )


def _kind(op: Op) -> str:
    if op.name.endswith(".core"):
        return "attention"
    return "matmuls" if float(op.cost.flops) else "small_operators"


def _between_modules(seconds: dict[str, float], measured: MeasuredStep, roofline_s: float) -> None:
    """What the forward pass took beyond its modules: calls into them, the timers, and framework calls."""
    if not measured.modules:
        seconds["forward"] += measured.model_s - roofline_s
        return
    timed = sum(module.calls for module in measured.modules)
    seconds["profiler"] += timed * measured.timer_s
    left_s = measured.model_s - sum(module.seconds for module in measured.modules) - seconds["profiler"]
    calls_s = measured.loose_dispatches * measured.dispatch_s + measured.module_calls * measured.module_call_s
    seconds["launch"] += min(max(0.0, left_s), calls_s + measured.around_call_s)


#: What an account remarks on, by key; report.words_account has them in Chinese.
REMARKS = {
    "faster": "faster than their roofline: {names}; the device's figures are too low, or the data came from a"
    " cache",
    "spread": "equal steps differ by {spread} (p10 to p90): other work on the machine takes part of the time",
    "watching": "with timed modules a step takes {times} times as long as left alone",
    "whole": "modules were not timed: the whole forward pass is compared as one",
}


@dataclass(frozen=True)
class Remark:
    """One of ``REMARKS`` with the figures that it quotes, formatted."""

    key: str
    figures: dict[str, str]

    @property
    def sentence(self) -> str:
        """In English."""
        return REMARKS[self.key].format(**self.figures)


def _remarks(modules: Sequence[ModuleRow], measured: MeasuredStep) -> tuple[Remark, ...]:
    remarks = []
    faster = [
        row.name for row in modules if row.gap_s < 0 and row.roofline_s > UNEXPLAINED_LIMIT * measured.clock_s
    ]
    if faster:
        remarks.append(Remark("faster", {"names": ", ".join(faster)}))
    if measured.spread > NOISY_SPREAD:
        remarks.append(Remark("spread", {"spread": format_share(measured.spread)}))
    if measured.whole_s is not None and measured.clock_s > WATCHING_LIMIT * measured.whole_s:
        remarks.append(Remark("watching", {"times": f"{measured.clock_s / measured.whole_s:.1f}"}))
    if not measured.modules:
        remarks.append(Remark("whole", {}))
    return tuple(remarks)
