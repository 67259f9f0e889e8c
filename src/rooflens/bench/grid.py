"""A whole benchmark: case after case, kept after each, taken up again where it was interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rooflens.bench.answers import CutShortError
from rooflens.bench.cases import GRIDS, Case, Kind, Size
from rooflens.bench.fit import capacity_bytes, why_not
from rooflens.bench.knee import batch_knee
from rooflens.bench.measure import run_case
from rooflens.display import Displayed
from rooflens.errors import RooflensError
from rooflens.hardware.device import Device
from rooflens.measure.environment import fingerprint
from rooflens.measure.storage import data_home, save_json
from rooflens.models.json_input import read_json_object
from rooflens.reading import Reading
from rooflens.runtime.backend import NativeBackend
from rooflens.units import MIB

SCHEMA = "rooflens.bench/1"
_LIMIT_BYTES = 256 * MIB
DONE, SKIPPED, FAILED = "done", "skipped", "failed"


@dataclass(frozen=True)
class Bench(Displayed):
    """A benchmark's results. ``points``: a row for each case, with ``status`` and where needed ``reason``.

    ``cases``: how many the whole of it has.
    """

    kind: Kind
    size: Size
    model: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    points: tuple[dict[str, Any], ...]
    finished: bool
    cases: int
    resumed: int = 0
    reading: Reading | None = None
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "size": self.size,
            "model": self.model,
            "settings": self.settings,
            "environment": self.environment,
            "finished": self.finished,
            "cases": self.cases,
            "reading": None if self.reading is None else self.reading.to_dict(),
            "points": list(self.points),
        }


def run_bench(
    backend: NativeBackend,
    kind: Kind,
    size: Size,
    *,
    model: str,
    cases: Sequence[Case] | None = None,
    device: Device | None = None,
    draft: NativeBackend | None = None,
    fresh: bool = False,
    progress: Callable[[int, int, Case], object] = lambda done, all_, case: None,
) -> Bench:
    """Run the grid. An interrupted run of the same model and machine is continued, unless ``fresh``.

    ``cases`` in place of those of ``kind`` and ``size``; ``device`` and ``draft`` as in ``run_case``.
    ``progress`` is told (cases done, of how many, the next one). Ctrl-C ends it after the step at hand: the
    cases so far are kept, and ``finished`` is False.
    """
    cases = GRIDS[kind][size] if cases is None else cases
    settings = _settings(backend, device)
    if kind == "speculative":
        settings["draft"] = None if draft is None else _held(draft)
    environment = fingerprint(torch=torch, threads=torch.get_num_threads())
    path = _state_path(kind, size, cases, model, settings, environment)
    points = [] if fresh else _earlier(path)
    resumed = len(points)
    capacity = capacity_bytes(backend)
    finished = True
    for number in range(resumed, len(cases)):
        case = cases[number]
        progress(number, len(cases), case)
        try:
            points.append(case.to_dict() | _measured(backend, kind, case, device, draft, capacity))
        except CutShortError:
            finished = False
            break
        _save(Bench(kind, size, model, settings, environment, tuple(points), False, len(cases)), path)
    if finished:
        path.unlink(missing_ok=True)
    reading = None
    if kind == "batch" and device is not None:
        reading = batch_knee(points, backend.spec, device, kv_dtype=backend.kv_dtype)
    return Bench(
        kind,
        size,
        model,
        settings,
        environment,
        tuple(points),
        finished,
        len(cases),
        resumed=resumed,
        reading=reading,
    )


def _measured(
    backend: NativeBackend,
    kind: Kind,
    case: Case,
    device: Device | None,
    draft: NativeBackend | None,
    capacity: int | None,
) -> dict[str, Any]:
    reason = why_not(backend, case, capacity=capacity)
    if reason is not None:
        return {"status": SKIPPED, "reason": reason}
    try:
        figures = run_case(backend, kind, case, device=device, draft=draft)
    except CutShortError:
        raise
    except RooflensError as error:
        return {"status": FAILED, "reason": error.sentence()}
    return {"status": DONE, "reason": None, **figures}


def _settings(backend: NativeBackend, device: Device | None) -> dict[str, Any]:
    return {
        **_held(backend),
        "context": backend.context,
        "random_weights": backend.report.format == "random",
        "kernels": dict(backend.report.kernels),
        "compared_with": None if device is None else device.name,
        "roof": None if device is None else _roof(device),
    }


def _held(backend: NativeBackend) -> dict[str, Any]:
    return {
        "model": backend.spec.name,
        "dtype": backend.dtype_name,
        "kv_dtype": backend.kv_dtype,
        "device": str(backend.device),
        "weights": dict(backend.report.held),
    }


def _roof(device: Device) -> dict[str, Any]:
    """The figures that predictions stand on, and where they are from."""
    return {
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "evidence": device.bandwidth_evidence,
        "peaks_flops_per_s": device.peaks_flops_per_s,
    }


def _state_path(
    kind: Kind,
    size: Size,
    cases: Sequence[Case],
    model: str,
    settings: dict[str, Any],
    environment: dict[str, Any],
) -> Path:
    """Where an unfinished run is kept: another model, setting or machine has another place."""
    same = {name: environment[name] for name in ("rooflens", "torch", "threads", "architecture")}
    cpu = environment["cpu"]
    same["cpu"] = [cpu.get("name"), cpu.get("usable_cores")]
    whole = json.dumps([model, settings, same, [case.to_dict() for case in cases]], sort_keys=True)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return data_home() / "benches" / f"{kind}-{size}-{digest}.json"


def _earlier(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    document = read_json_object(path, what="unfinished benchmark", limit_bytes=_LIMIT_BYTES)
    return list(document["points"])


def _save(bench: Bench, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_json(bench.to_dict(), path)
