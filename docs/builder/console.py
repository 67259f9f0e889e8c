"""Commands on pages: those that can be answered here are, the others are checked against the command line."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator

import click
from rich.cells import cell_len

from docs.builder.source import BuildError
from rooflens.cli.main import cli, main

_PROMPT = "$ "


def commands(body: str) -> Iterator[list[str]]:
    """The arguments of every ``$ rooflens ...`` line, continued lines joined and comments dropped."""
    joined = re.sub(r"\\\n\s*", " ", body)
    for line in joined.splitlines():
        if line.startswith(_PROMPT + "rooflens"):
            command = line[len(_PROMPT) :].split(" && ")[0].split(" | ")[0]
            yield shlex.split(command, comments=True)[1:]


def check_commands(body: str, where: str) -> None:
    """Parse every command as the command line would, without running it. Raises BuildError."""
    for arguments in commands(body):
        try:
            _parsed(cli, "rooflens", list(arguments), None)
        except click.ClickException as error:
            raise BuildError(f"{where}: {' '.join(arguments)}: {error.format_message()}") from error
        except click.exceptions.Exit:
            continue


def _parsed(command: click.Command, name: str, arguments: list[str], parent: click.Context | None) -> None:
    context = command.make_context(name, arguments, parent=parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        found, inner, left = command.resolve_command(context, rest)
        if inner is not None and found is not None:
            _parsed(inner, found, left, context)


def answer(body: str, where: str, *, columns: int, first: str | None = None, until: str | None = None) -> str:
    """What the commands print, one after another, below each other.

    Shown from the first line that begins with ``first`` to the one before that which begins with ``until``.
    Raises BuildError where a command prints an error, or no line begins so.
    """
    lines: list[str] = []
    for arguments in commands(body):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _columns(columns):
            code = _exit_code(list(arguments))
        if code not in (0, 1) or (code == 1 and not out.getvalue()):
            raise BuildError(f"{where}: {' '.join(arguments)}: {err.getvalue().strip()}")
        lines += ["", *(line.rstrip() for line in out.getvalue().splitlines())]
    lines = lines[1 if first is None else _place(lines, first, where) :]
    lines = lines[: None if until is None else _place(lines, until, where)]
    wide = next((line for line in lines if cell_len(line) > columns), None)
    if wide is not None:
        raise BuildError(f"{where}: printed line is wider than {columns} columns: {wide}")
    return "\n".join(lines).strip("\n") + "\n"


def _place(lines: list[str], start: str, where: str) -> int:
    """Which line begins so."""
    for number, line in enumerate(lines):
        if line.startswith(start):
            return number
    raise BuildError(f"{where}: nothing printed begins with '{start}'")


def _exit_code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0) if not isinstance(end.code, str) else 1
    return 0


@contextlib.contextmanager
def _columns(columns: int) -> Iterator[None]:
    """The width that printed tables take, and no colour, whatever this terminal is."""
    import os

    saved = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "LC_ALL")}
    os.environ.update(COLUMNS=str(columns), NO_COLOR="1", LC_ALL="C.UTF-8")
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
