"""Where an answer goes: the terminal, JSON, or a file that is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click


def to_document(result: Any, command: str) -> dict[str, Any]:
    """The JSON of an answer: a result's own, or a list of them under the command's name."""
    if isinstance(result, Sequence):
        items = [item.to_dict() for item in result]
        return {"schema": f"rooflens.{command}/1", command: items}
    document: dict[str, Any] = result.to_dict()
    return document if "schema" in document else {"schema": f"rooflens.{command}/1", **document}


def print_json(document: dict[str, Any]) -> None:
    """The answer on stdout; never NaN or Infinity."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def answer(
    result: Any,
    command: str,
    *,
    as_json: bool,
    out: str | None,
    lang: str | None,
    **extra: Any,
) -> None:
    """Render the result of ``command``: as a table, as JSON, or into the file ``out`` by its ending.

    Raises InputError for an ending that this command cannot write; nothing is left half-written.
    """
    if out is not None:
        from rooflens.report.files import write_answer
        from rooflens.report.words import language, words

        say = words(language(lang))
        write_answer(result, command, Path(out), say, document=lambda: to_document(result, command))
        click.echo(say("wrote", path=out), err=True)
    if as_json:
        print_json(to_document(result, command))
    elif out is None:
        from rooflens.report.tables.layout import console, show
        from rooflens.report.words import language, words

        render = getattr(import_module(f"rooflens.report.tables.{command}"), f"{command}_report")
        show(render(result, words(language(lang)), **extra), on=console())
