"""One sequence of tokens on its way through the engine: how far it is, and which blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from rooflens.runtime.engine.blocks import block_hash

FinishReason = Literal["stop", "length", "cancelled", "error"]


class Status(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class SequenceState:
    """Prompt and output of one answer. Only the scheduler writes to it.

    Progress is ``computed`` (tokens whose keys and values are in the cache) against ``tokens``, and nothing
    else: a preempted sequence with output has a prefill before it again. ``limit``: tokens at which it ends;
    ``stop_ids`` end it too. ``leader``: a sequence with the same prompt whose blocks it may share.
    ``prefill_until``: tokens that were known when it was last admitted.
    """

    id: int
    tokens: list[int]
    limit: int
    stop_ids: frozenset[int] = frozenset()
    leader: SequenceState | None = None
    prompt_tokens: int = 0
    arrival: int = 0
    status: Status = Status.WAITING
    computed: int = 0
    prefill_until: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    registered: int = 0
    cached_tokens: int | None = None
    preemptions: int = 0
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def uncomputed(self) -> int:
        """Tokens that are known and not in the cache."""
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is missing in the cache, and the prefill is over."""
        return self.status is Status.RUNNING and self.uncomputed == 1 and self.computed >= self.prefill_until

    def block_names(self, block_tokens: int, *, until: int) -> list[bytes]:
        """The hashes of the first blocks, as many as are full with ``until`` tokens."""
        count = until // block_tokens
        while len(self.hashes) < count:
            start = len(self.hashes) * block_tokens
            parent = self.hashes[-1] if self.hashes else b""
            self.hashes.append(block_hash(parent, self.tokens[start : start + block_tokens]))
        return self.hashes[:count]
