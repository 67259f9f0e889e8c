"""The C kernels under the address and undefined-behaviour sanitizers, in a program of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rooflens.runtime.native import build

DRIVER = Path(__file__).parents[1] / "native" / "driver.c"
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
FASTEST, PORTABLE = build.usable_sets()[0], build.INSTRUCTION_SETS[-1]


def compiled(command: tuple[str, ...], target: Path, *arguments: object) -> str | None:
    """None where it worked, else what the compiler said."""
    done = subprocess.run(
        [*command, *map(str, arguments), "-o", str(target)], capture_output=True, text=True, timeout=300
    )
    return None if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("instructions", dict.fromkeys((PORTABLE, FASTEST)), ids=lambda each: each.name)
def test_nothing_undefined_and_nothing_out_of_bounds(
    instructions: build.InstructionSet, tmp_path: Path
) -> None:
    try:
        command = build.compiler()
    except build.BuildError as error:
        pytest.skip(error.sentence())
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    missing = compiled(command, tmp_path / "empty", *SANITIZE, "-fopenmp", tmp_path / "empty.c")
    if missing is not None:
        pytest.skip(f"the compiler has no sanitizers or no OpenMP here: {missing.splitlines()[-1]}")
    for name, text in build.sources().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    units = [tmp_path / name for name in ("step.c", "pack.c", "library.c")]
    flags = ("-std=gnu11", "-Wno-psabi", "-fopenmp", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}")
    program = tmp_path / "driver"
    problem = compiled(command, program, *SANITIZE, *flags, *instructions.flags, DRIVER, *units, "-lm")
    assert problem is None, problem
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip(f"this processor cannot run {instructions.name}")
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stdout + done.stderr
