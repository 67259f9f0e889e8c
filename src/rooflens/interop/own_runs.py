"""Where the user's own runs are kept, beside the probes."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from rooflens.analysis.own_runs import OwnRuns
from rooflens.errors import NotFoundError
from rooflens.measure.storage import data_home, save_json
from rooflens.models.json_input import read_json_object

LATEST = "latest"


def runs_folder() -> Path:
    """Where calibrations are saved when no file is named."""
    return data_home() / "calibrations"


def save_own_runs(own: OwnRuns, path: Path | None = None) -> Path:
    """Write a calibration whole; returns where. Raises InputError where that is not possible."""
    if path is None:
        when = re.sub(r"[^0-9TZ]", "", own.created or "undated")
        path = runs_folder() / f"{when}.json"
        with suppress(OSError):  # save_json says why the folder cannot be
            path.parent.mkdir(parents=True, exist_ok=True)
    save_json(own.to_dict(), path)
    return path


def load_own_runs(path: str | Path) -> OwnRuns:
    """A saved calibration, or the ``latest`` one. Raises NotFoundError or InputError."""
    if str(path) == LATEST:
        saved = sorted(runs_folder().glob("*.json"))
        if not saved:
            raise NotFoundError(
                "no calibration is saved",
                value=str(runs_folder()),
                next="make one with `rooflens calibrate RUNS.csv`",
            )
        path = saved[-1]
    found = Path(path).expanduser()
    if not found.is_file():
        raise NotFoundError("the calibration does not exist", value=str(path), next="check the path")
    return OwnRuns.from_dict(read_json_object(found, what="calibration"))
