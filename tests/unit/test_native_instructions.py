"""Which instruction sets a processor is found to have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rooflens.hardware.shell import Output
from rooflens.runtime.native.instructions import INSTRUCTION_SETS, features, usable_sets

GRAVITON3 = (
    "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics "
    "fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat "
    "ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng\nCPU part\t: 0xd40\n"
)
GRAVITON2 = (
    "Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs\n"
)
PI4 = "Features\t: fp asimd evtstrm crc32 cpuid\n"
LAPTOP = "flags\t\t: fpu sse2 avx f16c fma avx2 avx_vnni\nbugs\t\t:\n"
APPLE_M1 = "hw.optional.AdvSIMD: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n"
APPLE_M2 = APPLE_M1.replace("I8MM: 0", "I8MM: 1") + "hw.optional.arm.FEAT_BF16: 1\n"
INTEL_MAC = "machdep.cpu.features: FPU SSE4.2 FMA F16C AVX1.0\nmachdep.cpu.leaf7_features: BMI1 AVX2 BMI2\n"


def names(found: frozenset[str]) -> list[str]:
    return [each.name for each in INSTRUCTION_SETS if each.features <= found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GRAVITON3, ["neon_i8mm_bf16", "neon_dotprod", "portable"]),
        (GRAVITON2, ["neon_dotprod", "portable"]),
        (PI4, ["portable"]),
        (LAPTOP, ["avx2_vnni", "avx2", "portable"]),
        ("", ["portable"]),
    ],
)
def test_sets_by_what_linux_says(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert names(features(root=tmp_path, platform="linux")) == expected


def test_a_system_that_says_nothing_gets_portable_code(tmp_path: Path) -> None:
    assert names(features(root=tmp_path, platform="linux")) == ["portable"]
    assert names(features(runner=lambda _: Output(installed=False), platform="darwin")) == ["portable"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (APPLE_M1, ["neon_dotprod", "portable"]),
        (APPLE_M2, ["neon_i8mm_bf16", "neon_dotprod", "portable"]),
        (INTEL_MAC, ["avx2", "portable"]),
    ],
)
def test_sets_by_what_macos_says(text: str, expected: list[str]) -> None:
    asked: list[str] = []

    def runner(command: Sequence[str]) -> Output:
        asked.extend(command)
        # As sysctl does where it does not know a key: the others are printed, and it fails.
        return Output(text=text, ok=False)

    assert names(features(runner=runner, platform="darwin")) == expected
    assert asked[0] == "sysctl"


def test_this_machine_has_portable_code_last() -> None:
    assert usable_sets()[-1].name == "portable"
