"""The instruction sets that the C sources are compiled for, and which of them this processor has."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from rooflens.hardware.shell import Runner, run


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

#: From fast to slow; those of other architectures have features that a processor here never has.
INSTRUCTION_SETS = (
    InstructionSet(
        "amx",
        (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _AVX512_FEATURES | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    ),
    InstructionSet("avx512_bf16", (*_AVX512, "-mavx512bf16"), _AVX512_FEATURES | {"avx512_bf16"}),
    InstructionSet("avx512", _AVX512, _AVX512_FEATURES),
    InstructionSet("avx2_vnni", (*_AVX2, "-mavxvnni"), _AVX2_FEATURES | {"avx_vnni"}),
    InstructionSet("avx2", _AVX2, _AVX2_FEATURES),
    # Not armv8.6-a: Neoverse V1 has these instructions and not all else of that version.
    InstructionSet(
        "neon_i8mm_bf16",
        ("-march=armv8.2-a+dotprod+i8mm+bf16",),
        frozenset({"asimd", "asimddp", "i8mm", "bf16"}),
    ),
    InstructionSet("neon_dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimd", "asimddp"})),
    InstructionSet("portable", (), frozenset()),
)

_ARM_NAMES = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}
_INTEL_NAMES = ("machdep.cpu.features", "machdep.cpu.leaf7_features")


def usable_sets() -> tuple[InstructionSet, ...]:
    """The sets that this processor has, from fast to slow; the library asks the processor again."""
    found = features()
    return tuple(each for each in INSTRUCTION_SETS if each.features <= found)


def features(*, root: Path = Path("/"), runner: Runner = run, platform: str = sys.platform) -> frozenset[str]:
    """What the processor has, by Linux's names; none where the system does not say."""
    if platform == "darwin":
        return _of_macos(runner)
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    line = re.search(r"^(?:flags|Features)[ \t]*:(.*)$", text, re.MULTILINE)
    return frozenset(line[1].split()) if line else frozenset()


def _of_macos(runner: Runner) -> frozenset[str]:
    # sysctl prints the keys that it knows and fails for the others, so its exit status says nothing.
    text = runner(["sysctl", *_ARM_NAMES, *_INTEL_NAMES]).text
    known = dict(re.findall(r"^([\w.]+): (.*)$", text, re.MULTILINE))
    intel = " ".join(known.get(key, "") for key in _INTEL_NAMES).lower().split()
    return frozenset(intel) | {name for key, name in _ARM_NAMES.items() if known.get(key) == "1"}
