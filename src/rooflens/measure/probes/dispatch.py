"""What a call costs before it does any work: eager, compiled, replayed from a graph, spread over threads."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.measure.probes.operands import normal
from rooflens.measure.probes.run import Run
from rooflens.measure.records import Measurement
from rooflens.measure.timer import Batch, Work

TINY = 16
"""Features of the tiny operands: a cache line or two."""
GRAIN_ELEMENTS = 32768
"""Elements that torch gives each CPU thread at least: one such piece per thread opens a parallel region."""
GRAPH_NODES = 100
QUEUED_OPS = 500
"""Calls put in the queue at once; drivers block the host when about a thousand wait."""


def probe_dispatch(run: Run) -> Iterator[Measurement]:
    """Seconds per call of a tiny operator, a tiny linear, and what the kind of device adds.

    On an accelerator an eager call is what one kernel after another costs at the device's end; ``enqueue``
    is the host's part alone.
    """
    if not run.wants("dispatch"):
        return
    device = run.target.device
    a, b = (normal(1, TINY, dtype=torch.float32, device=device) for _ in range(2))
    weight = normal(TINY, TINY, dtype=torch.float32, device=device)
    out = torch.empty_like(a)
    yield _seconds(run, "tiny_op", lambda _: torch.add(a, b, out=out), "torch.add of 16 elements")
    yield _seconds(run, "tiny_linear", lambda _: F.linear(a, weight), "F.linear of 16 x 16")
    if run.target.is_cpu:
        yield from _parallel_region(run)
        return
    yield run.figure(
        "dispatch.enqueue",
        _enqueue(run, lambda _: torch.add(a, b, out=out)),
        unit="s",
        amount=1,
        method=f"{QUEUED_OPS} torch.add without waiting, host time",
    )
    if run.target.kind in ("cuda", "rocm"):
        yield from _graph_node(run, a, b, out)


def probe_compiled(run: Run) -> Iterator[Measurement]:
    """Seconds per call of a compiled function of three tiny operators."""
    if not run.wants("dispatch.compiled"):
        return
    if run.target.is_cpu and not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        run.skip("dispatch.compiled", "torch.compile needs a C++ compiler, and none is installed")
        return
    a, b = (normal(1, TINY, dtype=torch.float32, device=run.target.device) for _ in range(2))

    def tiny(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y) * y

    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(tiny)
    try:
        right = torch.allclose(compiled(a, b), tiny(a, b))
    except Exception as error:  # the compiler raises errors of many modules, none of them public
        run.skip("dispatch.compiled", f"torch.compile failed: {type(error).__name__}")
        return
    if not right:
        run.skip("dispatch.compiled", "the compiled function gave a wrong result")
        return
    yield _seconds(run, "compiled", lambda _: compiled(a, b), "torch.compile of three tiny operators")


def _parallel_region(run: Run) -> Iterator[Measurement]:
    """The same elements per thread with one thread and with all: the difference is the region's cost."""
    threads = run.target.threads or 1
    if threads == 1:
        return
    for name, count in (("region_one_thread", 1), ("region_all_threads", threads)):
        x = normal(GRAIN_ELEMENTS * count, dtype=torch.float32, device=run.target.device)
        out = torch.empty_like(x)
        yield _seconds(run, name, _add(x, out), f"torch.add of {GRAIN_ELEMENTS} elements x {count} threads")


def _graph_node(run: Run, a: Tensor, b: Tensor, out: Tensor) -> Iterator[Measurement]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_NODES):
            torch.add(a, b, out=out)
    yield run.figure(
        "dispatch.graph_node",
        run.target.clock.batch(lambda _: graph.replay()),
        unit="s",
        amount=GRAPH_NODES,
        method=f"a replayed graph of {GRAPH_NODES} torch.add",
    )


def _enqueue(run: Run, work: Work) -> Batch:
    """Host time of putting calls in the queue, waiting for the device in between, untimed."""
    synchronize = run.target.torch_module.synchronize

    def timed(calls: int) -> float:
        spent = 0.0
        for start in range(0, calls, QUEUED_OPS):
            synchronize()
            began = time.perf_counter()
            for call in range(start, min(start + QUEUED_OPS, calls)):
                work(call)
            spent += time.perf_counter() - began
        synchronize()
        return spent

    return timed


def _add(x: Tensor, out: Tensor) -> Work:
    return lambda _: torch.add(x, x, out=out)


def _seconds(run: Run, name: str, work: Work, method: str) -> Measurement:
    return run.figure(f"dispatch.{name}", run.target.clock.batch(work), unit="s", amount=1, method=method)
