"""Matrix-multiply rates: the peak of every dtype that works here, over several shapes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from rooflens.analysis.costs import linear_cost
from rooflens.measure.probes.linear_kernels import LinearKernel, linear_kernels
from rooflens.measure.probes.run import Run
from rooflens.measure.probes.target import Target
from rooflens.measure.records import Measurement
from rooflens.measure.timer import Batch, TimingError

OPERAND_SETS = 3
"""Operands that take turns, so that no multiply finds its own in a cache."""
MODEL_ROWS = 512
"""Rows of a model's own shapes: a prefill chunk."""
SMALLEST_CUBE = 64
"""The first one tried: types that a processor only emulates take seconds for larger ones."""
STANDARD_SHAPES = ((2048, 4096, 4096), (512, 14336, 4096), (512, 4096, 14336))
"""(m, n, k) of 8-billion-parameter models' linears."""
QUICK_DTYPES = ("fp32", "bf16", "fp16", "int8", "fp8")
_MEMORY_SHARE = 0.25
_HALF_WIDTH_BYTES = 2


def probe_matmul(run: Run) -> Iterator[Measurement]:
    """FLOP/s by dtype: the largest affordable cube by the fastest kernel, then the other shapes with it."""
    for dtype, group in groupby(_usable(run), key=lambda kernel: kernel.dtype):
        if not run.wants(f"gemm.{dtype}"):
            continue
        try:
            yield from _dtype(run, list(group))
        except (RuntimeError, TimingError) as error:  # torch's own errors are RuntimeErrors
            run.skip(f"gemm.{dtype}", str(error).partition("\n")[0])


def _dtype(run: Run, kernels: list[LinearKernel]) -> Iterator[Measurement]:
    with kernels[0].setting():
        kernel, cube = yield from _largest_cube(run, kernels)
        for m, n, k in _other_shapes(run, cube, kernel):
            affordable = linear_flops(m, n, k) <= cube.value * run.effort.largest_call_s
            if not (affordable and _fits(run.target, kernel, m, n, k)):
                continue
            if run.wants(_name(kernel, m, n, k)):
                yield _figure(run, kernel, matmul_batch(run.target, kernel, m, n, k), m, n, k)


def linear_flops(m: int, n: int, k: int) -> float:
    """FLOPs of y[m, n] = x[m, k] W^T."""
    return float(linear_cost(in_features=k, out_features=n, tokens=m, weight_bytes=0, element_bytes=0).flops)


def matmul_batch(target: Target, kernel: LinearKernel, m: int, n: int, k: int) -> Batch:
    """Timed multiplies over rotating operands; the first product is checked."""
    base_x, base_weight = kernel.inputs(m, k), kernel.weight(n, k)
    xs = [turned(base_x, index) for index in range(OPERAND_SETS)]
    applied = [kernel.pack(turned(base_weight, index)) for index in range(OPERAND_SETS)]
    kernel.check(base_x, base_weight, applied[0](xs[0]))

    def work(call: int) -> None:
        turn = call % OPERAND_SETS
        applied[turn](xs[turn])

    return target.clock.batch(work)


def turned(tensor: Tensor, steps: int) -> Tensor:
    """A copy with its rows moved round: other data at every address, for the price of a copy."""
    # One-byte floats have no roll of their own: they are moved as bytes.
    moved = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    return moved.roll(steps, dims=0).view(tensor.dtype)


def _usable(run: Run) -> list[LinearKernel]:
    """The kernels that compute right here; why the others do not is recorded as skipped."""
    working = []
    for kernel in linear_kernels(run.target):
        if not run.effort.every_dtype and kernel.dtype not in QUICK_DTYPES:
            continue
        problem = kernel.problem()
        if problem is None:
            working.append(kernel)
        else:
            run.skip(f"gemm.{kernel.dtype}", f"{kernel.method}: {problem}")
    return working


def _largest_cube(
    run: Run, kernels: Sequence[LinearKernel]
) -> Generator[Measurement, None, tuple[LinearKernel, Measurement]]:
    """Measures the largest cube that the effort affords; returns the kernel that won it, and the figure."""
    side = _affordable_side(run, kernels[0])
    batches = {kernel.method: matmul_batch(run.target, kernel, side, side, side) for kernel in kernels}
    method, seconds = run.fastest(batches) if len(batches) > 1 else (next(iter(batches)), {})
    tried = {name: linear_flops(side, side, side) / value for name, value in seconds.items()}
    kernel = next(kernel for kernel in kernels if kernel.method == method)
    cube = _figure(run, kernel, batches[method], side, side, side, tried)
    yield cube
    return kernel, cube


def _affordable_side(run: Run, kernel: LinearKernel) -> int:
    """The largest cube whose one multiply stays within the effort, found by trying smaller ones."""
    side = SMALLEST_CUBE
    while True:
        batch = matmul_batch(run.target, kernel, side, side, side)
        batch(1)
        seconds = min(batch(1), batch(1))
        following = 2 * side
        # Small products run below the full rate, so eight times the work takes less than eight times as long.
        if following > run.effort.largest_cube or 8 * seconds > run.effort.largest_call_s:
            return side
        if not _fits(run.target, kernel, following, following, following):
            return side
        side = following


def _other_shapes(run: Run, cube: Measurement, kernel: LinearKernel) -> list[tuple[int, int, int]]:
    side = int(cube.parameters["m"])
    shapes: list[tuple[int, int, int]] = []
    if run.effort.standard_shapes:
        shapes += [(side // 2, side // 2, side // 2), *STANDARD_SHAPES]
    if kernel.weight_bytes == _HALF_WIDTH_BYTES:
        heaviest = sorted(run.shapes.linears, key=lambda shape: -shape.n * shape.k * shape.count)
        shapes += [(MODEL_ROWS, shape.n, shape.k) for shape in heaviest[: run.effort.model_linears]]
    return list(dict.fromkeys(shapes))


def _figure(
    run: Run,
    kernel: LinearKernel,
    batch: Batch,
    m: int,
    n: int,
    k: int,
    tried: dict[str, float] | None = None,
) -> Measurement:
    return run.figure(
        _name(kernel, m, n, k),
        batch,
        unit="flops_per_s",
        amount=linear_flops(m, n, k),
        method=kernel.method,
        parameters={"dtype": kernel.dtype, "m": m, "n": n, "k": k, "element_bytes": kernel.weight_bytes},
        tried=tried,
    )


def _name(kernel: LinearKernel, m: int, n: int, k: int) -> str:
    return f"gemm.{kernel.dtype}.{m}x{n}x{k}"


def _fits(target: Target, kernel: LinearKernel, m: int, n: int, k: int) -> bool:
    """Whether the operand sets, packed copies included, take at most a quarter of the free memory."""
    if target.available_bytes is None:
        return True
    one_set = 2 * n * k * kernel.weight_bytes + m * (k + n) * kernel.activation_bytes
    return OPERAND_SETS * one_set <= _MEMORY_SHARE * target.available_bytes
