"""The user's own measured runs: how far they are from the estimate, and what that says of the next ones.

The logarithm of measured over estimated time is the sum of what all runs on one device and engine share
and of what differs between them. The estimate's interval is the prior of the sum; runs reveal the shared
part (a normal update), so the range moves to where they are and keeps only what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

from rooflens.analysis.calibration import engine_class
from rooflens.errors import InputError
from rooflens.hardware.device import Device

SCHEMA = "rooflens.calibrate/1"
SHARED = 0.8
"""Part of the variance between sources that is the same for all runs of one device and engine (assumed)."""
_DEVIATIONS = 1.2816  # of a normal distribution, 80 % lies within this many on either side


@dataclass(frozen=True)
class Residuals:
    """Runs of one device, engine and kind of figure: logarithms of measured over estimated time."""

    device: str
    engine: str
    kind: str
    logs: tuple[float, ...]

    def updated(self, width: tuple[float, float]) -> tuple[float, tuple[float, float]]:
        """(shift of the likely time, new width around it), both logarithms, from a width without runs."""
        low, high = width
        prior_mean, prior_var = (low + high) / 2, ((high - low) / 2 / _DEVIATIONS) ** 2
        shared, within = SHARED * prior_var, (1 - SHARED) * prior_var
        count = len(self.logs)
        mean = sum(self.logs) / count
        seen = sum((value - mean) ** 2 for value in self.logs) / max(1, count - 1)
        # Few runs say little of how they differ: their spread counts as one more than the prior's.
        within = (within + (count - 1) * seen) / count
        known = shared / (shared + within / count)
        shift = prior_mean + known * (mean - prior_mean)
        half = _DEVIATIONS * sqrt(shared * (1 - known) + within)
        return shift, (-half, half)


@dataclass(frozen=True)
class OwnRuns:
    """All residuals of a set of runs; ``files`` are what they were read from."""

    residuals: tuple[Residuals, ...]
    files: tuple[str, ...] = ()
    created: str | None = None

    def apply(
        self, device: Device, engine: str, widths: Mapping[str, tuple[float, float]], source: str
    ) -> tuple[dict[str, float], dict[str, tuple[float, float]], str]:
        """Shifts and widths by kind of figure for a device and engine, and the source to be named."""
        shifts: dict[str, float] = {}
        narrowed = dict(widths)
        used = 0
        for own in self.residuals:
            if own.device == device.id and _same_engine(own.engine, engine) and own.kind in widths:
                shifts[own.kind], narrowed[own.kind] = own.updated(widths[own.kind])
                used += len(own.logs)
        return shifts, narrowed, f"{source}, and {used} own runs" if used else source

    def to_dict(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "schema": SCHEMA,
            "created": self.created,
            "files": list(self.files),
            "residuals": [
                {"device": one.device, "engine": one.engine, "kind": one.kind, "logs": list(one.logs)}
                for one in self.residuals
            ],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> OwnRuns:
        """Read what ``to_dict`` wrote. Raises InputError for anything else."""
        if document.get("schema") != SCHEMA:
            raise InputError("the file is no calibration", value=document.get("schema"), allowed=SCHEMA)
        try:
            residuals = tuple(
                Residuals(
                    str(one["device"]),
                    str(one["engine"]),
                    str(one["kind"]),
                    tuple(float(x) for x in one["logs"]),
                )
                for one in document["residuals"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the calibration file is damaged: {error}") from None
        if any(not one.logs for one in residuals):
            raise InputError("the calibration file is damaged: a kind without runs")
        return cls(residuals, tuple(document.get("files", ())), document.get("created"))


def _same_engine(one: str, other: str) -> bool:
    return engine_class(one, "") == engine_class(other, "")


def residuals_of(rows: Iterable[tuple[str, str, str, float, float]]) -> tuple[Residuals, ...]:
    """From (device, engine, kind, measured seconds, estimated seconds) of every run."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for device, engine, kind, measured_s, estimated_s in rows:
        found.setdefault((device, engine, kind), []).append(log(measured_s / estimated_s))
    return tuple(Residuals(*key, tuple(logs)) for key, logs in sorted(found.items()))
