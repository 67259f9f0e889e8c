"""EngineProfiler: everything that an engine did, step by step and answer by answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooflens.measure.statistics import median, percentile
from rooflens.runtime.engine.records import RequestRecord, StepRecord
from rooflens.runtime.profile.guessing import Guessing, read_guessing
from rooflens.runtime.profile.memory import ALLOCATOR_IDLE, MemoryProfiler, MemoryRecord
from rooflens.runtime.profile.modules import ModuleProfiler, ModuleTimes


@dataclass(frozen=True)
class ProfiledStep:
    """A step's record; the times of its modules and its memory where they were asked for."""

    record: StepRecord
    modules: ModuleTimes | None = None
    memory: MemoryRecord | None = None


@dataclass(frozen=True)
class Distribution:
    """Samples of one metric in seconds: how many, and where they lie. None for no samples."""

    count: int
    mean: float | None
    median: float | None
    p10: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, samples: Sequence[float]) -> Distribution:
        """The distribution of ``samples``."""
        if not samples:
            return cls(0, None, None, None, None, None)
        mean = sum(samples) / len(samples)
        shares = (percentile(samples, share) for share in (0.1, 0.9, 0.99))
        return cls(len(samples), mean, median(samples), *shares)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; seconds."""
        return {
            "count": self.count,
            "mean_s": self.mean,
            "median_s": self.median,
            "p10_s": self.p10,
            "p90_s": self.p90,
            "p99_s": self.p99,
        }


@dataclass(frozen=True)
class EngineProfile:
    """A finished run: its steps and its answers."""

    steps: tuple[ProfiledStep, ...]
    requests: tuple[RequestRecord, ...]

    @property
    def busy_s(self) -> float:
        """Time with work at hand: all steps, and the gaps between them."""
        return sum(step.record.clock_s for step in self.steps)

    @property
    def output_tokens(self) -> int:
        """Tokens generated."""
        return sum(step.record.output_tokens for step in self.steps)

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over the busy time."""
        return self.output_tokens / self.busy_s if self.busy_s else None

    @property
    def peak_tokens_per_s(self) -> float | None:
        """The fastest step's output tokens over its time, gap included; never below ``tokens_per_s``."""
        rates = [step.record.output_tokens / step.record.clock_s for step in self.steps]
        return max(rates, default=None)

    @property
    def guessing(self) -> Guessing | None:
        """What the guesses in decode steps came to; None where none were checked."""
        return read_guessing([step.record for step in self.steps])

    def summary(self) -> dict[str, Any]:
        """The run in one table: counts, rates, and the distribution of each metric."""
        records = [step.record for step in self.steps]
        by_phase = {
            phase: {
                "steps": sum(record.phase == phase for record in records),
                "total_s": sum(record.clock_s for record in records if record.phase == phase),
                "step_s": Distribution.of([r.clock_s for r in records if r.phase == phase]).to_dict(),
            }
            for phase in ("prefill", "decode", "mixed")
        }
        prompt = sum(request.prompt_tokens for request in self.requests)
        cached = sum(request.cached_tokens for request in self.requests)
        drafted = sum(record.drafted_tokens for record in records)
        accepted = sum(record.accepted_tokens for record in records)
        guessing = self.guessing
        return {
            "requests": len(self.requests),
            "finish_reasons": dict(Counter(request.finish_reason for request in self.requests)),
            "steps": len(records),
            "busy_s": self.busy_s,
            "by_phase": by_phase,
            "prompt_tokens": prompt,
            "prefill_tokens": sum(record.prefill_tokens for record in records),
            "output_tokens": self.output_tokens,
            "tokens_per_s": self.tokens_per_s,
            "peak_tokens_per_s": self.peak_tokens_per_s,
            "cached_share": cached / prompt if prompt else None,
            "preemptions": sum(record.preempted for record in records),
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
            "acceptance": accepted / drafted if drafted else None,
            "speculation": None if guessing is None else guessing.to_dict(),
            "budget_share": sum(r.budget_share for r in records) / len(records) if records else None,
            "peak_running": max((record.running for record in records), default=0),
            "peak_waiting": max((record.waiting for record in records), default=0),
            "peak_kv_blocks_used": max((record.kv_blocks_used for record in records), default=0),
            "queue": _of(self.requests, "queue_s").to_dict(),
            "ttft": _of(self.requests, "ttft_s").to_dict(),
            "tpot": _of(self.requests, "tpot_s").to_dict(),
            "itl": Distribution.of([gap for r in self.requests for gap in r.itl_s]).to_dict(),
            "total": _of(self.requests, "total_s").to_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON: summary, a row for each step and each answer."""
        memory = [step.memory.to_dict() for step in self.steps if step.memory is not None]
        return {
            "schema": "rooflens.profile/1",
            "summary": self.summary(),
            "steps": [step.record.to_dict() for step in self.steps],
            "requests": [request.to_dict() for request in self.requests],
            "memory": memory,
            "notes": [ALLOCATOR_IDLE] if any(row["allocator_idle_bytes"] for row in memory) else [],
        }


class EngineProfiler:
    """An observer of an engine that keeps everything; with modules and memory, if asked.

    ``modules`` watches the engine's own model. With ``alternate`` it does so in every other step: the steps
    between, left alone, tell what watching costs.
    """

    def __init__(
        self,
        *,
        modules: ModuleProfiler | None = None,
        memory: MemoryProfiler | None = None,
        alternate: bool = False,
    ) -> None:
        self.modules = modules
        self.alternate = alternate
        self.memory = memory
        self._steps: list[ProfiledStep] = []
        self._requests: list[RequestRecord] = []

    def on_step(self, record: StepRecord) -> None:
        """See ``Observer``."""
        times = None
        if self.modules is not None:
            times = self.modules.take()
            if self.alternate:
                (self.modules.rest if self.modules.watching else self.modules.watch)()
        memory = None if self.memory is None else self.memory.read(record)
        self._steps.append(ProfiledStep(record, times, memory))

    def on_request(self, record: RequestRecord) -> None:
        """See ``Observer``."""
        self._requests.append(record)

    def profile(self) -> EngineProfile:
        """What was seen so far; whole at any moment, so also after an interruption."""
        return EngineProfile(tuple(self._steps), tuple(self._requests))


def _of(requests: Sequence[RequestRecord], metric: str) -> Distribution:
    values = (getattr(request, metric) for request in requests)
    return Distribution.of([value for value in values if value is not None])
