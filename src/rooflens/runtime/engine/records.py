"""What the engine writes down of every step and every answer: the one definition of each metric.

Times are seconds of the engine's clock (``time.perf_counter``). Tokens are counted, never the messages
that they travel in: a step that brings several tokens has several entries in the inter-token times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rooflens.runtime.engine.sequence import FinishReason

StepPhase = Literal["prefill", "decode", "mixed"]
#: The times that a step consists of, in their order.
PHASES = ("draft_s", "schedule_s", "prepare_s", "model_s", "sample_s", "commit_s", "detokenise_s")


@dataclass(frozen=True)
class Work:
    """One sequence's share of a step: ``new_tokens`` run after ``context`` cached ones, ``sampled`` rows.

    ``accepted`` of the ``drafted`` guesses among the new tokens were right.
    """

    context: int
    new_tokens: int
    sampled: int
    prefill: bool
    accepted: int = 0

    @property
    def drafted(self) -> int:
        """Guesses that were checked: every sampled row but one is after a guess."""
        return max(0, self.sampled - 1)


@dataclass(frozen=True)
class StepRecord:
    """One step of the engine.

    Seconds, in the order in which they pass: ``gap_s`` since the step before was over and its observers told
    (None if the engine had nothing to do in between), ``draft_s`` guessing, ``schedule_s``, ``prepare_s``
    laying the batch out and copying blocks, ``model_s``, ``sample_s``, ``commit_s``, ``detokenise_s``. On
    asynchronous devices ``model_s`` is true only if the engine synchronises; otherwise the wait shows in
    ``sample_s``.
    ``drafted_tokens`` are guesses that were checked, ``accepted_tokens`` those that were right. Blocks are
    counted after the step.
    """

    index: int
    started_s: float
    gap_s: float | None
    draft_s: float
    schedule_s: float
    prepare_s: float
    model_s: float
    sample_s: float
    commit_s: float
    detokenise_s: float
    work: tuple[Work, ...]
    output_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    admitted: int
    preempted: int
    waiting: int
    running: int
    budget_tokens: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_free: int

    @property
    def total_s(self) -> float:
        """From the first decision to the last delta, without the gap before."""
        return float(sum(getattr(self, phase) for phase in PHASES))

    @property
    def clock_s(self) -> float:
        """What the step took of the engine's time, the gap before it included."""
        return self.total_s + (self.gap_s or 0.0)

    @property
    def prefill_tokens(self) -> int:
        """Known tokens computed: of prompts, and of preempted sequences again."""
        return sum(item.new_tokens for item in self.work if item.prefill)

    @property
    def decode_tokens(self) -> int:
        """Tokens run to make new ones, guesses included."""
        return sum(item.new_tokens for item in self.work if not item.prefill)

    @property
    def phase(self) -> StepPhase:
        """Which of the two the step did; a mixed step's time is not divided between them."""
        kinds = {item.prefill for item in self.work}
        if len(kinds) == 2:
            return "mixed"
        return "prefill" if True in kinds else "decode"

    @property
    def budget_share(self) -> float:
        """Tokens of the step over the most that it may hold."""
        return (self.prefill_tokens + self.decode_tokens) / self.budget_tokens

    def to_dict(self) -> dict[str, Any]:
        """As JSON; flat, one column each."""
        return {
            "index": self.index,
            "phase": self.phase,
            "started_s": self.started_s,
            "gap_s": self.gap_s,
            "total_s": self.total_s,
            **{phase: getattr(self, phase) for phase in PHASES},
            "sequences": len(self.work),
            "prefill_tokens": self.prefill_tokens,
            "decode_tokens": self.decode_tokens,
            "context_tokens": sum(item.context for item in self.work),
            "output_tokens": self.output_tokens,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "admitted": self.admitted,
            "preempted": self.preempted,
            "waiting": self.waiting,
            "running": self.running,
            "budget_tokens": self.budget_tokens,
            "budget_share": self.budget_share,
            "kv_blocks_used": self.kv_blocks_used,
            "kv_blocks_cached": self.kv_blocks_cached,
            "kv_blocks_free": self.kv_blocks_free,
        }


@dataclass(frozen=True)
class RequestRecord:
    """One answer's life. ``token_times_s``: (when, how many tokens came) for every step that brought some.

    Every token counts when it is made, whether or not its text is shown: special tokens, reasoning, and
    text that is held back too.
    """

    request_id: str
    index: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    arrival_s: float
    scheduled_s: float | None
    finished_s: float
    token_times_s: tuple[tuple[float, int], ...]
    finish_reason: FinishReason

    @property
    def output_tokens(self) -> int:
        """Tokens generated."""
        return sum(tokens for _, tokens in self.token_times_s)

    @property
    def queue_s(self) -> float | None:
        """From arrival to the start of the first step that ran a part of it; None if there was none."""
        return None if self.scheduled_s is None else self.scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from arrival to the end of the step that made it; None without tokens."""
        return self.token_times_s[0][0] - self.arrival_s if self.token_times_s else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Inter-token latencies, one for each token after the first.

        n tokens of one step share the time since the step before equally, so that their sum always is the
        time from the first token to the last.
        """
        if not self.token_times_s:
            return ()
        last, tokens = self.token_times_s[0]
        series = [0.0] * (tokens - 1)
        for when, tokens in self.token_times_s[1:]:
            series += [(when - last) / tokens] * tokens
            last = when
        return tuple(series)

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: first token to last over the tokens after the first; None below two."""
        series = self.itl_s
        return sum(series) / len(series) if series else None

    @property
    def total_s(self) -> float:
        """From arrival to the end."""
        return self.finished_s - self.arrival_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "request_id": self.request_id,
            "index": self.index,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "preemptions": self.preemptions,
            "arrival_s": self.arrival_s,
            "queue_s": self.queue_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "total_s": self.total_s,
            "itl_s": list(self.itl_s),
        }


class Observer(Protocol):
    """Who wants to know; called by the engine's thread, so quick."""

    def on_step(self, record: StepRecord) -> None:
        """A step is over."""
        ...

    def on_request(self, record: RequestRecord) -> None:
        """An answer is over."""
        ...
