"""Measurements against the bound and the estimate: which rows are impossible, and how far off we are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from rooflens.analysis.calibration import Calibration, calibration, device_class
from rooflens.analysis.cases import Case, Kind, Term, bound_terms, groups
from rooflens.analysis.communication import communication_bytes
from rooflens.analysis.estimate import DECODE, DECODE_1, PREFILL, SERVED_TTFT
from rooflens.analysis.features import Array, case_roof, features_of, predict, term_step
from rooflens.analysis.measurement import Measurement
from rooflens.analysis.on_chip import cache_bytes
from rooflens.analysis.parallelism import rank_specs
from rooflens.analysis.roofline import Roof, StepTimes, time_ops
from rooflens.analysis.step import step_ops
from rooflens.display import Displayed
from rooflens.units import KILO

WIDTH_OF = {
    Kind.DECODE_1: DECODE_1,
    Kind.DECODE: DECODE,
    Kind.SERVED_TPOT: DECODE,
    Kind.PREFILL: PREFILL,
    Kind.SERVED_TTFT: SERVED_TTFT,
}
# A figure this close over the bound is the bound, given how sources round.
ROUNDING = 0.005
# A row up to this many times slower than likely still reads like a time in that unit.
_PLAUSIBLE = 3


@dataclass(frozen=True)
class Judged:
    """One measured row with its bound and likely range, in seconds.

    The range is None where the device's peak is not known, which only decode can do without.
    """

    case: Case
    measured_s: float
    bound_s: float
    low_s: float | None
    mid_s: float | None
    high_s: float | None
    exception: str | None = None

    @property
    def flagged(self) -> bool:
        """Whether the source's curator warns of the row: it is checked, but counts in no statistic."""
        return bool(self.case.row.flags)

    @property
    def beats_bound(self) -> bool:
        """Faster than is possible: the row, the device's figures or the bound is wrong."""
        return self.measured_s < self.bound_s * (1 - ROUNDING)

    @property
    def error(self) -> float | None:
        """Likely over measured, less 1."""
        return None if self.mid_s is None else self.mid_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time is within the range."""
        if self.low_s is None or self.high_s is None:
            return False
        return bool(self.low_s <= self.measured_s <= self.high_s)

    def hint(self) -> str:
        """Why a row beats the bound, as far as its size tells."""
        if self.exception:
            return self.exception
        if self.case.row.metric.endswith("_ms") and self.high_s is not None:
            for factor, unit in ((KILO, "seconds"), (KILO * KILO, "kiloseconds")):
                if self.bound_s <= self.measured_s * factor <= _PLAUSIBLE * self.high_s:
                    return f"the value reads like {unit}, not milliseconds"
        return "check the units, the number of devices, the format, and whether tokens were shared or cached"

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON."""
        row = self.case.row
        return {
            "row_id": row.row_id,
            "line": row.line,
            "source": row.source_id,
            "device": self.case.device.id,
            "engine": row.engine,
            "model": row.model,
            "metric": row.metric,
            "value": row.value,
            "measured_s": self.measured_s,
            "bound_s": self.bound_s,
            "bound_over_measured": self.bound_s / self.measured_s,
            "why": self.hint() if self.beats_bound else None,
        }


@dataclass(frozen=True)
class Group:
    """Errors of the rows that share a value: ``by`` says of what."""

    by: str
    name: str
    kind: str
    rows: int
    median_abs_error: float
    bias: float
    coverage: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON; shares, not percentages."""
        return {
            "by": self.by,
            "name": self.name,
            "kind": self.kind,
            "rows": self.rows,
            "median_abs_error": self.median_abs_error,
            "bias": self.bias,
            "coverage": self.coverage,
        }


@dataclass(frozen=True)
class Validation(Displayed):
    """What ``rooflens validate`` says of a file."""

    judged: tuple[Judged, ...]
    problems: tuple[tuple[str, int, str], ...]
    skipped: tuple[tuple[str, int], ...]

    @property
    def beating(self) -> tuple[Judged, ...]:
        """Unflagged rows faster than the bound, worst first, known exceptions left out."""
        rows = [one for one in self.judged if one.beats_bound and not one.flagged and not one.exception]
        return tuple(sorted(rows, key=lambda one: one.measured_s / one.bound_s))

    @property
    def excepted(self) -> tuple[Judged, ...]:
        """Rows faster than the bound that a committed list explains."""
        return tuple(one for one in self.judged if one.beats_bound and one.exception)

    @property
    def sound(self) -> bool:
        """Whether no unflagged row beats the bound."""
        return not self.beating

    def groups(self) -> tuple[Group, ...]:
        """Errors by kind of figure, then within each by source, engine, class of device, kind of model."""
        return tuple(_groups([one for one in self.judged if not one.flagged and one.mid_s is not None]))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        flagged = [one for one in self.judged if one.flagged]
        return {
            "schema": "rooflens.validate/1",
            "rows": len(self.judged) + len(self.problems) + sum(count for _, count in self.skipped),
            "judged": len(self.judged) - len(flagged),
            "flagged": len(flagged),
            "flagged_beating_bound": sum(one.beats_bound for one in flagged),
            "sound": self.sound,
            "beating_bound": [one.to_dict() for one in self.beating],
            "excepted": [one.to_dict() for one in self.excepted],
            "problems": [{"row_id": name, "line": line, "why": why} for name, line, why in self.problems],
            "skipped": [{"why": why, "rows": rows} for why, rows in self.skipped],
            "errors": [group.to_dict() for group in self.groups()],
        }


def validate_cases(
    cases: Sequence[Case],
    *,
    problems: Iterable[tuple[str, int, str]] = (),
    skipped: Mapping[str, int] | None = None,
    exceptions: Mapping[str, str] | None = None,
    fitted: Calibration | None = None,
) -> Validation:
    """Judge every case. Rows with more tokens than the model's context become problems, the rest is kept."""
    fitted = fitted or calibration()
    listed = dict(exceptions or {})
    found = [*problems]
    kept = []
    counts = Counter(skipped or {})
    for case in cases:
        longest, most = held_tokens(case.row), case.spec.max_context
        if most is not None and longest > most and not case.row.flags and case.row.row_id not in listed:
            found.append(
                (
                    case.row.row_id,
                    case.row.line,
                    f"{longest} tokens are more than the model's context of {most}",
                )
            )
        else:
            kept.append(case)
    if not kept:
        return Validation((), tuple(found), tuple(counts.most_common()))
    features = features_of(kept)
    likely, limits = predict(features, fitted), bounds(kept)
    widths = fitted.widths()
    judged = []
    for case, usable, mid, bound in zip(kept, features.usable, likely.tolist(), limits.tolist(), strict=True):
        low = high = middle = None
        if usable:
            below, above = widths[WIDTH_OF[case.kind]]
            mid = middle = max(mid, bound)
            low, high = max(mid * exp(below), bound), mid * exp(above)
        elif case.kind is Kind.PREFILL:
            counts[f"no peak is known of {case.device.id}"] += 1
            continue
        judged.append(Judged(case, case.row.seconds, bound, low, middle, high, listed.get(case.row.row_id)))
    return Validation(tuple(judged), tuple(found), tuple(counts.most_common()))


def held_tokens(row: Measurement) -> int:
    """The longest a sequence gets; the last token that is put out is never put back in."""
    return row.context_start + row.input_tokens + max(0, row.output_tokens - 1)


def bounds(cases: Sequence[Case]) -> Array:
    """Seconds that nothing can beat, for every case.

    What fits in the caches of the chip need not be read again: a step is charged the bytes beyond them.
    """
    result = np.zeros(len(cases))
    for indices in groups(cases).values():
        first = cases[indices[0]]
        roof, _ = case_roof(first)
        pairs: list[tuple[int, Term]] = [(i, term) for i in indices for term in bound_terms(cases[i].row)]
        step = term_step([term for _, term in pairs])
        sent = communication_bytes(first.spec, first.layout, tokens=step.tokens, least=True)
        cached = cache_bytes(first.device)
        stages = [
            _bound(
                time_ops(step_ops(stage, step, kv_dtype=first.kv_dtype), roof, communication_bytes=sent),
                roof,
                cached,
            )
            for stage in rank_specs(first.spec, first.layout)
        ]
        # Stages work side by side on several sequences or chunks; a single token passes them in turn.
        stacked = np.stack([np.broadcast_to(stage, step.tokens.shape) for stage in stages])
        seconds = np.where(step.tokens > 1, stacked.max(axis=0), stacked.sum(axis=0))
        times = np.array([term.times for _, term in pairs])
        result += np.bincount([i for i, _ in pairs], seconds * times, minlength=len(cases))
    return result


def _bound(times: StepTimes, roof: Roof, cached: float) -> Array:
    memory_s = np.maximum(times.memory_s - cached / roof.bandwidth_bytes_per_s, 0)
    seconds: Array = np.maximum(np.maximum(times.compute_s, memory_s), times.communication_s)
    return seconds


def _groups(rows: Sequence[Judged]) -> Iterator[Group]:
    def parts(one: Judged) -> Iterator[tuple[str, str]]:
        yield "all", "all"
        yield "source", one.case.row.source_id
        yield "engine", one.case.row.engine
        yield "device", device_class(one.case.device)
        yield "model", "experts" if one.case.sparse else "dense"

    found: dict[tuple[str, str, str], list[Judged]] = {}
    for one in rows:
        for by, name in parts(one):
            found.setdefault((one.case.kind.value, by, name), []).append(one)
    for (kind, by, name), members in sorted(found.items()):
        errors = np.array([one.error for one in members])
        yield Group(
            by=by,
            name=name,
            kind=kind,
            rows=len(members),
            median_abs_error=float(np.median(np.abs(errors))),
            bias=float(np.median(errors)),
            coverage=sum(one.inside for one in members) / len(members),
        )
