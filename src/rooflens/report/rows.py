"""Answers as rows for spreadsheets: SI units in the column names, nothing where a value is unknown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def answer_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of an answer's JSON document: its points, cells, devices or columns, else itself as one row.

    Nested names are joined by dots (``decode.bound_s``), lists of plain values by semicolons.
    """
    columns = document.get("columns")
    if isinstance(columns, Mapping):
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for name in ("cells", "points", "devices", "local", "options", "errors", "tightened"):
        items = document.get(name)
        if isinstance(items, Sequence) and not isinstance(items, str):
            shared = {key: value for key, value in document.items() if key != name}
            return [{**flat(shared), **flat(item)} for item in items]
    return [flat(document)]


def flat(document: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested mappings as one, names joined by dots; schemas and lists of mappings have no place in a row."""
    row: Row = {}
    for name, value in document.items():
        if name == "schema":
            continue
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            row |= flat(value, f"{key}.")
        elif isinstance(value, (list, tuple)):
            if not any(isinstance(item, Mapping) for item in value):
                row[key] = "; ".join(str(item) for item in value)
        else:
            row[key] = value
    return row


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV with a head: every column of any row, true and false in small letters."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(_cell(row.get(name)) for name in names)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value
