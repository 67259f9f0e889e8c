"""One run of the probe: the steps in order of weight, each with its share of the time, and the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rooflens.measure.activity import ActivityMeter
from rooflens.measure.environment import fingerprint
from rooflens.measure.records import ProbeRecord
from rooflens.measure.timer import TimingError

if TYPE_CHECKING:
    from rooflens.measure.probes.run import Effort, Probe, Run, Shapes
    from rooflens.measure.probes.target import Target
    from rooflens.models.spec import ModelSpec

LAST_FIGURE_S = 1.0
"""The second round starts no figure later than this before the limit."""

Progress = Callable[[float, str], None]
"""Told the share of the time that is spent (0 to 1) and what is being measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """One probe; ``weight`` is its share of the time relative to the others'."""

    title: str
    weight: float
    probe: Probe


def run_probe(
    target: Target,
    effort: Effort,
    *,
    shapes: Shapes | None = None,
    progress: Progress = lambda share, title: None,
    started: float | None = None,
) -> ProbeRecord:
    """Measure a device; an interrupt (Ctrl-C) ends it early and keeps every figure that is done.

    ``started`` (of ``time.perf_counter``) counts time already spent against the limit. Raises
    CapacityError where memory is too small to measure bandwidth.
    """
    import torch

    from rooflens.measure.probes.run import Run
    from rooflens.measure.probes.run import Shapes as DefaultShapes

    target.check_memory()
    begin = time.perf_counter() if started is None else started
    meter, created = ActivityMeter(), datetime.now(UTC).isoformat(timespec="microseconds")
    environment = fingerprint(torch=torch, threads=target.threads, accelerator=target.state())
    run = Run(target, effort, shapes or DefaultShapes())
    threads_before = torch.get_num_threads()
    if target.threads is not None:
        torch.set_num_threads(target.threads)
    try:
        with torch.inference_mode():
            finished = _measure(run, progress, begin)
        environment["accelerator_after"] = target.state()
    finally:
        torch.set_num_threads(threads_before)
        target.empty_cache()
    return ProbeRecord(
        created=created.replace("+00:00", "Z"),
        mode=effort.name,
        finished=finished,
        duration_s=time.perf_counter() - begin,
        device=target.describe(),
        environment=environment,
        activity=meter.stop(),
        measurements=tuple(run.done.values()),
        skipped=run.everything_skipped(),
    )


def _measure(run: Run, progress: Progress, begin: float) -> bool:
    """Run the steps, then once more what was missed or disturbed; whether all had their turn."""
    end = begin + run.effort.limit_s

    def report(title: str) -> None:
        progress(min(1.0, (time.perf_counter() - begin) / run.effort.limit_s), title)

    try:
        steps = plan_steps(run)
        for position, step in enumerate(steps):
            now = time.perf_counter()
            # What earlier steps left unused is shared out again.
            run.stop_at = now + (end - now) * step.weight / sum(later.weight for later in steps[position:])
            _take(run, step, report)
        run.again, run.stop_at = True, end - LAST_FIGURE_S
        for step in steps:
            _take(run, step, report)
    except KeyboardInterrupt:
        return False
    progress(1.0, "done")
    return True


def _take(run: Run, step: Step, report: Callable[[str], None]) -> None:
    """One step's figures; a kernel that fails or a lack of memory ends the step, not the run."""
    report(step.title)
    try:
        for measurement in step.probe(run):
            run.keep(measurement)
            report(measurement.name)
    except (RuntimeError, MemoryError, TimingError) as error:  # torch's own errors are RuntimeErrors
        first_line = str(error).partition("\n")[0] or type(error).__name__
        run.skip(step.title, first_line)
        run.target.empty_cache()


def plan_steps(run: Run) -> list[Step]:
    """The steps for a device, those that every answer needs first. Weights are roughly seconds."""
    from rooflens.measure.probes import attention, batches, cpu_memory, device_memory, dispatch, matmul
    from rooflens.measure.probes.sustained import probe_sustained

    effort, cpu = run.effort, run.target.is_cpu
    memory = cpu_memory.probe_cpu_memory if cpu else device_memory.probe_device_memory
    caches = cpu_memory.probe_cpu_caches if cpu else device_memory.probe_device_caches
    dtypes = 8 if effort.every_dtype else 5
    shapes = 4 if effort.standard_shapes else 1
    model = effort.model_linears if run.shapes.linears else 0
    steps = [
        Step("memory", 5, memory),
        Step("matrix multiply", 1.5 * dtypes * shapes + model, matmul.probe_matmul),
        Step("skinny multiply", 1 + len(effort.batch_sizes), batches.probe_batches),
        Step("dispatch", 3, dispatch.probe_dispatch),
        Step("caches", 16 if effort.whole_cache_sweep else 3, caches),
        Step("attention", 3, attention.probe_attention),
    ]
    if effort.sustained:
        steps.append(Step("burst and sustained", 2 * (effort.idle_s + effort.settle_s), probe_sustained))
    else:
        run.skip("sustained", f"left out of the {effort.name} probe")
    if run.target.kind in ("cuda", "rocm", "xpu"):
        steps.append(Step("host link", 2, device_memory.probe_host_link))
    if effort.compiled:
        steps.append(Step("compiled call", 10, dispatch.probe_compiled))
    else:
        run.skip("dispatch.compiled", f"left out of the {effort.name} probe")
    return steps


def shapes_of(spec: ModelSpec) -> Shapes:
    """The linears and the attention of a model, as the probe measures them.

    Raises UnsupportedError for a model that names no layers.
    """
    from rooflens.errors import UnsupportedError
    from rooflens.measure.probes.run import AttentionShape, LinearShape, Shapes
    from rooflens.models.spec import Attention, layer_linears

    counts: dict[tuple[int, int], tuple[str, int]] = {}
    for group in spec.groups:
        for path, linear, _ in layer_linears(group.layer):
            key = (linear.out_features, linear.in_features)
            name, count = counts.get(key, (path, 0))
            counts[key] = (name, count + group.count)
    if not counts:
        raise UnsupportedError("the model names no linears, so it has no shapes to measure", value=spec.name)
    linears = tuple(LinearShape(name, n, k, count) for (n, k), (name, count) in counts.items())
    attentions = [
        mixer
        for layer in spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention) and mixer.cached
    ]
    streamed = max(linears, key=lambda shape: shape.n * shape.k)
    if not attentions:
        return Shapes(model=spec.name, linears=linears, streamed=streamed)
    first = attentions[0]
    attention = AttentionShape(first.heads, first.kv_heads, first.head_dim)
    return Shapes(model=spec.name, linears=linears, attention=attention, streamed=streamed)
