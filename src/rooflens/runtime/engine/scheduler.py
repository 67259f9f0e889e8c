"""Who runs how many tokens in the next step: continuous batching over a pool of KV blocks. No torch here.

The rules, in order: sequences that decode get their one token first; then prompts continue in the order
of their arrival, in chunks, until the step's budget of tokens is used up; then waiting ones are admitted,
each with room for all its known tokens and for the others to go on. When blocks run out, whoever came
last is preempted: its blocks are given back, and it computes its tokens again later (often by a prefix
hit).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from rooflens.runtime.engine.blocks import BlockPool
from rooflens.runtime.engine.sequence import FinishReason, SequenceState, Status
from rooflens.runtime.engine.step import Limits, Progress, ScheduledSequence, ScheduledStep, check_fits


class Scheduler:
    """The queues and the pool: ``schedule``, run the step, ``commit``; in between ``add`` and ``finish``."""

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []  # by arrival
        self._arrivals = count()
        #: Tokens looked up in the prefix cache at first admission, and those found.
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0

    @property
    def longest(self) -> int:
        """Tokens, prompt and output together, that one sequence can reach."""
        return min(self.limits.context, self.pool.total * self.pool.block_tokens)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.waiting or self.running)

    def check(self, *, prompt_tokens: int, max_tokens: int) -> None:
        """Refuse what could never finish, before any work: see ``check_fits``."""
        check_fits(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            context=self.limits.context,
            pool_tokens=self.pool.total * self.pool.block_tokens,
        )

    def add(self, sequence: SequenceState) -> None:
        """Put a sequence at the end of the queue. Raises as ``check``."""
        self.check(prompt_tokens=len(sequence.tokens), max_tokens=sequence.limit - len(sequence.tokens))
        sequence.arrival = next(self._arrivals)
        self.waiting.append(sequence)

    def finish(self, sequence: SequenceState, reason: FinishReason) -> None:
        """End a sequence between steps: its blocks are free for the next one."""
        if sequence.status is Status.FINISHED:
            return
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        self._give_back(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason

    def decoding(self) -> list[SequenceState]:
        """Sequences that will make new tokens in the next step: for whom drafts are worth while."""
        return [sequence for sequence in self.running if sequence.decoding]

    def schedule(self, drafts: Mapping[int, Sequence[int]] | None = None) -> ScheduledStep | None:
        """The next step, or None if there is nothing to run.

        ``drafts``: guesses of the next tokens by sequence id, for sequences that decode; they are cut
        where the budget or the blocks are short, and never cost anyone else its place.
        """
        return _Round(self, drafts or {}).run()

    def commit(self, step: ScheduledStep, sampled: Sequence[Sequence[int]]) -> tuple[Progress, ...]:
        """Take over a step's result. ``sampled``: for each entry the tokens chosen, () where none was asked.

        With a draft these are the accepted guesses and the token after them. Sequences that reach a stop
        token or their limit are finished here; tokens after that are dropped.
        """
        progress = []
        for entry, chosen in zip(step.entries, sampled, strict=True):
            sequence = entry.sequence
            if sequence.status is not Status.RUNNING:
                continue
            assert bool(chosen) == bool(entry.sample)
            assert tuple(chosen[:-1]) == entry.draft[: max(0, len(chosen) - 1)]
            tokens, reason = _until_end(sequence, chosen)
            known = entry.start + len(entry.token_ids) - len(entry.draft)
            # Rejected guesses left keys and values beyond this; the next tokens overwrite them.
            sequence.computed = known + max(0, len(tokens) - 1)
            sequence.tokens.extend(tokens)
            self._register(sequence)
            if reason is not None:
                self.finish(sequence, reason)
            if tokens:
                progress.append(Progress(sequence, tokens, reason))
        return tuple(progress)

    def abandon(self, step: ScheduledStep) -> None:
        """Forget a step that did not run to its end. Its sequences can be scheduled again.

        Those that were to start from a copied block start over: the copy may not have been made.
        """
        for entry in step.entries:
            if entry.copy is not None and entry.sequence.status is Status.RUNNING:
                self._preempt(entry.sequence)

    def _register(self, sequence: SequenceState) -> None:
        if not self.pool.prefix_caching:
            return
        names = sequence.block_names(self.pool.block_tokens, until=sequence.computed)
        for index in range(sequence.registered, len(names)):
            self.pool.register(sequence.blocks[index], names[index])
        sequence.registered = len(names)

    def _give_back(self, sequence: SequenceState) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.registered = 0

    def _preempt(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        # By arrival: everyone it stood behind before is still before it.
        place = next((i for i, other in enumerate(self.waiting) if other.arrival > sequence.arrival), None)
        self.waiting.insert(len(self.waiting) if place is None else place, sequence)


def _until_end(sequence: SequenceState, chosen: Iterable[int]) -> tuple[tuple[int, ...], FinishReason | None]:
    tokens: list[int] = []
    for token in chosen:
        tokens.append(token)
        if token in sequence.stop_ids:
            return tuple(tokens), "stop"
        if len(sequence.tokens) + len(tokens) >= sequence.limit:
            return tuple(tokens), "length"
    return tuple(tokens), None


class _Round:
    """The making of one step."""

    def __init__(self, scheduler: Scheduler, drafts: Mapping[int, Sequence[int]]) -> None:
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.drafts = drafts
        self.budget = scheduler.limits.max_batched_tokens
        self.entries: dict[int, ScheduledSequence] = {}
        self.admitted: list[SequenceState] = []
        self.preempted: list[SequenceState] = []

    def run(self) -> ScheduledStep | None:
        running = list(self.scheduler.running)
        # Guesses come out of what is left when every sequence has its one token.
        spare = self.budget - len(running)
        for sequence in running:
            if sequence.decoding:
                spare -= self._decode(sequence, spare)
        for sequence in running:
            if not sequence.decoding and sequence.status is Status.RUNNING and self.budget > 0:
                self._place(sequence, min(self.budget, sequence.uncomputed))
        if not self.preempted:
            self._admit()
        if not self.entries:
            return None
        return ScheduledStep(
            entries=tuple(self.entries.values()),
            admitted=tuple(self.admitted),
            preempted=tuple(self.preempted),
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
        )

    def _decode(self, sequence: SequenceState, spare: int) -> int:
        """Schedule one token and what guesses fit; returns the tokens taken from ``spare``."""
        room = min(spare, sequence.limit - len(sequence.tokens) - 1)
        draft = tuple(self.drafts.get(sequence.id, ()))[: max(0, room)]
        if draft and self._reserve(sequence, len(sequence.tokens) + len(draft)) is not None:
            self._add(sequence, 1, None, draft)
            return len(draft)
        self._place(sequence, 1)
        return 0

    def _place(self, sequence: SequenceState, count: int) -> None:
        """Schedule ``count`` tokens, preempting from the end of the line until there are blocks for them."""
        while (copy := self._reserve(sequence, sequence.computed + count)) is None:
            victim = self.scheduler.running[-1]
            scheduled = self.entries.pop(victim.id, None)
            if scheduled is not None:
                self.budget += len(scheduled.token_ids)
            self.scheduler._preempt(victim)
            self.preempted.append(victim)
            if victim is sequence:
                return
        self._add(sequence, count, copy[0] if copy else None)

    def _admit(self) -> None:
        scheduler = self.scheduler
        for sequence in list(scheduler.waiting):
            if len(scheduler.running) >= scheduler.limits.max_sequences or self.budget < 1:
                return
            if _waits_for_leader(sequence):
                continue
            blocks, computed = self._known_prefix(sequence)
            self.pool.share(blocks)
            sequence.blocks, sequence.computed = blocks, computed
            copy = self._reserve(sequence, len(sequence.tokens))
            # Each of the others keeps room for one more block; else one of them, or this one, would be
            # preempted within a few steps, and its prefill done for nothing.
            if copy is None or self.pool.available < len(scheduler.running):
                scheduler._give_back(sequence)
                return
            scheduler.waiting.remove(sequence)
            insort(scheduler.running, sequence, key=lambda other: other.arrival)
            sequence.status = Status.RUNNING
            sequence.prefill_until = len(sequence.tokens)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = computed
                scheduler.prefix_queried_tokens += len(sequence.tokens)
                scheduler.prefix_hit_tokens += computed
            self.admitted.append(sequence)
            self._add(sequence, min(self.budget, sequence.uncomputed), copy[0] if copy else None)

    def _known_prefix(self, sequence: SequenceState) -> tuple[list[int], int]:
        """Blocks that hold the beginning of the tokens, looked up now, and the tokens they save.

        The last token is always computed: its logits are wanted.
        """
        names = sequence.block_names(self.pool.block_tokens, until=len(sequence.tokens))
        blocks = self.pool.match(names)
        known = len(blocks) * self.pool.block_tokens
        leader = sequence.leader
        if leader is not None and leader.status is Status.RUNNING and known < sequence.prompt_tokens:
            known = sequence.prompt_tokens
            blocks = leader.blocks[: self.pool.blocks_for(known)]
        return blocks, min(known, len(sequence.tokens) - 1)

    def _reserve(self, sequence: SequenceState, end: int) -> tuple[tuple[int, int], ...] | None:
        """Blocks for ``end`` tokens, the first to be written a private one. None: there are too few.

        Returns the copy that this needs, in a tuple, or an empty one.
        """
        blocks, pool = sequence.blocks, self.pool
        first = sequence.computed // pool.block_tokens
        shared = first < len(blocks) and not pool.writable(blocks[first])
        missing = max(0, pool.blocks_for(end) - len(blocks))
        # A shared first block is the last that there is: its copy comes first, new ones follow.
        new = pool.allocate(shared + missing, after=blocks[-1] if blocks else None)
        if new is None:
            return None
        if not shared:
            blocks += new
            return ()
        source, target = blocks[first], new[0]
        blocks[first] = target
        blocks += new[1:]
        pool.release([source])
        return ((source, target),)

    def _add(
        self,
        sequence: SequenceState,
        count: int,
        copy: tuple[int, int] | None,
        draft: tuple[int, ...] = (),
    ) -> None:
        start, end = sequence.computed, sequence.computed + count
        known = tuple(sequence.tokens[start:end])
        self.entries[sequence.id] = ScheduledSequence(
            sequence=sequence,
            token_ids=known + draft,
            start=start,
            block_table=tuple(sequence.blocks),
            sample=1 + len(draft) if end == len(sequence.tokens) else 0,
            prefill=not sequence.decoding,
            draft=draft,
            copy=copy,
        )
        self.budget -= len(known) + len(draft)


def _waits_for_leader(sequence: SequenceState) -> bool:
    """Whether another answer to the same prompt is still computing what this one will share."""
    leader = sequence.leader
    return (
        leader is not None and leader.status is not Status.FINISHED and leader.computed < leader.prompt_tokens
    )
