"""Guessing the next tokens, so that one reading of the weights can make several.

A proposer guesses; the scheduler gives the guesses room where there is some; the model checks all of them
in one step; ``choose`` keeps what plain decoding would have chosen. Wrong guesses cost their share of that
step and nothing else: their keys and values are overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rooflens.errors import InputError
from rooflens.runtime.batch import Chunk, StepBatch
from rooflens.runtime.engine.backend import Backend
from rooflens.runtime.engine.blocks import BlockPool
from rooflens.runtime.engine.sequence import SequenceState
from rooflens.runtime.ranking import highest_column

#: Tokens of a prompt that a draft model runs in one step.
_PREFILL_TOKENS = 512


class Proposer(Protocol):
    """Who guesses."""

    def propose(self, sequences: Sequence[SequenceState]) -> Mapping[int, Sequence[int]]:
        """Guesses by sequence id, for sequences about to decode; none, where there is nothing to go by."""
        ...

    def forget(self, sequence_id: int) -> None:
        """This sequence has ended."""
        ...


class PromptLookup:
    """Guesses that what followed the last few tokens before will follow them again.

    Good for answers that repeat their prompt: summaries, code edits, extraction. The longest match of
    ``longest`` to ``shortest`` tokens counts, and of equal ones the latest. What followed it goes on with the
    guesses themselves, so that a text in a loop is guessed round after round.
    """

    def __init__(self, *, tokens: int = 4, longest: int = 3, shortest: int = 2) -> None:
        """``tokens``: guesses per step. Raises InputError for sizes below 1 or in the wrong order."""
        if tokens < 1 or not 1 <= shortest <= longest:
            raise InputError(
                "prompt lookup needs tokens >= 1 and 1 <= shortest <= longest",
                value=f"tokens {tokens}, shortest {shortest}, longest {longest}",
            )
        self.tokens = tokens
        self._sizes = range(longest, shortest - 1, -1)
        self._indexes: dict[int, _Index] = {}

    def propose(self, sequences: Sequence[SequenceState]) -> dict[int, list[int]]:
        """See ``Proposer``."""
        guesses = {}
        for sequence in sequences:
            tokens = sequence.tokens
            index = self._indexes.setdefault(sequence.id, _Index())
            index.extend(tokens, self._sizes)
            for size in self._sizes:
                place = index.after.get(tuple(tokens[-size:])) if size < len(tokens) else None
                if place is not None:
                    known = tokens[place : place + self.tokens]
                    guesses[sequence.id] = [known[at % len(known)] for at in range(self.tokens)]
                    break
        return guesses

    def forget(self, sequence_id: int) -> None:
        """See ``Proposer``."""
        self._indexes.pop(sequence_id, None)


@dataclass
class _Index:
    """Where each run of tokens was last followed by something; the end itself is not in it."""

    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    known: int = 0

    def extend(self, tokens: Sequence[int], sizes: range) -> None:
        for end in range(max(1, self.known), len(tokens)):
            for size in sizes:
                if size <= end:
                    self.after[tuple(tokens[end - size : end])] = end
        self.known = len(tokens)


@dataclass
class _Draft:
    """What a draft model has of a sequence: blocks, and the tokens in them."""

    blocks: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    agreed: int = 0  # tokens at the beginning known to equal the sequence's


class DraftModel:
    """Guesses with a smaller model of the same vocabulary, greedily, on its own cache.

    A sequence for which its cache has no room gets no guesses.
    """

    def __init__(self, backend: Backend, *, target: Backend, tokens: int = 4) -> None:
        """``tokens``: guesses per step. Raises InputError where the two models' tokens differ."""
        if tokens < 1:
            raise InputError("a draft model needs at least one token to guess", value=tokens)
        check_same_tokens(backend, target)
        self.backend = backend
        self.tokens = tokens
        # Tables may be padded to another length; neither model's padding is of use to the other.
        self._vocabulary = min(backend.spec.vocab_size, target.spec.vocab_size)
        self._shorter = backend.spec.vocab_size < target.spec.vocab_size
        cache = backend.cache
        self._pool = BlockPool(cache.blocks, block_tokens=cache.block_tokens, prefix_caching=False)
        self._drafts: dict[int, _Draft] = {}

    def propose(self, sequences: Sequence[SequenceState]) -> dict[int, list[int]]:
        """See ``Proposer``."""
        ready = [sequence for sequence in sequences if self._make_room(sequence)]
        pending = {sequence.id: self._missing(sequence) for sequence in ready}
        guesses: dict[int, list[int]] = {sequence.id: [] for sequence in ready}
        while any(len(tokens) > _PREFILL_TOKENS for tokens in pending.values()):
            # One long prompt at a time, and never its last token: that is where guessing starts.
            long = next(key for key, tokens in pending.items() if len(tokens) > _PREFILL_TOKENS)
            self._run({long: pending[long][:_PREFILL_TOKENS]}, sample=0)
            pending[long] = pending[long][_PREFILL_TOKENS:]
        for _ in range(self.tokens if ready else 0):
            chosen = self._run(pending, sample=1)
            pending = {key: [token] for key, token in chosen.items()}
            for key, token in chosen.items():
                guesses[key].append(token)
        return guesses

    def forget(self, sequence_id: int) -> None:
        """See ``Proposer``."""
        draft = self._drafts.pop(sequence_id, None)
        if draft is not None:
            self._pool.release(draft.blocks)

    def _make_room(self, sequence: SequenceState) -> bool:
        end = len(sequence.tokens) + self.tokens
        if end > self.backend.context or (self._shorter and max(sequence.tokens) >= self._vocabulary):
            return False
        draft = self._drafts.setdefault(sequence.id, _Draft())
        missing = self._pool.blocks_for(end) - len(draft.blocks)
        new = self._pool.allocate(max(0, missing), after=draft.blocks[-1] if draft.blocks else None)
        if new is None:
            return False
        draft.blocks += new
        return True

    def _missing(self, sequence: SequenceState) -> list[int]:
        """The tokens to run: those after what the cache holds and turned out right, at least the last."""
        draft, tokens = self._drafts[sequence.id], sequence.tokens
        while draft.agreed < min(len(draft.held), len(tokens) - 1) and (
            draft.held[draft.agreed] == tokens[draft.agreed]
        ):
            draft.agreed += 1
        del draft.held[draft.agreed :]
        return tokens[draft.agreed :]

    def _run(self, tokens: Mapping[int, Sequence[int]], *, sample: int) -> dict[int, int]:
        chunks = []
        for key, new in tokens.items():
            draft = self._drafts[key]
            chunks.append(Chunk(new, len(draft.held), draft.blocks, sample))
            draft.held += new
        batch = StepBatch.build(
            chunks, device=self.backend.device, block_tokens=self.backend.cache.block_tokens
        )
        logits = self.backend.step(batch)
        if not sample:
            return {}
        return dict(zip(tokens, highest_column(logits[:, : self._vocabulary]).tolist(), strict=True))


def check_same_tokens(draft: Backend, target: Backend) -> None:
    """Raise InputError where a token of one model is another token of the other.

    With tokenizers every token is compared by its spelling; without, the sizes of the vocabularies.
    """
    own, other = draft.tokenizer, target.tokenizer
    sizes = (draft.spec.vocab_size, target.spec.vocab_size)
    if own is None or other is None:
        same = sizes[0] == sizes[1]
    else:
        count = own.vocab_size
        same = count == other.vocab_size and count <= min(sizes)
        same = same and all(own.token_text(token) == other.token_text(token) for token in range(count))
        sizes = (min(own.vocab_size, sizes[0]), min(other.vocab_size, sizes[1]))
    if not same:
        raise InputError(
            "the draft model has another vocabulary than the model that it drafts for",
            value=f"{sizes[0]:,} tokens, against {sizes[1]:,}",
            next="use a draft of the same family, or the model itself with --draft-weights int4",
        )
