"""Skinny matrix multiplies: one linear over growing batches, from the decode roof past the knee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from rooflens.measure.probes.linear_kernels import Apply, LinearKernel, linear_kernels, weight_only_int8
from rooflens.measure.probes.matmul import turned
from rooflens.measure.probes.run import Run
from rooflens.measure.records import Measurement
from rooflens.measure.roofs import SKINNY_ROWS
from rooflens.measure.timer import TimingError, Work

FEWEST_WEIGHTS = 6
_SWEPT = ("bf16", "fp16", "fp32")
_ALSO = ("int8",)


def probe_batches(run: Run) -> Iterator[Measurement]:
    """Weight bytes per second of y[m, n] = x[m, k] W^T for each m of the effort.

    The weights are so many copies that together they are far beyond the caches. Inputs and outputs are not
    counted: they are small beside the weights. The first 16-bit dtype that works is swept over all m;
    with full effort int8 and weight-only int8 join for the skinny ones.
    """
    swept, others = _choose(run)
    if swept is None:
        run.skip("linear", "no kernel for bf16, fp16 or fp32 works here")
        return
    yield from _sweep(run, swept, run.effort.batch_sizes)
    for kernel in others:
        yield from _sweep(run, kernel, [m for m in run.effort.batch_sizes if m <= SKINNY_ROWS])


def _choose(run: Run) -> tuple[LinearKernel | None, list[LinearKernel]]:
    """The kernel to sweep, and those to follow for skinny batches: per dtype the first that works."""
    working: dict[str, LinearKernel] = {}
    for kernel in linear_kernels(run.target):
        wanted = kernel.dtype in _SWEPT or (run.effort.every_dtype and kernel.dtype in _ALSO)
        if wanted and kernel.dtype not in working and kernel.problem() is None:
            working[kernel.dtype] = kernel
    others = [working[dtype] for dtype in _ALSO if dtype in working]
    if run.effort.every_dtype and (held := weight_only_int8(run.target)).problem() is None:
        others.append(held)
    return next((working[dtype] for dtype in _SWEPT if dtype in working), None), others


def _sweep(run: Run, kernel: LinearKernel, sizes: Iterable[int]) -> Iterator[Measurement]:
    prefix = f"linear.{kernel.dtype.replace(' ', '_')}"
    if not run.wants(prefix):
        return
    shape = run.shapes.streamed
    weight_bytes = shape.n * shape.k * kernel.weight_bytes
    copies = max(FEWEST_WEIGHTS, -(-run.target.rotation_bytes // round(weight_bytes)))
    base = kernel.weight(shape.n, shape.k)
    applied = [kernel.pack(turned(base, index)) for index in range(copies)]
    for m in sizes:
        name = f"{prefix}.m{m}"
        if not run.wants(name):
            continue
        x = kernel.inputs(m, shape.k)
        try:
            kernel.check(x, base, applied[0](x))
        except (RuntimeError, TimingError) as error:  # some kernels want more rows than one
            run.skip(name, f"{kernel.method}: {str(error).splitlines()[0]}")
            continue
        yield run.figure(
            name,
            run.target.clock.batch(_rotating(applied, x)),
            unit="bytes_per_s",
            amount=weight_bytes,
            method=kernel.method,
            parameters={
                "dtype": kernel.dtype,
                "m": m,
                "n": shape.n,
                "k": shape.k,
                "copies": copies,
                "weight_bytes_per_element": kernel.weight_bytes,
                "activation_bytes_per_element": kernel.activation_bytes,
            },
        )


def _rotating(applied: list[Apply], x: Tensor) -> Work:
    return lambda call: applied[call % len(applied)](x)
