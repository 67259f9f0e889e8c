"""What measured runs say of the estimate: how far it was off, where it moves to, how much it narrows."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Any

from rooflens.analysis.calibration import calibration
from rooflens.analysis.own_runs import OwnRuns, Residuals, residuals_of
from rooflens.analysis.validate import WIDTH_OF, Validation
from rooflens.display import Displayed
from rooflens.errors import InputError


@dataclass(frozen=True)
class Tightening:
    """One device, engine and kind of figure before and after: ratios of time.

    ``shift`` is what the likely time is multiplied by; ``before`` and ``after`` are high over low.
    """

    residuals: Residuals
    shift: float
    before: float
    after: float

    @property
    def narrower_by(self) -> float:
        """How much of the range, in logarithms, the runs take away; negative where they are wider spread."""
        return 1 - log(self.after) / log(self.before)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "device": self.residuals.device,
            "engine": self.residuals.engine,
            "kind": self.residuals.kind,
            "runs": len(self.residuals.logs),
            "shift": self.shift,
            "high_over_low_before": self.before,
            "high_over_low_after": self.after,
            "narrower_by": self.narrower_by,
        }


@dataclass(frozen=True)
class CalibrationResult(Displayed):
    """What ``rooflens calibrate`` answers; ``own`` is what is saved, ``path`` where it was."""

    own: OwnRuns
    tightened: tuple[Tightening, ...]
    unusable: tuple[tuple[str, str], ...]
    path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": "rooflens.calibrate_result/1",
            "path": self.path,
            "tightened": [one.to_dict() for one in self.tightened],
            "unusable": [{"row": row, "why": why} for row, why in self.unusable],
        }


def calibrate_runs(judged: Validation, *, files: tuple[str, ...], created: str) -> CalibrationResult:
    """Residuals of the runs that can be used; raises InputError where there is none.

    Flagged rows, rows faster than the bound and rows without an estimate are left out, each with its reason.
    """
    unusable = [(name, why) for name, _, why in judged.problems]
    unusable += [(f"{count} rows", why) for why, count in judged.skipped]
    rows = []
    for one in judged.judged:
        row = one.case.row
        if one.flagged:
            unusable.append((row.row_id, f"flagged {'; '.join(row.flags)}"))
        elif one.beats_bound:
            unusable.append((row.row_id, f"faster than the bound: {one.hint()}"))
        elif one.mid_s is None:
            unusable.append((row.row_id, f"no peak is known of {one.case.device.id}"))
        else:
            kind = WIDTH_OF[one.case.kind]
            rows.append((one.case.device.id, row.engine.lower(), kind, one.measured_s, one.mid_s))
    if not rows:
        reasons = "; ".join(why for _, why in unusable[:3])
        raise InputError(
            "no run can be used",
            value=", ".join(files),
            next=f"the rows were left out: {reasons}" if reasons else "give a file with rows",
        )
    own = OwnRuns(residuals_of(rows), files, created)
    widths = calibration().widths()
    tightened = []
    for residuals in own.residuals:
        before = widths[residuals.kind]
        shift, after = residuals.updated(before)
        tightened.append(
            Tightening(residuals, exp(shift), exp(before[1] - before[0]), exp(after[1] - after[0]))
        )
    return CalibrationResult(own, tuple(tightened), tuple(unusable))
