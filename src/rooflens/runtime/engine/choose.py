"""The next tokens of a step's sequences, guesses checked: what is kept is what plain decoding had chosen."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rooflens.runtime.engine.step import ScheduledSequence
from rooflens.runtime.sampler import sample
from rooflens.runtime.sampling import SampledToken, SamplerState


def choose(
    logits: Tensor, entries: Sequence[ScheduledSequence], states: Sequence[SamplerState]
) -> list[list[SampledToken]]:
    """The tokens of each entry, in order; none where none was asked for.

    ``logits`` are fp32 [sum of the entries' ``sample``, vocabulary]; ``states`` belong to the entries. A
    token is chosen from the row after each guess as if it had come alone; as long as it equals the guess,
    the next row counts too. So any way of sampling gives the same tokens as without guesses, greedy or
    with a seed: there is no separate rule for accepting.
    """
    chosen: list[list[SampledToken]] = [[] for _ in entries]
    starts, row = [], 0
    for entry in entries:
        starts.append(row)
        row += entry.sample
    alive = [index for index, entry in enumerate(entries) if entry.sample]
    if row > len(alive) and all(state.params.plain_greedy for state in states):
        # The largest logit depends on nothing before it: one pass over all rows instead of one per guess.
        owners = [state for entry, state in zip(entries, states, strict=True) for _ in range(entry.sample)]
        tokens = sample(logits, owners)
        for index in alive:
            chosen[index] = _kept(entries[index].draft, tokens[starts[index] :])
        return chosen
    while alive:
        rows = [starts[index] + len(chosen[index]) for index in alive]
        part = logits if len(rows) == row else logits[rows]
        tokens = sample(part, [states[index] for index in alive])
        following = []
        for index, token in zip(alive, tokens, strict=True):
            draft, place = entries[index].draft, len(chosen[index])
            chosen[index].append(token)
            if place < len(draft) and draft[place] == token.token_id:
                following.append(index)
        alive = following
    return chosen


def _kept(draft: Sequence[int], tokens: Sequence[SampledToken]) -> list[SampledToken]:
    """The choices after right guesses, and the first that none foresaw."""
    right = 0
    while right < len(draft) and draft[right] == tokens[right].token_id:
        right += 1
    return list(tokens[: right + 1])
