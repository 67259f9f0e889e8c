"""Runs a vendor's tool with a short timeout; whatever happens is an answer, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed, or why it gave nothing; ``installed`` is False if there is no such command."""

    text: str = ""
    ok: bool = False
    installed: bool = True
    why: str = ""


Runner = Callable[[Sequence[str]], Output]
"""How commands are run; tests pass one that answers from captured outputs."""

TIMEOUT_S = 5.0


def run(command: Sequence[str]) -> Output:
    """Run a command for at most ``TIMEOUT_S`` seconds, with an English locale and no input."""
    import os
    import shutil
    import subprocess

    if shutil.which(command[0]) is None:
        return Output(installed=False, why=f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Output(why=f"{command[0]} did not answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Output(why=f"{command[0]} could not run: {error.strerror or error}")
    if done.returncode != 0:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        why = f"{command[0]} failed: {said[0] if said else f'exit status {done.returncode}'}"
        return Output(text=done.stdout, why=why)
    return Output(text=done.stdout, ok=True)
