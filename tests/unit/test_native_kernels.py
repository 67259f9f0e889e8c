"""The C kernels: every weight format on every instruction set against the dequantised weights."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

from rooflens.errors import InputError  # noqa: E402
from rooflens.runtime.kernels import kernels_for  # noqa: E402
from rooflens.runtime.kernels.base import StoredPart  # noqa: E402
from rooflens.runtime.native import build, instructions  # noqa: E402
from rooflens.runtime.native.formats import GGUF_FORMATS, weight_format  # noqa: E402
from rooflens.runtime.native.layout import Format  # noqa: E402
from rooflens.runtime.native.library import NativeLibrary, available, load  # noqa: E402
from rooflens.runtime.native.linear import NativeLinear, Part, pack_blocks, pack_rows  # noqa: E402
from rooflens.runtime.native.memory import Pieces, Scratch  # noqa: E402

MISSING = available()
needs_library = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
CPU = torch.device("cpu")
SETS = [each.name for each in instructions.usable_sets()]
#: Largest error of a result relative to the largest result: of bf16 inputs, and of inputs in 8 bits.
CLOSE = {Format.F32: 2e-6, Format.BF16: 6e-3}
#: Levels on either side of zero (or above the minimum) that a value is rounded to.
STEPS = {Format.Q8_CHANNEL: 127, Format.Q8_0: 127, Format.Q4_0: 8, Format.Q4_1: 15}
#: Odd sizes: rows that do not fill a tile, features that do not fill a group.
SHAPES = ((48, 256), (50, 512), (199, 64), (33, 70), (1, 32))
ROWS = (1, 2, 3, 5, 8, 13, 33, 40)


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(library: NativeLibrary, parts: list[Part], columns: int, bias: Any = None) -> NativeLinear:
    return NativeLinear(library, parts, bias, in_features=columns, threads=1, scratch=Scratch())


def random_blocks(kind: str, rows: int, columns: int) -> Any:
    """Rows of a GGUF type with random levels and scales of a usable size."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    generator = torch.Generator().manual_seed(rows)
    raw = torch.randint(0, 256, (rows, columns // block, size), dtype=torch.uint8, generator=generator)
    scales = (0.01 + 0.05 * torch.rand(rows, columns // block, 2, generator=generator)).half()
    halves = scales.view(torch.uint8).view(rows, columns // block, 4)
    if kind == "Q6_K":
        raw[..., 208:210] = halves[..., :2]
    elif kind in ("Q8_0", "Q4_0", "Q5_0"):
        raw[..., :2] = halves[..., :2]
    else:
        raw[..., :4] = halves
    return raw.view(rows, -1)


def expanded(kind: str, raw: Any) -> Any:
    wide = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(wide))


@needs_library
@pytest.mark.parametrize("name", SETS)
def test_every_format_multiplies_as_its_dequantised_weights(name: str) -> None:
    library = load(name)
    for form in (Format.F32, Format.BF16, *STEPS):
        for rows, columns in SHAPES:
            weight, bias = normal(rows, columns), normal(rows, seed=1)
            packed = linear(library, [pack_rows(library, weight, form, threads=1)], columns, bias)
            held = packed.rows(torch.arange(rows), torch.float32)
            if form in STEPS:
                spread = weight.abs().amax() if form is not Format.Q4_1 else weight.amax() - weight.amin()
                # Half a step, and the rounding of scale and minimum to fp16 (an end of Q4_0 is cut off).
                slack = 1.01 if form is Format.Q4_0 else 0.56
                assert (held - weight).abs().max() <= slack * spread / STEPS[form]
            else:
                assert torch.equal(held, weight if form is Format.F32 else weight.bfloat16().float())
            for count in ROWS:
                x = normal(count, columns, seed=count)
                expected = x.double() @ held.double().T + bias
                error = (packed.apply(x) - expected).abs().max()
                assert error <= CLOSE.get(form, 0.02) * expected.abs().max(), (form, rows, columns, count)


@needs_library
@pytest.mark.parametrize("name", SETS)
def test_groups_of_8_bits_lose_less_than_by_the_scale_of_their_largest_value(name: str) -> None:
    rows, columns = 32, 512
    weight = normal(rows, columns)
    weight[0, :32], weight[1, 32:64] = 0.0, torch.eye(32)[3]
    held = linear(load(name), [pack_rows(load(name), weight, Format.Q8_0, threads=1)], columns, None)
    found = held.rows(torch.arange(rows), torch.float32).view(rows, -1, 32)
    groups = weight.view(rows, -1, 32)
    step = groups.abs().amax(-1, keepdim=True) / 127
    plain = torch.where(step > 0, (groups / step).round() * step, groups)
    errors, plain_errors = ((each - groups).square().sum(-1) for each in (found, plain))
    # A scale is rounded to fp16, which moves no level by more than a sixteenth of a step.
    assert (errors <= 1.3 * plain_errors + groups.square().sum(-1) * 2**-22).all()
    assert errors.sum() < 0.9 * plain_errors.sum()


@needs_library
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_ggml_blocks_are_repacked_without_loss(name: str, kind: str) -> None:
    library, (rows, columns) = load(name), (37, 512)
    raw = random_blocks(kind, rows, columns)
    part = pack_blocks(library, raw, GGUF_FORMATS[kind], columns=columns, threads=1)
    packed = linear(library, [part], columns)
    reference = expanded(kind, raw)
    held = packed.rows(torch.arange(rows), torch.float32)
    # The same value by another order of its few multiplications.
    assert (held - reference).abs().max() <= 1e-6 * reference.abs().max()
    assert packed.nbytes == raw.numel()
    for count in ROWS:
        x = normal(count, columns, seed=count)
        expected = x @ reference.T
        assert (packed.apply(x) - expected).abs().max() <= 0.02 * expected.abs().max(), count


@needs_library
def test_parts_of_several_formats_lie_one_below_the_other() -> None:
    kernels = kernels_for(CPU, name="native")
    kinds, sizes, columns = ("Q4_K", "Q4_K", "Q6_K"), (40, 24, 17), 256
    assert kernels.keeps(kinds, columns)
    assert not kernels.keeps(kinds, 96)
    assert not kernels.keeps(("IQ2_XS",), columns)
    blocks = [random_blocks(kind, rows, columns) for kind, rows in zip(kinds, sizes, strict=True)]
    bias = normal(sum(sizes), seed=3)
    parts = [StoredPart(kind, raw) for kind, raw in zip(kinds, blocks, strict=True)]
    packed = kernels.pack_stored(parts, bias, in_features=columns)
    whole = torch.cat([expanded(kind, raw) for kind, raw in zip(kinds, blocks, strict=True)])
    assert packed.formats() == ((64, weight_format(Format.Q4_K)), (17, weight_format(Format.Q6_K)))
    for count in (1, 4, 40):
        x = normal(count, columns)
        expected = x @ whole.T + bias
        assert (packed.apply(x) - expected).abs().max() <= 0.02 * expected.abs().max()


@needs_library
def test_inputs_of_bf16_and_rows_that_are_not_next_to_each_other() -> None:
    library = load()
    weight, wide = normal(33, 64), normal(6, 128, seed=1)
    packed = linear(library, [pack_rows(library, weight, Format.BF16, threads=1)], 64)
    x = wide[:, :64]
    narrow = packed.apply(x.bfloat16())
    assert narrow.dtype == torch.bfloat16
    assert torch.allclose(packed.apply(x), x @ weight.bfloat16().float().T, atol=0.05)
    assert torch.allclose(narrow.float(), packed.apply(x), atol=0.1)
    assert torch.equal(packed.rows(torch.tensor([7, 0]), torch.bfloat16), weight.bfloat16()[[7, 0]])


@needs_library
def test_threads_do_not_change_a_result() -> None:
    library = load()
    part = pack_rows(library, normal(130, 96), Format.Q4_1, threads=3)
    x = normal(5, 96, seed=1)
    results = [
        NativeLinear(library, [part], None, in_features=96, threads=count, scratch=Scratch()).apply(x)
        for count in (1, 2, 3)
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_library
def test_one_openmp_runtime_in_the_process() -> None:
    library = load()
    assert library.openmp is not None
    with open("/proc/self/maps", encoding="utf-8") as lines:
        loaded = {line.split()[-1] for line in lines if "libgomp" in line or "libiomp" in line}
    assert loaded == {library.openmp}


@needs_library
def test_the_kernels_say_what_they_are() -> None:
    kernels = kernels_for(CPU, name="native")
    packed = kernels.pack(normal(48, 64), None, holding="int4")
    assert packed.holding == "int4 group 32, scale and minimum, tiles of C kernels"
    told = kernels.describe()
    assert told["native"].startswith(f"C, {load().instructions}")
    assert packed.holding in told["linear"]
    # What C does not compute is left to torch.
    assert "tiles" not in kernels.pack(normal(8, 8).half(), None).holding


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(build.COMPILER_VARIABLE, "no-such-compiler")
    portable = instructions.INSTRUCTION_SETS[-1]
    with pytest.raises(build.BuildError, match=r"no C compiler.*no-such-compiler.*ROOFLENS_CC"):
        build.library_path(portable, openmp=False)
    monkeypatch.setenv(build.COMPILER_VARIABLE, "false")
    with pytest.raises(build.BuildError, match="the C compiler failed"):
        build.library_path(portable, openmp=False)
    assert not list(tmp_path.rglob("*.so"))


def test_a_library_for_another_openmp_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("library.so: undefined symbol: __kmpc_fork_call")

    monkeypatch.setattr("rooflens.runtime.native.library.library_path", lambda *_, **__: Path("library.so"))
    monkeypatch.setattr("ctypes.CDLL", refuse)
    with pytest.raises(build.BuildError, match=r"clang.*OpenMP.*install gcc"):
        NativeLibrary(instructions.INSTRUCTION_SETS[-1], "libgomp.so.1")


def test_a_set_that_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "features", frozenset)
    assert [each.name for each in instructions.usable_sets()] == ["portable"]
    load.cache_clear()
    try:
        with pytest.raises(build.BuildError, match="instruction set"):
            load("amx")
    finally:
        load.cache_clear()


BUILD = """
from rooflens.runtime.native.build import library_path
from rooflens.runtime.native.instructions import INSTRUCTION_SETS
print(library_path(INSTRUCTION_SETS[-1], openmp=False, extra=("-O0",)))
"""


@needs_library
def test_of_builds_at_the_same_time_one_does_the_work(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers
    paths = {out.decode().strip() for out, _ in answers}
    assert len(paths) == 1
    left = [path for path in tmp_path.rglob("*") if path.suffix != ".lock" and path.is_file()]
    assert [str(path) for path in left] == list(paths)
    # Who waited says nothing, and where nobody watches there is one line.
    said = "".join(error.decode() for _, error in answers)
    assert said == "rooflens: compiling the C kernels for portable, once for this machine\n"


def test_an_unknown_kernel_set_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="native"):
        kernels_for(CPU, name="metal")


def test_pieces_lie_one_behind_the_other_and_do_not_overlap() -> None:
    pieces = Pieces()
    taken = [pieces.take(size) for size in (100, 64, 1, 5_000_000, 60_000_000, 40_000_000, 7)]
    assert [part.nbytes for part in taken] == [100, 64, 1, 5_000_000, 60_000_000, 40_000_000, 7]
    assert all(part.data_ptr() % 64 == 0 for part in taken)
    assert taken[1].data_ptr() == taken[0].data_ptr() + 128
    spans = sorted((part.data_ptr(), part.data_ptr() + part.nbytes) for part in taken)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
