"""Published measurements as one table: a CSV file's rows, checked one by one, bad ones told by row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflens.analysis.measurement import METRICS, OUTPUT_RATE, PREFILL_RATE, TTFT, Measurement
from rooflens.errors import InputError

REQUIRED = ("device", "model", "metric", "value")
OPTIONAL = (
    "row_id", "source_id", "n_devices", "tp", "pp", "ep", "dp", "engine", "engine_version", "weight_format",
    "kv_dtype", "batch", "input_len", "output_len", "context_start", "grade", "flags", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A row that cannot be used, and why."""

    row_id: str
    line: int
    why: str

    def to_dict(self) -> dict[str, str | int]:
        """As JSON."""
        return {"row_id": self.row_id, "line": self.line, "why": self.why}


@dataclass(frozen=True)
class MeasurementFile:
    """The usable rows of a file, and the others."""

    rows: tuple[Measurement, ...]
    problems: tuple[Problem, ...]


def load_measurements(path: str | Path) -> MeasurementFile:
    """Read a CSV file of measurements. Raises InputError where it is no such file at all."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the measurements file cannot be read: {error}", value=str(path)) from None
    return read_measurements(text.splitlines(keepends=True))


def read_measurements(lines: Iterable[str]) -> MeasurementFile:
    """The rows of a CSV text with a header. Bad rows become ``problems``; the rest is kept.

    Needs the columns of ``REQUIRED``; raises InputError naming those that are missing.
    """
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise InputError(
            f"the measurements file lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            value=", ".join(columns) or "an empty file",
            allowed=f"columns {', '.join(REQUIRED)}, and any of {', '.join(OPTIONAL)}",
        )
    rows: list[Measurement] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for fields in reader:
        line = reader.line_num
        name = (fields.get("row_id") or "").strip() or f"line {line}"
        try:
            if name in seen:
                raise _BadField("row_id appears twice")
            seen.add(name)
            rows.append(_row(name, line, fields))
        except _BadField as error:
            problems.append(Problem(name, line, str(error)))
    return MeasurementFile(tuple(rows), tuple(problems))


class _BadField(ValueError):
    """Why a row is unusable, in one clause."""


def _row(name: str, line: int, fields: dict[str, str | None]) -> Measurement:
    def text(field: str) -> str:
        return (fields.get(field) or "").strip()

    def whole(field: str, default: int, least: int) -> int:
        given = text(field)
        if not given:
            return default
        number = _number(given, field)
        if number != int(number) or number < least:
            raise _BadField(f"{field} is {given}, not a whole number from {least}")
        return int(number)

    if None in fields:
        raise _BadField("the row has more fields than the header")
    for field in ("device", "model"):
        if not text(field):
            raise _BadField(f"{field} is empty")
    metric = text("metric")
    if metric not in METRICS:
        raise _BadField(f"metric is {metric or 'empty'}, not one of {', '.join(METRICS)}")
    value = _number(text("value"), "value")
    if value <= 0:
        raise _BadField(f"value is {text('value')}: a time or rate is above zero")
    tp, pp, dp = whole("tp", 1, 1), whole("pp", 1, 1), whole("dp", 1, 1)
    devices = whole("n_devices", tp * pp * dp, 1)
    if tp * pp * dp != devices:
        raise _BadField(f"tp x pp x dp = {tp * pp * dp} is not n_devices {devices}")
    row = Measurement(
        row_id=name,
        line=line,
        source_id=text("source_id") or "this file",
        device=text("device"),
        devices=devices,
        tp=tp,
        pp=pp,
        ep=whole("ep", 1, 1),
        dp=dp,
        engine=text("engine") or "none",
        model=text("model"),
        weight_format=text("weight_format"),
        kv_dtype=text("kv_dtype"),
        batch=whole("batch", 1, 1),
        input_tokens=whole("input_len", 0, 0),
        output_tokens=whole("output_len", 0, 0),
        context_start=whole("context_start", 0, 0),
        metric=metric,
        value=value,
        grade=text("grade"),
        flags=tuple(flag for flag in text("flags").split(";") if flag),
        notes=text("notes"),
    )
    for problem in _impossible(row):
        raise _BadField(problem)
    return row


def _number(text: str, field: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _BadField(
            f"{field} is '{text}', not a plain number (units belong to the metric's name)"
        ) from None
    if not math.isfinite(number):
        raise _BadField(f"{field} is {text}, not a finite number")
    return number


def _impossible(row: Measurement) -> Iterator[str]:
    """What the row's own fields contradict."""
    if row.metric in (TTFT, PREFILL_RATE) and row.input_tokens == 0:
        yield f"input_len is 0 or empty, which {row.metric} needs"
    if row.metric == OUTPUT_RATE and row.output_tokens == 0:
        yield "output_len is 0 or empty, which output_tok_s needs"
