"""What every probe is given: the device, how much effort to spend, and how to turn work into figures."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from rooflens.measure.probes.target import Target
from rooflens.measure.records import Measurement, Skipped, Unit
from rooflens.measure.statistics import NOISY_SPREAD
from rooflens.measure.timer import Batch, Policy, Samples, sample


@dataclass(frozen=True)
class LinearShape:
    """A matrix multiply of a model: y[m, n] = x[m, k] W[n, k]^T; ``count`` copies of it in one pass."""

    name: str
    n: int
    k: int
    count: int = 1


@dataclass(frozen=True)
class AttentionShape:
    """Query heads, key/value heads and their size."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Shapes:
    """Which shapes to measure beside the standard ones; ``model`` names where they come from."""

    model: str | None = None
    linears: tuple[LinearShape, ...] = ()
    attention: AttentionShape = AttentionShape(heads=32, kv_heads=8, head_dim=128)
    streamed: LinearShape = LinearShape("square", n=4096, k=4096)


@dataclass(frozen=True)
class Effort:
    """How long and how much to measure. Times in seconds; see ``QUICK`` and ``FULL``.

    ``largest_call_s`` bounds one matrix multiply, ``idle_s`` is the rest before the burst, ``settle_s``
    the load before the sustained rate. ``batch_sizes`` are the rows m of the skinny multiplies,
    ``prompt_tokens`` the length of the attention's prompt.
    """

    name: str
    limit_s: float
    policy: Policy
    largest_call_s: float
    largest_cube: int
    standard_shapes: bool
    whole_cache_sweep: bool
    every_dtype: bool
    batch_sizes: tuple[int, ...]
    model_linears: int
    prompt_tokens: int
    compiled: bool
    idle_s: float = 0.0
    settle_s: float = 0.0

    @property
    def sustained(self) -> bool:
        """Whether burst and sustained rates are told apart."""
        return self.settle_s > 0


_BRIEF_BATCHES = 2
ALL_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

QUICK = Effort(
    name="quick", limit_s=25.0, policy=Policy(warm_up_s=0.06, max_s=0.7), largest_call_s=0.06,
    largest_cube=8192, standard_shapes=False, whole_cache_sweep=False, every_dtype=False,
    batch_sizes=(1, 8), model_linears=3, prompt_tokens=512, compiled=False,
)  # fmt: skip
FULL = Effort(
    name="full", limit_s=270.0, policy=Policy(warm_up_s=0.2, max_s=3.0), largest_call_s=0.25,
    largest_cube=8192, standard_shapes=True, whole_cache_sweep=True, every_dtype=True,
    batch_sizes=ALL_BATCH_SIZES, model_linears=12, prompt_tokens=2048, compiled=True,
    idle_s=5.0, settle_s=3.0,
)  # fmt: skip


@dataclass
class Run:
    """One probe run in progress. ``stop_at`` (of ``time.perf_counter``) ends the present step's share.

    ``again`` is the second round: what was not reached, and what was disturbed, is measured once more.
    """

    target: Target
    effort: Effort
    shapes: Shapes
    stop_at: float = math.inf
    again: bool = False
    done: dict[str, Measurement] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    def sample(self, batch: Batch, **changes: float) -> Samples:
        """Raw samples under this run's policy, with ``changes`` to it."""
        return sample(batch, replace(self.effort.policy, **changes), stop_at=self.stop_at)  # type: ignore[arg-type]

    def figure(
        self,
        name: str,
        batch: Batch,
        *,
        unit: Unit,
        amount: float,
        method: str,
        parameters: Mapping[str, int | float | str] | None = None,
        tried: Mapping[str, float] | None = None,
    ) -> Measurement:
        """Sample a batch and make a measurement of it."""
        return as_measurement(
            name,
            self.sample(batch),
            unit=unit,
            amount=amount,
            method=method,
            parameters=parameters,
            tried=tried,
        )

    def fastest(self, options: Mapping[str, Batch]) -> tuple[str, dict[str, float]]:
        """The fastest of several ways to do one piece of work, by a brief look at each.

        Returns its name and the seconds per call of all of them.
        """
        brief = {"warm_up_s": 0.0, "max_s": 0.0, "fewest": _BRIEF_BATCHES}
        seconds = {name: self.sample(batch, **brief).summary.median for name, batch in options.items()}
        return min(seconds, key=lambda name: seconds[name]), seconds

    def skip(self, name: str, why: str) -> None:
        """Record that something was not measured."""
        self.skipped.append(Skipped(name, " ".join(why.split())))

    def wants(self, name: str) -> bool:
        """Whether a figure (or those under a dotted name) is to be measured now: asked before each.

        No when the step's share of the time is used up, which is remembered; in the second round no for
        what was measured undisturbed.
        """
        if self.again and not self._open(name):
            return False
        if time.perf_counter() >= self.stop_at:
            self.late.append(name)
            return False
        return True

    def _open(self, name: str) -> bool:
        mine = [item for item in self.done.values() if item.name == name or item.name.startswith(f"{name}.")]
        return not mine or any(item.seconds.spread > NOISY_SPREAD for item in mine)

    def keep(self, item: Measurement) -> None:
        """Take over a figure; of two runs the better one, since disturbance only slows."""
        first = self.done.get(item.name)
        if first is None:
            self.done[item.name] = item
            return
        better = item.value < first.value if item.unit == "s" else item.value > first.value
        kept, other = (item, first) if better else (first, item)
        self.done[item.name] = replace(kept, tried={**kept.tried, "other run": other.value})

    def everything_skipped(self) -> tuple[Skipped, ...]:
        """What was left out and why, each once; what was reached late is not missing."""
        missed = [name for name in self.late if not any(f"{d}.".startswith(f"{name}.") for d in self.done)]
        late = [Skipped(name, f"time ran out ({self.effort.limit_s:g} s)") for name in dict.fromkeys(missed)]
        return (*dict.fromkeys(self.skipped), *late)


class Probe(Protocol):
    """One step: yields each figure as soon as it is known, so that an interrupt loses only the next."""

    def __call__(self, run: Run) -> Iterator[Measurement]: ...


def as_measurement(
    name: str,
    samples: Samples,
    *,
    unit: Unit,
    amount: float,
    method: str,
    parameters: Mapping[str, int | float | str] | None = None,
    tried: Mapping[str, float] | None = None,
) -> Measurement:
    """A measurement of raw samples; see ``Measurement`` for the fields."""
    return Measurement(
        name=name,
        unit=unit,
        amount=amount,
        samples_s=samples.seconds,
        calls_per_batch=samples.calls,
        converged=samples.converged,
        method=method,
        parameters=dict(parameters or {}),
        tried=dict(tried or {}),
    )
