"""The result file: raw samples with machine, versions and checks; a run that was stopped goes on from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.rounds import Failure, Sample
from rooflens.measure.environment import fingerprint
from rooflens.measure.storage import save_json

SCHEMA = "rooflens.benchmark.peers/1"


def processor(machine: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """(name, family, model) of a fingerprint: virtual machines give processors of any age the same name."""
    cpu = machine["cpu"]
    return cpu["name"], cpu.get("family"), cpu.get("model")


class Results:
    """One shape on one machine. Everything shown is computed from ``document``, by ``compare.py``."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path, self.document = path, document

    @classmethod
    def open(cls, path: Path, *, shape: str, threads: int) -> Results:
        """A new document, or the one in ``path`` to go on with. Raises SystemExit for one of another run."""
        machine = fingerprint(threads=threads)
        if not path.exists():
            document = {
                "schema": SCHEMA,
                "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                "shape": shape,
                "threads": threads,
                "machine": machine,
                "engines": {},
                "left_out": [],
                "failures": [],
                "rounds": {},
                "probes": {},
                "samples": [],
            }
            return cls(path, document)
        document = json.loads(path.read_text(encoding="utf-8"))
        found = (document.get("schema"), document.get("shape"), document.get("threads"),
                 *processor(document["machine"]))  # fmt: skip
        wanted = (SCHEMA, shape, threads, *processor(machine))
        if found != wanted:
            raise SystemExit(f"{path} is of another run ({found}, not {wanted}): name another with --out")
        return cls(path, document)

    def add_engine(self, name: str, weights: str, facts: dict[str, Any]) -> None:
        """What an engine says of itself and how it checked. Raises SystemExit where versions changed."""
        known = self.document["engines"].setdefault(name, {}).get(weights)
        taken = self.rounds(weights) > 0
        if known is not None and taken and known["versions"] != facts["versions"]:
            raise SystemExit(
                f"{name} was measured with {known['versions']}, now it is {facts['versions']}: "
                "name another file with --out"
            )
        self.document["engines"][name][weights] = facts

    def leave_out(self, engine: str, weights: str, why: str) -> None:
        """An engine without results in a format, and why; the newest reason stands."""
        rows = [
            row for row in self.document["left_out"] if (row["engine"], row["weights"]) != (engine, weights)
        ]
        self.document["left_out"] = [*rows, {"engine": engine, "weights": weights, "why": why}]

    def welcome(self, engine: str, weights: str) -> None:
        """Forget that an engine was left out."""
        rows = self.document["left_out"]
        self.document["left_out"] = [
            row for row in rows if (row["engine"], row["weights"]) != (engine, weights)
        ]

    def fail(self, failure: Failure, weights: str) -> None:
        """A case that an engine could not run."""
        self.document["failures"].append({**vars(failure), "weights": weights})

    def keep(self, sample: Sample) -> None:
        """A sample."""
        self.document["samples"].append(sample.to_dict())

    def rounds(self, weights: str) -> int:
        """Whole rounds so far."""
        return int(self.document["rounds"].get(weights, 0))

    def finish_round(self, weights: str) -> None:
        """Count a round and save."""
        self.document["rounds"][weights] = self.rounds(weights) + 1
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_json(self.document, self.path)
