"""Probe records: raw samples with the environment they were taken in, as versioned JSON.

What follows from the samples (roofs, flags, lab rows) is recomputed from them on reading; a file whose
printed figures do not follow from its samples is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from rooflens.display import Displayed
from rooflens.errors import InputError
from rooflens.measure.activity import Activity, noise
from rooflens.measure.statistics import Summary, summarize
from rooflens.units import format_seconds

SCHEMA = "rooflens.probe/1"
SLOW_REGION = 20
"""A parallel region costs about as much as the smallest work worth sharing; this many times is waiting."""
_SAME = 1e-6

Unit = Literal["bytes_per_s", "flops_per_s", "s"]
_UNITS = ("bytes_per_s", "flops_per_s", "s")


@dataclass(frozen=True)
class Measurement:
    """One figure: ``amount`` of bytes, FLOPs or operations per call over the seconds of a call.

    In unit ``s`` the figure is seconds per operation. ``tried`` holds the medians of other ways to do the
    same work, by method, where the fastest was taken.
    """

    name: str
    unit: Unit
    amount: float
    samples_s: tuple[float, ...]
    calls_per_batch: int
    converged: bool
    method: str
    parameters: Mapping[str, int | float | str] = field(default_factory=dict)
    tried: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def seconds(self) -> Summary:
        """Seconds per call."""
        return summarize(self.samples_s)

    @property
    def value(self) -> float:
        """The figure: median, in ``unit``."""
        return self._figure(self.seconds.median)

    @property
    def low(self) -> float:
        """The tenth percentile of the figure."""
        return self._figure(self.seconds.p10 if self.unit == "s" else self.seconds.p90)

    @property
    def high(self) -> float:
        """The ninetieth percentile of the figure."""
        return self._figure(self.seconds.p90 if self.unit == "s" else self.seconds.p10)

    def _figure(self, seconds: float) -> float:
        return seconds / self.amount if self.unit == "s" else self.amount / seconds

    def to_dict(self) -> dict[str, Any]:
        """As JSON, raw samples included."""
        return {
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "p10": self.low,
            "p90": self.high,
            "converged": self.converged,
            "method": self.method,
            "parameters": dict(self.parameters),
            "tried": dict(self.tried),
            "amount_per_call": self.amount,
            "calls_per_batch": self.calls_per_batch,
            "samples_s": list(self.samples_s),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Measurement:
        """The inverse of ``to_dict``; InputError for a figure that does not follow from its samples."""
        try:
            measurement = cls(
                name=_string(data["name"]),
                unit=data["unit"],
                amount=float(data["amount_per_call"]),
                samples_s=tuple(float(value) for value in data["samples_s"]),
                calls_per_batch=int(data["calls_per_batch"]),
                converged=bool(data["converged"]),
                method=_string(data["method"]),
                parameters=dict(data["parameters"]),
                tried={name: float(value) for name, value in data["tried"].items()},
            )
            stated = float(data["value"])
            sound = measurement.unit in _UNITS and measurement.amount > 0
            follows = sound and math.isclose(measurement.value, stated, rel_tol=_SAME)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "probe record has a measurement that cannot be read",
                value=f"{type(error).__name__}: {error}",
                next="measure again with `rooflens probe`",
            ) from None
        if not follows:
            raise InputError(
                f"probe record's figure '{measurement.name}' does not follow from its samples",
                value=data["value"],
                next="measure again with `rooflens probe`",
            )
        return measurement


@dataclass(frozen=True)
class ProbedDevice:
    """Which device was measured. ``target`` is torch's name for it, ``spec`` the catalogue's id if known.

    ``threads`` is how many threads a CPU was measured with; ``caches`` its cache sizes in bytes.
    """

    target: str
    kind: str
    name: str
    memory_bytes: int | None
    spec: str | None = None
    threads: int | None = None
    cores: int | None = None
    caches: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target,
            "kind": self.kind,
            "name": self.name,
            "memory_bytes": self.memory_bytes,
            "spec": self.spec,
            "threads": self.threads,
            "cores": self.cores,
            "caches_bytes": dict(self.caches),
        }

    @classmethod
    def from_dict(cls, data: Any) -> ProbedDevice:
        """The inverse of ``to_dict``."""
        return cls(
            target=_string(data["target"]),
            kind=_string(data["kind"]),
            name=_string(data["name"]),
            memory_bytes=data["memory_bytes"],
            spec=data["spec"],
            threads=data["threads"],
            cores=data["cores"],
            caches=dict(data["caches_bytes"]),
        )


@dataclass(frozen=True)
class Skipped:
    """A measurement that was not made, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class ProbeRecord(Displayed):
    """One run of the probe. ``finished`` is False if it was interrupted; what was done is kept.

    ``created`` is UTC in ISO 8601.
    """

    created: str
    mode: str
    finished: bool
    duration_s: float
    device: ProbedDevice
    environment: Mapping[str, Any]
    activity: Activity
    measurements: tuple[Measurement, ...]
    skipped: tuple[Skipped, ...] = ()

    def find(self, name: str) -> Measurement | None:
        """The measurement of that name, if it was made."""
        return next((item for item in self.measurements if item.name == name), None)

    def under(self, prefix: str) -> tuple[Measurement, ...]:
        """Measurements whose dotted name begins with ``prefix`` and a dot."""
        return tuple(item for item in self.measurements if item.name.startswith(f"{prefix}."))

    @property
    def noise(self) -> list[str]:
        """Why this run deserves less trust, if it does: one sentence each."""
        spreads = [(item.name, item.seconds.spread) for item in self.measurements]
        return [*self._neighbours(), *self._held_threads(), *noise(self.activity, spreads)]

    def _held_threads(self) -> list[str]:
        """A parallel region that waits for a thread which another process keeps from running."""
        one, every = self.find("dispatch.region_one_thread"), self.find("dispatch.region_all_threads")
        if one is None or every is None or every.value < SLOW_REGION * one.value:
            return []
        return [
            f"threads wait for one another for {format_seconds(every.value - one.value)} where work of "
            f"{format_seconds(one.value)} is shared out: another process holds a core, and every figure of "
            "more than one thread suffers"
        ]

    def _neighbours(self) -> list[str]:
        """Other processes on an accelerator, where its driver names them."""
        state = self.environment.get("accelerator") or {}
        others = [str(item.get("name")) for item in state.get("other_processes") or []]
        if not others:
            return []
        return [f"{len(others)} other processes use {self.device.name} ({', '.join(others[:3])}): stop them"]

    def to_dict(self) -> dict[str, Any]:
        """The whole document: what was measured, then what follows from it."""
        from rooflens.measure.checks import sanity_flags
        from rooflens.measure.lab import exercises
        from rooflens.measure.roofs import roofs

        return {
            "schema": SCHEMA,
            "created": self.created,
            "mode": self.mode,
            "finished": self.finished,
            "duration_s": self.duration_s,
            "device": self.device.to_dict(),
            "roofs": roofs(self).to_dict(),
            "flags": [flag.to_dict() for flag in sanity_flags(self)],
            "noise": self.noise,
            "lab": [exercise.to_dict() for exercise in exercises(self)],
            "skipped": [{"name": item.name, "why": item.why} for item in self.skipped],
            "activity": self.activity.to_dict(),
            "environment": dict(self.environment),
            "measurements": [item.to_dict() for item in self.measurements],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProbeRecord:
        """Read a document back. Raises InputError for another schema or version, or damaged content."""
        schema = data.get("schema")
        if schema != SCHEMA:
            newer = isinstance(schema, str) and schema.startswith(SCHEMA.partition("/")[0] + "/")
            raise InputError(
                "probe record is of another version" if newer else "file is not a probe record",
                value=schema,
                allowed=f"schema {SCHEMA}",
                next="measure again with `rooflens probe`",
            )
        try:
            return cls(
                created=_string(data["created"]),
                mode=_string(data["mode"]),
                finished=bool(data["finished"]),
                duration_s=float(data["duration_s"]),
                device=ProbedDevice.from_dict(data["device"]),
                environment=dict(data["environment"]),
                activity=Activity.from_dict(data["activity"]),
                measurements=_unique(Measurement.from_dict(item) for item in data["measurements"]),
                skipped=tuple(Skipped(item["name"], item["why"]) for item in data["skipped"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "probe record lacks a field or has one of a wrong type",
                value=f"{type(error).__name__}: {error}",
                next="measure again with `rooflens probe`",
            ) from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _unique(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    found = tuple(measurements)
    names = [item.name for item in found]
    if len(set(names)) != len(names):
        raise ValueError("a measurement occurs twice")
    return found
