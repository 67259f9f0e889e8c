"""Choose the next token of every row of a batch: one pass over the logits, parameters per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rooflens.errors import RooflensError
from rooflens.runtime.draw import draw_row, draw_rows
from rooflens.runtime.ranking import highest
from rooflens.runtime.sampling import LOWEST_LOGPROB, SampledToken, SamplerState


def sample(logits: Tensor, states: Sequence[SamplerState]) -> list[SampledToken]:
    """One token for each row of fp32 ``logits`` [rows, vocabulary], by the state of the same index.

    States are told what was chosen. Raises RooflensError where a row is not a number.
    """
    if all(state.params.plain_greedy for state in states):
        tokens = [SampledToken(token) for token in _highest(logits)]
    else:
        tokens = _sample(logits, states)
    for state, token in zip(states, tokens, strict=True):
        state.observe(token.token_id)
    return tokens


def _sample(logits: Tensor, states: Sequence[SamplerState]) -> list[SampledToken]:
    raw = logits
    if any(state.params.penalised for state in states):
        logits = logits.clone()
        for row, state in zip(logits, states, strict=True):
            _penalise(row, state)
    chosen = _highest(logits)
    drawn = [index for index, state in enumerate(states) if not state.params.greedy]
    if drawn:
        _draw(logits, chosen, drawn, states)
    return _with_logprobs(raw, chosen, states)


def _highest(logits: Tensor) -> list[int]:
    """The column of each row's highest logit. Raises RooflensError where a row is not a number."""
    chosen, scores = highest(logits)
    # NaN is put above every number, so the chosen logits tell.
    if any(map(math.isnan, scores)):
        raise RooflensError(
            "the model's logits are not numbers", next="check the weights, or run in fp32 if they are fp16"
        )
    return chosen


def _penalise(row: Tensor, state: SamplerState) -> None:
    params = state.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(state.prompt | state.output_counts.keys()), device=row.device)
        if seen.numel():
            scores = row[seen]
            row[seen] = torch.where(
                scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty
            )
    if state.output_counts and (params.presence_penalty or params.frequency_penalty):
        tokens = torch.tensor(list(state.output_counts), device=row.device)
        counts = torch.tensor(list(state.output_counts.values()), dtype=row.dtype, device=row.device)
        row[tokens] -= params.presence_penalty + params.frequency_penalty * counts


def _draw(logits: Tensor, chosen: list[int], drawn: list[int], states: Sequence[SamplerState]) -> None:
    """Put a token drawn by its state in the place of each of ``drawn`` in ``chosen``, the highest columns."""
    params = [states[index].params for index in drawn]
    uniforms = [states[index].uniform() for index in drawn]
    if logits.device.type == "cpu":
        rows = logits.numpy()
        for index, own, uniform in zip(drawn, params, uniforms, strict=True):
            chosen[index] = draw_row(rows[index], float(rows[index, chosen[index]]), own, uniform)
        return
    tokens = draw_rows(logits if len(drawn) == len(states) else logits[drawn], params, uniforms)
    for index, token in zip(drawn, tokens.tolist(), strict=True):
        chosen[index] = token


def _with_logprobs(raw: Tensor, chosen: list[int], states: Sequence[SamplerState]) -> list[SampledToken]:
    tokens = []
    for row, token, state in zip(raw, chosen, states, strict=True):
        count = state.params.logprobs
        if count is None:
            tokens.append(SampledToken(token))
            continue
        logprobs = torch.log_softmax(row, dim=-1).clamp_min(LOWEST_LOGPROB)
        best = torch.topk(logprobs, min(count, row.shape[0]))
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        tokens.append(SampledToken(token, float(logprobs[token]), top))
    return tokens
