"""Choose the next token of every row of a batch: one pass over the logits, parameters per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rooflens.errors import RooflensError
from rooflens.runtime.ranking import columns_at, highest_column, highest_scores
from rooflens.runtime.sampling import LOWEST_LOGPROB, SampledToken, SamplerState, SamplingParams

#: Likeliest tokens looked at first for top-p; the rows whose mass reaches further are sorted whole.
_CANDIDATES = 1024


def sample(logits: Tensor, states: Sequence[SamplerState]) -> list[SampledToken]:
    """One token for each row of fp32 ``logits`` [rows, vocabulary], by the state of the same index.

    States are told what was chosen. Raises RooflensError where a row is not a number.
    """
    if all(state.params.plain_greedy for state in states):
        chosen = highest_column(logits)
        _refuse_nan(logits, chosen)
        tokens = [SampledToken(token) for token in chosen.tolist()]
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
    chosen = highest_column(logits)
    _refuse_nan(logits, chosen)
    drawn = [index for index, state in enumerate(states) if not state.params.greedy]
    if drawn:
        rows = logits if len(drawn) == len(states) else logits[drawn]
        chosen[drawn] = _draw(rows, [states[index] for index in drawn])
    return _with_logprobs(raw, chosen.tolist(), states)


def _refuse_nan(logits: Tensor, chosen: Tensor) -> None:
    # argmax puts NaN above every number, so the chosen logits tell.
    if bool(torch.isnan(logits.gather(1, chosen[:, None])).any()):
        raise RooflensError(
            "the model's logits are not numbers", next="check the weights, or run in fp32 if they are fp16"
        )


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


def _draw(logits: Tensor, states: Sequence[SamplerState]) -> Tensor:
    """Token ids [rows], drawn after temperature, top-k, top-p and min-p."""
    params = [state.params for state in states]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    uniform = column([state.uniform() for state in states])
    temperature = column([p.temperature for p in params])
    # Divided after the largest is taken off: a temperature near zero then cannot overflow.
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    vocabulary = logits.shape[1]
    top_k = [min(p.top_k or vocabulary, vocabulary) for p in params]
    top_p = column([p.top_p for p in params])
    if all(p.top_p == 1.0 for p in params) and min(top_k) == vocabulary:
        probabilities = torch.softmax(shifted.double() / temperature, dim=-1)
        return _invert(_above_min_p(probabilities, params), uniform)
    # The whole vocabulary in fp32, the few candidates in fp64: passes over 150,000 scores cost milliseconds.
    narrow = temperature.float().clamp_min(torch.finfo(torch.float32).tiny)
    total = torch.logsumexp(shifted / narrow, dim=-1, keepdim=True).double()
    width = min(max([k for k in top_k if k < vocabulary], default=0), vocabulary)
    width = max(width, min(_CANDIDATES, vocabulary))
    scores = highest_scores(shifted, width)
    best = scores.double() / temperature
    mass = torch.exp(best - total).sum(dim=-1, keepdim=True)
    limits = torch.tensor(top_k, device=logits.device)[:, None]
    if bool(((mass < top_p) & (limits > width)).any()):
        scores = highest_scores(shifted, vocabulary)
        best = scores.double() / temperature
    rank = torch.arange(best.shape[1], device=logits.device)
    # Rows limited by top-k renormalise over their k; the others over the whole vocabulary.
    kept = best.masked_fill(rank >= limits, float("-inf"))
    norm = torch.where(limits < vocabulary, torch.logsumexp(kept, dim=-1, keepdim=True), total)
    probabilities = torch.exp(kept - norm)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill((before >= top_p) & (rank > 0), 0.0)
    return columns_at(shifted, scores, _invert(_above_min_p(probabilities, params), uniform))


def _above_min_p(probabilities: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    shares = [p.min_p for p in params]
    if not any(shares):
        return probabilities
    share = torch.tensor(shares, dtype=probabilities.dtype, device=probabilities.device)[:, None]
    floor = share * probabilities.amax(dim=-1, keepdim=True)
    return probabilities.masked_fill(probabilities < floor, 0.0)


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The column where the cumulative sum passes ``uniform`` [rows, 1] of the row's total."""
    cumulative = probabilities.cumsum(dim=-1)
    point = uniform * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return place.clamp_(max=probabilities.shape[1] - 1)


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
