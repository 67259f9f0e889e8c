"""The C kernels for Arm: compiled for it, run by an emulator, compared with portable code."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from native_driver import LACKS_INSTRUCTIONS, driver, run

from rooflens.runtime.native.instructions import INSTRUCTION_SETS

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MISSING = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
SETS = [each for each in INSTRUCTION_SETS if each.name.startswith("neon") or each.name == "portable"]
#: A processor of version 8.0, which has none of the instructions that the sets are named after.
OLD = "cortex-a72"
#: Of the largest result: inputs in 8 bits are rounded, and where a sum differs in its last bit, otherwise.
CLOSE = 2e-4


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One for each set."""
    made = {}
    for each in SETS:
        folder = tmp_path_factory.mktemp(each.name)
        made[each.name] = driver((COMPILER,), folder, "-O2", "-static", *each.flags)
    return made


def test_every_set_is_sound_and_agrees_with_portable_code(programs: dict[str, Path]) -> None:
    results = {}
    for name, program in programs.items():
        file = program.with_name("results")
        assert run(EMULATOR, "-cpu", "max", program, file) == (0, "sound\n"), name
        results[name] = np.fromfile(file, dtype=np.float32)
    reference = results["portable"]
    assert reference.size > 10_000
    for name, found in results.items():
        assert np.abs(found - reference).max() <= CLOSE * np.abs(reference).max(), name


def test_a_processor_without_the_instructions_is_noticed(programs: dict[str, Path]) -> None:
    statuses = {name: run(EMULATOR, "-cpu", OLD, program)[0] for name, program in programs.items()}
    assert statuses == {
        "neon_i8mm_bf16": LACKS_INSTRUCTIONS,
        "neon_dotprod": LACKS_INSTRUCTIONS,
        "portable": 0,
    }
