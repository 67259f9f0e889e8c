"""Measurements of others and of one's own against the bound and the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rooflens.errors import InputError

if TYPE_CHECKING:
    from rooflens.analysis.calibrate import CalibrationResult
    from rooflens.analysis.validate import Validation


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
