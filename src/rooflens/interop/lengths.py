"""Request lengths from a file: a table of pairs or a histogram, or records of a benchmark's dataset."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rooflens.errors import InputError, NotFoundError

_PROMPT = ("prompt", "prompt_tokens", "prompt_len", "input", "input_tokens", "input_len", "input_length")
_OUTPUT = (
    "output", "output_tokens", "output_len", "output_length", "completion_tokens", "generated_tokens",
)  # fmt: skip
_OFTEN = ("count", "weight", "requests", "often")
_LARGEST_BYTES = 256 * 2**20


def read_lengths(path: str | Path) -> list[tuple[int, int, float]]:
    """(prompt tokens, output tokens, how often) of every row of a CSV, JSON or JSON Lines file.

    Column names are those of common tools (prompt or input_len, output or output_len, ...); ``count`` makes
    the table a histogram. Raises NotFoundError, or InputError naming the row.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError("there is no such file", value=str(path))
    if file.stat().st_size > _LARGEST_BYTES:
        raise InputError(
            "the file of lengths is too large", value=file.stat().st_size, allowed="at most 256 MiB"
        )
    pairs = [_pair(number, row) for number, row in _rows(file)]
    if not pairs:
        raise InputError("the file has no request lengths", value=str(path))
    return pairs


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix.lower() == ".json":
            records = json.loads(text)
            if not isinstance(records, list):
                raise InputError("the file is not a list of requests", value=str(file))
            yield from ((number, _mapping(number, one)) for number, one in enumerate(records, start=1))
        elif file.suffix.lower() in (".jsonl", ".ndjson"):
            for number, line in enumerate(text.splitlines(), start=1):
                if line.strip():
                    yield number, _mapping(number, json.loads(line))
        else:
            yield from enumerate(csv.DictReader(text.splitlines()), start=2)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise InputError("the file of lengths cannot be read", value=str(file), next=str(error)) from error


def _mapping(number: int, record: Any) -> Mapping[str, Any]:
    if isinstance(record, (list, tuple)) and len(record) == 2:
        return {"prompt": record[0], "output": record[1]}
    if isinstance(record, dict):
        return record
    raise InputError(f"row {number} is no request", value=record, allowed='{"prompt": 900, "output": 120}')


def _pair(number: int, row: Mapping[str, Any]) -> tuple[int, int, float]:
    return (
        round(_figure(number, row, _PROMPT, "a prompt length")),
        round(_figure(number, row, _OUTPUT, "an output length")),
        _figure(number, row, _OFTEN, "a count", default=1.0, least=0.0),
    )


def _figure(
    number: int,
    row: Mapping[str, Any],
    names: tuple[str, ...],
    what: str,
    *,
    default: float | None = None,
    least: float = 1.0,
) -> float:
    folded = {str(name).strip().lower(): value for name, value in row.items()}
    found = next((folded[name] for name in names if folded.get(name) not in (None, "")), None)
    if found is None:
        if default is not None:
            return default
        raise InputError(f"row {number} has no {what[what.index(' ') + 1 :]}", allowed=", ".join(names))
    try:
        value = float(found)
    except (TypeError, ValueError):
        value = float("nan")
    if not least <= value <= 1e9:
        raise InputError(
            f"row {number}: {what} is not usable", value=found, allowed=f"a number from {least:g}"
        )
    return value
