"""Build the program of tests/native from its sources and the kernels'."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rooflens.runtime.native import build

FOLDER = Path(__file__).parents[1] / "native"
#: What the driver returns where the processor lacks the instructions.
LACKS_INSTRUCTIONS = 77
_FLAGS = ("-std=gnu11", "-Wno-psabi", "-fopenmp", "-Wall", "-Wextra", "-Werror")
_TIMEOUT_S = 300


def compiled(command: tuple[str, ...], target: Path, *arguments: object) -> str | None:
    """None where it worked, else what the compiler said."""
    done = subprocess.run(
        [*command, *map(str, arguments), "-o", str(target)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    return None if done.returncode == 0 else done.stderr


def driver(command: tuple[str, ...], folder: Path, *flags: str) -> Path:
    """The program, in ``folder``; fails with what the compiler said."""
    for name, text in build.sources().items():
        (folder / name).write_text(text, encoding="utf-8")
    units = [folder / name for name in build.UNITS]
    program = folder / "driver"
    problem = compiled(
        command, program, *flags, *_FLAGS, f"-I{folder}", *sorted(FOLDER.glob("*.c")), *units, "-lm"
    )
    assert problem is None, problem
    return program


def run(*command: object) -> tuple[int, str]:
    """(exit status, all that it said)."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=_TIMEOUT_S)
    return done.returncode, done.stdout + done.stderr
