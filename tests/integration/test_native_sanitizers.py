"""The C kernels under the address and undefined-behaviour sanitizers, in a program of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_driver import LACKS_INSTRUCTIONS, compiled, driver, run

from rooflens.runtime.native import build
from rooflens.runtime.native.instructions import InstructionSet, usable_sets

SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


@pytest.mark.parametrize("instructions", usable_sets(), ids=lambda each: each.name)
def test_nothing_undefined_and_nothing_out_of_bounds(instructions: InstructionSet, tmp_path: Path) -> None:
    try:
        command = build.compiler()
    except build.BuildError as error:
        pytest.skip(error.sentence())
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    missing = compiled(command, tmp_path / "empty", *SANITIZE, "-fopenmp", tmp_path / "empty.c")
    if missing is not None:
        pytest.skip(f"the compiler has no sanitizers or no OpenMP here: {missing.splitlines()[-1]}")
    status, said = run(driver(command, tmp_path, *SANITIZE, *instructions.flags))
    if status == LACKS_INSTRUCTIONS:
        pytest.skip(f"this processor cannot run {instructions.name}")
    assert (status, said) == (0, "sound\n"), said
