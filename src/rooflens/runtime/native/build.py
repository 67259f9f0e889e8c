"""Compile the C sources for one instruction set, once per machine, source and compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.resources import files
from pathlib import Path

from rooflens.errors import RooflensError
from rooflens.runtime.compile_cache import BUILD_LIMIT_S, alone, cache_folder, say
from rooflens.runtime.native.instructions import InstructionSet

#: The compiler to use instead of the first of ``_COMPILERS`` that is there.
COMPILER_VARIABLE = "ROOFLENS_CC"
_COMPILERS = ("gcc", "cc", "clang")  # torch's packages for Linux bring GNU's OpenMP
#: What is compiled by itself; everything else is included.
UNITS = ("step.c", "pack.c", "library.c")
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-Wno-psabi")


class BuildError(RooflensError):
    """Why there is no library: no compiler, or what the compiler said."""


def sources() -> dict[str, str]:
    """Every C file by name."""
    folder = files("rooflens.runtime.native") / "src"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".c", ".h")))
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def compiler() -> tuple[str, ...]:
    """The command of the C compiler. Raises BuildError where there is none."""
    given = os.environ.get(COMPILER_VARIABLE)
    for name in (given,) if given is not None else _COMPILERS:
        command = shlex.split(name)
        if command and shutil.which(command[0]):
            return tuple(command)
    raise BuildError(
        "there is no C compiler",
        value=given or None,
        next=f"install gcc or clang, or name one in {COMPILER_VARIABLE}",
    )


def library_path(instructions: InstructionSet, *, openmp: bool, extra: Iterable[str] = ()) -> Path:
    """The compiled library, from the cache or made now. Raises BuildError with the reason where it fails.

    ``openmp`` False makes a library of one thread; ``extra``: further flags, for sanitizers. Of processes
    that want the same library at once, one builds it and the others wait.
    """
    command = compiler()
    flags = (*_FLAGS, *instructions.flags, *(("-fopenmp",) if openmp else ()), *extra)
    texts = sources()
    path = cache_folder("native") / f"{instructions.name}-{_key(command, flags, texts)}.so"
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.parent):
            if not path.is_file():
                with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
                    os.replace(_compile(command, flags, texts, Path(folder), instructions.name), path)
    except OSError as error:
        raise BuildError(
            f"the C kernels cannot be built: {error.strerror or error}",
            value=str(path),
            next="set XDG_CACHE_HOME to a folder that can be written",
        ) from None
    return path


def _key(command: tuple[str, ...], flags: tuple[str, ...], texts: dict[str, str]) -> str:
    version = subprocess.run([*command, "--version"], capture_output=True, timeout=BUILD_LIMIT_S).stdout
    parts = [*command, version.decode(errors="replace"), platform.machine(), *flags]
    parts += [part for name, text in texts.items() for part in (name, text)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(
    command: tuple[str, ...], flags: tuple[str, ...], texts: dict[str, str], folder: Path, name: str
) -> Path:
    """All units at once, then linked without OpenMP: its functions are those of the one already loaded."""
    for source, text in texts.items():
        (folder / source).write_text(text, encoding="utf-8")
    started = time.monotonic()
    say(f"compiling the C kernels for {name}, once for this machine")
    running = {
        unit: subprocess.Popen(
            [*command, *flags, "-c", unit, "-o", f"{unit}.o"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for unit in UNITS
    }
    with ThreadPoolExecutor(len(running)) as waiters:
        said = {waiters.submit(process.communicate): unit for unit, process in running.items()}
        try:
            for done, finished in enumerate(as_completed(said, timeout=BUILD_LIMIT_S), start=1):
                unit = said[finished]
                _check(running[unit].returncode, finished.result()[0])
                elapsed = f"{done} of {len(running)} units, {time.monotonic() - started:.1f} s"
                say(f"{unit} is compiled ({elapsed})", for_people=True)
        except TimeoutError:
            raise BuildError(f"the C compiler did not end within {BUILD_LIMIT_S} s") from None
        finally:
            for process in running.values():
                process.kill()  # those that still run after a failure, an interrupt or too long a time
    undefined = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
    sanitizers = tuple(flag for flag in flags if flag.startswith("-fsanitize"))
    objects = [f"{unit}.o" for unit in UNITS]
    linked = subprocess.run(
        [*command, "-shared", *undefined, *sanitizers, *objects, "-lm", "-o", "library.so"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_LIMIT_S,
    )
    _check(linked.returncode, linked.stdout)
    return folder / "library.so"


def _check(code: int, said: bytes) -> None:
    if code:
        lines = said.decode(errors="replace").splitlines()
        reason = next(
            (line for line in lines if "error" in line.lower()), lines[0] if lines else f"code {code}"
        )
        raise BuildError(f"the C compiler failed: {reason.strip()}")
