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
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rooflens.errors import RooflensError

#: The compiler to use instead of the first of ``_COMPILERS`` that is there.
COMPILER_VARIABLE = "ROOFLENS_CC"
_COMPILERS = ("cc", "gcc", "clang")
_UNITS = ("step.c", "pack.c", "library.c")
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-Wno-psabi")
_TIMEOUT_S = 300


class BuildError(RooflensError):
    """Why there is no library: no compiler, or what the compiler said."""


@dataclass(frozen=True)
class InstructionSet:
    """What the sources are compiled for: the compiler's flags, and Linux's names of the features."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (
    *_AVX2,
    *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
    "-mprefer-vector-width=512",
)
_AVX2_FEATURES = frozenset({"avx2", "fma", "f16c"})
_AVX512_FEATURES = _AVX2_FEATURES | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}

#: From fast to slow.
INSTRUCTION_SETS = (
    InstructionSet(
        "amx",
        (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _AVX512_FEATURES | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    ),
    InstructionSet("avx512_bf16", (*_AVX512, "-mavx512bf16"), _AVX512_FEATURES | {"avx512_bf16"}),
    InstructionSet("avx512", _AVX512, _AVX512_FEATURES),
    InstructionSet("avx2", _AVX2, _AVX2_FEATURES),
    InstructionSet("portable", (), frozenset()),
)


def usable_sets() -> tuple[InstructionSet, ...]:
    """The sets that this processor has, from fast to slow; the library asks the processor again."""
    found = _features()
    return tuple(each for each in INSTRUCTION_SETS if each.features <= found)


def _features() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, values = line.partition(":")
                if name.strip() == "flags":
                    return frozenset(values.split())
    except OSError:
        pass
    return frozenset()


def cache_folder() -> Path:
    """Where libraries are kept: the user's cache, by the platform's convention."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rooflens" / "native"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rooflens" / "native"


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

    ``openmp`` False makes a library of one thread; ``extra``: further flags, for sanitizers. Two processes
    that build at once both do the work, and the last whole file stays.
    """
    command = compiler()
    flags = (*_FLAGS, *instructions.flags, *(("-fopenmp",) if openmp else ()), *extra)
    texts = sources()
    path = cache_folder() / f"{instructions.name}-{_key(command, flags, texts)}.so"
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
            made = _compile(command, flags, texts, Path(folder))
            os.replace(made, path)
    except OSError as error:
        raise BuildError(
            f"the C kernels cannot be built: {error.strerror or error}", value=str(path)
        ) from None
    return path


def _key(command: tuple[str, ...], flags: tuple[str, ...], texts: dict[str, str]) -> str:
    version = subprocess.run([*command, "--version"], capture_output=True, timeout=_TIMEOUT_S).stdout
    parts = [*command, version.decode(errors="replace"), platform.machine(), *flags]
    parts += [part for name, text in texts.items() for part in (name, text)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(command: tuple[str, ...], flags: tuple[str, ...], texts: dict[str, str], folder: Path) -> Path:
    """All units at once, then linked without OpenMP: its functions are those of the one already loaded."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if sys.stderr.isatty():
        print("rooflens: compiling its C kernels, once for this machine ...", file=sys.stderr, flush=True)
    running = [
        subprocess.Popen(
            [*command, *flags, "-c", name, "-o", f"{name}.o"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name in _UNITS
    ]
    results = [(process, process.communicate(timeout=_TIMEOUT_S)[0]) for process in running]
    for process, said in results:
        _check(process.returncode, said)
    undefined = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
    sanitizers = tuple(flag for flag in flags if flag.startswith("-fsanitize"))
    objects = [f"{name}.o" for name in _UNITS]
    linked = subprocess.run(
        [*command, "-shared", *undefined, *sanitizers, *objects, "-lm", "-o", "library.so"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_TIMEOUT_S,
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
