"""The hand-offs around one step of the engine: its limits, what is to run, and what it brought."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.errors import CapacityError, InputError
from rooflens.runtime.engine.sequence import FinishReason, SequenceState


@dataclass(frozen=True)
class Limits:
    """What a step may hold: sequences, tokens of all of them, and the longest sequence."""

    max_sequences: int
    max_batched_tokens: int
    context: int

    def __post_init__(self) -> None:
        """Raises InputError naming the field."""
        for field in ("max_sequences", "max_batched_tokens", "context"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{field} is not usable", value=value, allowed="a whole number of 1 or more")
        if self.max_batched_tokens < self.max_sequences:
            raise InputError(
                "max_batched_tokens is too small: every running sequence decodes a token in each step",
                value=self.max_batched_tokens,
                allowed=f"at least max_sequences, {self.max_sequences}",
            )


def check_fits(*, prompt_tokens: int, max_tokens: int, context: int, pool_tokens: int) -> None:
    """Refuse a request that could never finish, before any work.

    ``context``: longest sequence; ``pool_tokens``: what the KV cache holds. Raises InputError for an empty
    prompt and CapacityError, with both numbers, for one that is too long.
    """
    if prompt_tokens < 1:
        raise InputError("the prompt is empty", next="give at least one token")
    limit, name = (context, "the context") if context <= pool_tokens else (pool_tokens, "the KV cache")
    if prompt_tokens >= limit:
        raise CapacityError(
            f"the prompt of {prompt_tokens:,} tokens leaves no room in {name} of {limit:,} tokens",
            value=prompt_tokens,
            allowed=f"at most {limit - 1:,} tokens",
            next="shorten the prompt",
        )
    if prompt_tokens + max_tokens > limit:
        raise CapacityError(
            f"the prompt of {prompt_tokens:,} tokens and max_tokens {max_tokens:,} exceed {name} of"
            f" {limit:,} tokens",
            value=prompt_tokens + max_tokens,
            allowed=f"max_tokens of at most {limit - prompt_tokens:,} for this prompt",
        )


@dataclass(frozen=True)
class ScheduledSequence:
    """One sequence's share of a step.

    ``token_ids`` go to positions ``start`` on; the last ``len(draft)`` of them are guesses to be checked.
    The last ``sample`` rows get logits. ``copy`` (source, target): a block to copy before the step runs,
    because it is shared and will be written. ``prefill``: known tokens are computed, not new ones made.
    """

    sequence: SequenceState
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    sample: int
    prefill: bool
    draft: tuple[int, ...] = ()
    copy: tuple[int, int] | None = None


@dataclass(frozen=True)
class ScheduledStep:
    """Everything that one step runs, and what was decided on the way."""

    entries: tuple[ScheduledSequence, ...]
    admitted: tuple[SequenceState, ...]
    preempted: tuple[SequenceState, ...]
    waiting: int
    running: int

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return sum(len(entry.token_ids) for entry in self.entries)

    @property
    def copies(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the blocks to copy before the step runs: all are read before any is written."""
        return tuple(entry.copy for entry in self.entries if entry.copy is not None)


@dataclass(frozen=True)
class Progress:
    """What a step brought one sequence: new tokens, and why it ended if it did."""

    sequence: SequenceState
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
