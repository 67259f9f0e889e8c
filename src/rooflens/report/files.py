"""Files: charts, tables and documents, by their ending; each is written whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rooflens.errors import InputError
from rooflens.report.rows import Row, answer_rows, to_csv
from rooflens.report.words import Language, Words

CHARTS = ("png", "svg", "pdf", "html")
DATA = ("json", "csv")

# Command -> (module of report.charts, function from (result, say, dark=) to a chart).
_CHART_OF = {
    "plan": ("plan", "plan_chart"),
    "compare": ("compare", "compare_chart"),
    "sweep": ("sweep", "sweep_chart"),
    "roofline": ("roofline", "view_chart"),
    "search": ("search", "search_chart"),
}


def write_answer(
    result: Any,
    command: str,
    path: Path,
    say: Words,
    *,
    document: Callable[[], Mapping[str, Any]],
    dark: bool = False,
) -> None:
    """Write the answer of a command: its JSON document, its rows as CSV, or its chart.

    An HTML page follows the reader's own light or dark setting; pictures are light unless ``dark``.
    Raises InputError for an ending that this command has nothing for, DependencyError for a chart
    without the extra ``plot``.
    """
    ending = _ending(path, (*DATA, *(CHARTS if command in _CHART_OF else ())))
    if ending == "json":
        write_whole(path, _json(document()))
    elif ending == "csv":
        write_whole(path, to_csv(answer_rows(document())).encode())
    else:
        module, function = _CHART_OF[command]
        draw = getattr(import_module(f"rooflens.report.charts.{module}"), function)
        if ending == "html":
            save_chart(draw(result, say), path, night=draw(result, say, dark=True), lang=say.language)
        else:
            save_chart(draw(result, say, dark=dark), path)


def save_chart(
    chart: Any, path: str | Path, *, night: Any = None, lang: Language = "en", scale: float = 2.0
) -> None:
    """Write an Altair chart as .png, .svg, .pdf, .html (one file that works offline) or .json (its spec).

    ``night`` is the same chart in dark colours for readers who prefer that (HTML only); ``scale`` is the
    pixels per unit of a PNG. Raises InputError for another ending or a place that cannot be written,
    DependencyError where vl-convert, or a font for Chinese in a picture, is missing.
    """
    path = Path(path)
    ending = _ending(path, (*CHARTS, "json"))
    if ending == "json":
        write_whole(path, chart.to_json(indent=2).encode())
        return
    from rooflens.report.charts.render import render

    write_whole(path, render(chart, ending, night=night, lang=lang, scale=scale))


def save_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as .csv or .json. Raises InputError for another ending."""
    path = Path(path)
    if _ending(path, DATA) == "json":
        write_whole(path, _json(list(rows)))
    else:
        write_whole(path, to_csv(rows).encode())


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _ending(path: Path, allowed: Sequence[str]) -> str:
    ending = path.suffix.lower().lstrip(".")
    if ending not in allowed:
        raise InputError(
            "file ending is not one that can be written here",
            value=str(path),
            allowed=", ".join(f".{known}" for known in allowed),
        )
    return ending


def write_whole(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path`` at once: readers see the old file or the new one, never a part.

    Raises InputError where the folder is missing or cannot be written to.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError("the file to write is a folder", value=str(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)  # a pipe or a terminal has no second name to move into place
            return
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with open(part, "xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            "file cannot be written", value=str(path), next=(error.strerror or str(error)).lower()
        ) from error
