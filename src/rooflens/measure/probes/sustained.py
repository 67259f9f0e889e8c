"""Burst and sustained rate of the most used dtype: what a rested device does, and what it keeps up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rooflens.measure.environment import cpu_clock_hz
from rooflens.measure.probes.linear_kernels import linear_kernels
from rooflens.measure.probes.matmul import SMALLEST_CUBE, linear_flops, matmul_batch
from rooflens.measure.probes.run import Run, as_measurement
from rooflens.measure.probes.target import Target
from rooflens.measure.records import Measurement
from rooflens.measure.statistics import summarize
from rooflens.measure.timer import Batch, Samples
from rooflens.units import KILO, MEGA

BURST_S = 0.1
SUSTAINED_S = 2.0
SAMPLING_S = 0.1
"""How often clocks and power are read: seldom enough to disturb nothing."""
_BURST_CALLS = 5
_DTYPES = ("bf16", "fp16", "fp32")


def probe_sustained(run: Run) -> Iterator[Measurement]:
    """A cube by the kernel that gave the peak: the first 0.1 s after a rest, then 2 s after 3 s of load.

    Clocks and power are read meanwhile where the system shows them.
    """
    if not run.wants("sustained"):
        return
    cube = _fastest_cube(list(run.done.values()))
    if cube is None:
        run.skip("sustained", "no bf16, fp16 or fp32 peak was measured")
        return
    dtype, side = str(cube.parameters["dtype"]), _side(cube)
    kernel = next(
        item for item in linear_kernels(run.target) if item.dtype == dtype and item.method == cube.method
    )
    flops = linear_flops(side, side, side)
    parameters = {**cube.parameters, "m": side, "n": side, "k": side}
    with kernel.setting():
        batch = matmul_batch(run.target, kernel, side, side, side)
        batch(1)
        time.sleep(run.effort.idle_s)
        yield as_measurement(
            f"burst.{dtype}",
            _burst(batch),
            unit="flops_per_s",
            amount=flops,
            method=cube.method,
            parameters={**parameters, "idle_s": run.effort.idle_s},
        )
        enough = round(SUSTAINED_S / run.effort.policy.batch_s)
        with Monitor(run.target) as monitor:
            samples = run.sample(batch, warm_up_s=run.effort.settle_s, max_s=SUSTAINED_S, min_batches=enough)
        yield as_measurement(
            f"sustained.{dtype}",
            samples,
            unit="flops_per_s",
            amount=flops,
            method=cube.method,
            parameters={**parameters, "settle_s": run.effort.settle_s, **monitor.summary()},
        )


def _fastest_cube(measured: list[Measurement]) -> Measurement | None:
    """The cube of the first 16-bit dtype that was measured, else of fp32."""
    for dtype in _DTYPES:
        cubes = [
            item
            for item in measured
            if item.name.startswith(f"gemm.{dtype}.") and len({item.parameters[x] for x in "mnk"}) == 1
        ]
        if cubes:
            return max(cubes, key=lambda item: item.amount)
    return None


def _side(cube: Measurement) -> int:
    """The cube's side, halved until several calls fit into the burst."""
    side = int(cube.parameters["m"])
    while side > SMALLEST_CUBE and linear_flops(side, side, side) / cube.value > BURST_S / _BURST_CALLS:
        side //= 2
    return side


def _burst(batch: Batch) -> Samples:
    """Single calls until 0.1 s of work is done: nothing warms up."""
    seconds: list[float] = []
    while sum(seconds) < BURST_S:
        seconds.append(batch(1))
    return Samples(tuple(seconds), 1, False)


class Monitor:
    """Reads clock and power of a device from a thread of its own; a context manager."""

    def __init__(self, target: Target) -> None:
        self._sources = sources(target)
        self._seen: dict[str, list[float]] = {name: [] for name in self._sources}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def summary(self) -> dict[str, float]:
        """Median of every source that answered, and the lowest and highest clock."""
        found: dict[str, float] = {}
        for name, values in self._seen.items():
            if values:
                found[name] = summarize(values).median
                if name.endswith("_hz"):
                    found[f"lowest_{name}"], found[f"highest_{name}"] = min(values), max(values)
        return found

    def _watch(self) -> None:
        while not self._done.wait(SAMPLING_S):
            for name, read in self._sources.items():
                value = read()
                if value is not None and value > 0:
                    self._seen[name].append(value)


def sources(target: Target) -> dict[str, Callable[[], float | None]]:
    """How to read clock (Hz) and power (W) of a device: NVML or amdsmi by way of torch, sysfs for a CPU."""
    if target.is_cpu:
        return {"clock_hz": cpu_clock_hz, "power_w": PackagePower().watts}
    if target.kind in ("cuda", "rocm"):
        module, device = target.torch_module, target.device
        return {
            "clock_hz": _best_effort(lambda: float(module.clock_rate(device)) * MEGA),
            "power_w": _best_effort(lambda: float(module.power_draw(device)) / KILO),
            "temperature_c": _best_effort(lambda: float(module.temperature(device))),
        }
    return {}


def _best_effort(read: Callable[[], float]) -> Callable[[], float | None]:
    def attempt() -> float | None:
        try:
            return read()
        except Exception:  # the bindings are optional, and their errors have no public base
            return None

    return attempt


class PackagePower:
    """Power of a CPU package from its energy counter, where Linux shows it to this user."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._counter = root / "sys/class/powercap/intel-rapl:0/energy_uj"
        self._last: tuple[float, int] | None = None

    def watts(self) -> float | None:
        """Mean power since the last call; None the first time, after a wrap, or without a counter."""
        try:
            energy = int(self._counter.read_text())
        except (OSError, ValueError):
            return None
        now, last = time.monotonic(), self._last
        self._last = (now, energy)
        if last is None or energy < last[1]:
            return None
        return (energy - last[1]) / MEGA / (now - last[0])
