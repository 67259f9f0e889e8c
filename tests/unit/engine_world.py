"""A toy model for engine tests: the next token is a function of every token it finds in the cache.

A wrong block, slot, copy or position changes what it reads, so wrong bookkeeping gives wrong output.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import count

from rooflens.runtime.engine.blocks import BlockPool
from rooflens.runtime.engine.scheduler import Scheduler
from rooflens.runtime.engine.sequence import SequenceState, Status
from rooflens.runtime.engine.step import Limits, Progress, ScheduledStep

BLOCK_TOKENS = 4
VOCABULARY = 5


def next_token(tokens: Sequence[int]) -> int:
    """What follows ``tokens``; small vocabulary, so that guesses are sometimes right."""
    return blake2b(bytes(tokens), digest_size=1).digest()[0] % VOCABULARY


def continuation(prompt: Sequence[int], limit: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    """The output of an unloaded run."""
    tokens = list(prompt)
    while len(tokens) < limit:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


class World:
    """A scheduler, and the contents of the blocks it hands out."""

    def __init__(
        self,
        *,
        blocks: int,
        max_sequences: int = 8,
        max_batched_tokens: int = 16,
        context: int = 1000,
        prefix_caching: bool = True,
    ) -> None:
        self.pool = BlockPool(blocks, block_tokens=BLOCK_TOKENS, prefix_caching=prefix_caching)
        self.scheduler = Scheduler(self.pool, Limits(max_sequences, max_batched_tokens, context))
        self.slots: list[int | None] = [None] * (blocks * BLOCK_TOKENS)
        self.sequences: list[SequenceState] = []
        self.steps: list[ScheduledStep] = []
        self._ids = count()

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 6,
        n: int = 1,
        stop_ids: frozenset[int] = frozenset(),
    ) -> list[SequenceState]:
        """One request of ``n`` answers."""
        added: list[SequenceState] = []
        for _ in range(n):
            sequence = SequenceState(
                id=next(self._ids),
                tokens=list(prompt),
                limit=len(prompt) + max_tokens,
                stop_ids=stop_ids,
                leader=added[0] if added else None,
            )
            self.scheduler.add(sequence)
            added.append(sequence)
        self.sequences += added
        return added

    def step(self, drafts: dict[int, Sequence[int]] | None = None) -> tuple[Progress, ...] | None:
        """Schedule, run, commit; None if there was nothing to do."""
        step = self.scheduler.schedule(drafts)
        if step is None:
            return None
        self.steps.append(step)
        return self.scheduler.commit(step, self.run(step))

    def run(self, step: ScheduledStep) -> list[tuple[int, ...]]:
        """The toy model's step, and the check of guesses."""
        assert step.tokens <= self.scheduler.limits.max_batched_tokens
        assert len(step.entries) <= self.scheduler.limits.max_sequences
        contents = [self._block(source) for source, _ in step.copies]
        for (_, target), content in zip(step.copies, contents, strict=True):
            self.slots[target * BLOCK_TOKENS : (target + 1) * BLOCK_TOKENS] = content
        written: set[int] = set()
        for entry in step.entries:
            for offset, token in enumerate(entry.token_ids):
                slot = self._slot(entry.block_table, entry.start + offset)
                assert slot not in written, "two sequences write to one slot"
                assert self.pool.writable(slot // BLOCK_TOKENS), "a shared block is written"
                written.add(slot)
                self.slots[slot] = token
        return [self._sample(entry) for entry in step.entries]

    def _sample(self, entry) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
        chosen: list[int] = []
        end = entry.start + len(entry.token_ids)
        for row in range(end - entry.sample, end):
            seen = [self.slots[self._slot(entry.block_table, position)] for position in range(row + 1)]
            assert None not in seen, "the model reads a slot that nobody wrote"
            chosen.append(next_token(seen))  # type: ignore[arg-type]
            if len(chosen) <= len(entry.draft) and chosen[-1] != entry.draft[len(chosen) - 1]:
                break
        return tuple(chosen)

    def drain(self, limit: int = 10_000) -> None:
        """Run until nothing is left."""
        for _ in range(limit):
            if self.step() is None:
                assert not self.scheduler.has_work
                return
        raise AssertionError("the engine does not come to an end")

    def check(self) -> None:
        """The books agree, and the blocks in use are exactly those of running sequences."""
        self.pool.check()
        held = {block for sequence in self.scheduler.running for block in sequence.blocks}
        assert len(held) == self.pool.used
        for sequence in self.sequences:
            assert sequence.status is Status.RUNNING or not sequence.blocks
            assert sequence.computed < len(sequence.tokens) or sequence.status is Status.FINISHED
        arrivals = [sequence.arrival for sequence in self.scheduler.running]
        assert arrivals == sorted(arrivals)

    def output(self, sequence: SequenceState) -> list[int]:
        """What a sequence has generated."""
        return sequence.tokens[sequence.prompt_tokens :]

    def _block(self, block: int) -> list[int | None]:
        return self.slots[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]

    @staticmethod
    def _slot(table: Sequence[int], position: int) -> int:
        return table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
