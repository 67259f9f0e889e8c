"""Load the compiled kernels into a process where torch is already loaded."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_int64, c_uint64, c_void_p
from functools import lru_cache

import torch

from rooflens.runtime.native.build import COMPILER_VARIABLE, BuildError, library_path
from rooflens.runtime.native.instructions import INSTRUCTION_SETS, InstructionSet, usable_sets
from rooflens.runtime.native.layout import STRUCTS, Linear, Program, Step

_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[-.\w]*\.so[.\d]*$")
#: Set to a name of ``INSTRUCTION_SETS`` to take that one, or to 0 for none.
SET_VARIABLE = "ROOFLENS_NATIVE"
_WORD_BITS = 64
#: How the functions begin that clang calls; GNU's runtime does not have them.
_CLANG_OPENMP = "__kmpc_"


class NativeLibrary:
    """The entry points of the library for one instruction set; ``openmp``: the runtime that it shares."""

    def __init__(self, instructions: InstructionSet, openmp: str | None) -> None:
        """Raises BuildError where it cannot be built, loaded or run here."""
        self.instructions = instructions.name
        self.openmp = openmp
        self._places: tuple[tuple[int, ...], ...] = ()
        path = library_path(instructions, openmp=openmp is not None)
        try:
            if openmp is not None:
                # torch's own libraries keep its symbols to themselves; this makes the same one global.
                ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
            self._functions = ctypes.CDLL(str(path))
        except OSError as error:
            if _CLANG_OPENMP in str(error):
                raise BuildError(
                    "clang compiles for another OpenMP runtime than torch's",
                    value=openmp,
                    next=f"install gcc, or name it in {COMPILER_VARIABLE}",
                ) from None
            raise BuildError(f"the compiled kernels cannot be loaded: {error}") from None
        self._declare()
        if not self._functions.rl_usable():
            raise BuildError("this processor cannot run the instructions", value=instructions.name)
        for index, struct in enumerate(STRUCTS):
            if self._functions.rl_layout(index) != ctypes.sizeof(struct):
                raise BuildError(f"the compiled kernels have another layout of {struct.__name__}")

    def _declare(self) -> None:
        functions = self._functions
        for name, result, arguments in (
            ("rl_usable", c_int, ()),
            ("rl_layout", c_int64, (c_int,)),
            ("rl_place", c_int, (c_int, c_int, POINTER(c_uint64))),
            ("rl_tile_bytes", c_int64, (c_int, c_int64)),
            ("rl_pack", None, (c_int, c_void_p, c_int, *[c_int64] * 4, c_void_p, c_int)),
            ("rl_pack_ggml", c_int, (c_int, c_void_p, c_int64, c_int64, c_void_p, c_int)),
            ("rl_rows", None, (POINTER(Linear), c_void_p, c_int64, c_void_p, c_int, c_int64, c_int)),
            ("rl_workspace", c_int64, (POINTER(Program),)),
            ("rl_step_run", c_int, (POINTER(Program), POINTER(Step))),
            ("rl_apply_bytes", c_int64, (POINTER(Linear), c_int64, c_int)),
            (
                "rl_apply",
                None,
                (
                    POINTER(Linear),
                    c_void_p,
                    c_int,
                    c_int64,
                    c_void_p,
                    c_int,
                    c_int64,
                    c_int64,
                    c_int,
                    c_void_p,
                ),
            ),
            ("rl_read", c_uint64, (c_void_p, c_int64, c_int)),
        ):
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("rl_"), function)

    usable: ctypes._NamedFuncPointer
    tile_bytes: ctypes._NamedFuncPointer
    pack: ctypes._NamedFuncPointer
    pack_ggml: ctypes._NamedFuncPointer
    rows: ctypes._NamedFuncPointer
    workspace: ctypes._NamedFuncPointer
    step_run: ctypes._NamedFuncPointer
    apply_bytes: ctypes._NamedFuncPointer
    apply: ctypes._NamedFuncPointer
    read: ctypes._NamedFuncPointer

    def place_threads(self, places: Sequence[Sequence[int]]) -> bool:
        """From the next call on, thread i runs on the CPUs ``places[i]``; with no places, anywhere. Whether
        this system does so."""
        asked = tuple(tuple(cpus) for cpus in places)
        if asked == self._places:
            return True
        words = 1 + max((cpu for cpus in places for cpu in cpus), default=0) // _WORD_BITS
        masks = (c_uint64 * (words * max(1, len(places))))()
        for thread, cpus in enumerate(places):
            for cpu in cpus:
                masks[thread * words + cpu // _WORD_BITS] |= 1 << cpu % _WORD_BITS
        done = bool(self._functions.rl_place(len(places), words, masks))
        self._places = asked if done else ()
        return done

    def describe(self) -> str:
        """In words, for reports."""
        threads = "one thread" if self.openmp is None else f"threads of {os.path.basename(self.openmp)}"
        return f"C, {self.instructions}, {threads}"


@lru_cache
def load(name: str | None = None) -> NativeLibrary:
    """The library for the instruction set ``name``, else the fastest that can be built and run here.

    Raises BuildError with the reason where there is none.
    """
    name = name or os.environ.get(SET_VARIABLE) or None
    if name == "0":
        raise BuildError(f"the C kernels are switched off by {SET_VARIABLE}")
    sets = [each for each in usable_sets() if name in (None, each.name)]
    if not sets:
        raise BuildError(
            "this processor does not have the instruction set",
            value=name,
            allowed=", ".join(each.name for each in INSTRUCTION_SETS),
        )
    openmp = openmp_runtime()
    if openmp is None and torch.get_num_threads() > 1:
        raise BuildError("torch has no OpenMP runtime here whose threads C kernels could share")
    problem: BuildError | None = None
    for each in sets:
        try:
            return NativeLibrary(each, openmp)
        except BuildError as error:  # an old compiler may know the slower sets only
            problem = problem or error
    assert problem is not None
    raise problem


def available() -> str | None:
    """None where C kernels can be had, else the reason why not."""
    try:
        load()
    except BuildError as error:
        return error.sentence()
    return None


def openmp_runtime() -> str | None:
    """The file of the OpenMP runtime in this process; None where there is none. One that torch loads late
    is waited for."""
    torch.ones(1).sum()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            paths = {line.split()[-1] for line in lines if _OPENMP.search(line.rstrip())}
    except OSError:
        return None
    # Several: torch's own, which was loaded with it, is the one whose threads it uses.
    return min(paths, key=lambda path: ("/torch/" not in path, path), default=None)
