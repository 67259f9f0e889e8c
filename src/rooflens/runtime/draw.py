"""Draw tokens after temperature, top-k, top-p and min-p: row by row on CPUs, all rows at once on devices.

On a CPU a row of 150,000 scores is passed over a few times and almost none of it is sorted: the tokens that
top-k and top-p can keep lie near the highest score, so those are taken out first, and further ones only where
they turn out not to be enough. Passes are numpy's, in one thread: they take microseconds, and waking torch's
threads beside a decode step costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rooflens.runtime.ranking import columns_at, highest_scores
from rooflens.runtime.sampling import SamplingParams

#: Likeliest tokens looked at first for top-p on devices; rows whose mass reaches further are sorted whole.
_CANDIDATES = 1024
#: How far under the highest score candidates are looked for, in units of the temperature: the first
#: is 1 / 1,100 of the highest probability, the last 1 / 1,200,000. After these, the whole row.
_REACHES = (7.0, 10.0, 14.0)
#: Margin of what fp32 decides about candidates; which of them are kept is decided in fp64.
_MARGIN = 1e-5
#: Scores whose weights are summed together before any is looked at by itself.
_BLOCK = 512
_TINY = float(np.finfo(np.float32).tiny)


def draw_row(scores: NDArray[np.float32], highest: float, params: SamplingParams, uniform: float) -> int:
    """The token of one row of ``scores``, whose largest is ``highest``, for ``uniform`` in [0, 1).

    Exact up to the rounding of fp32 in the sum over the whole vocabulary. Kept tokens stand in the order of
    their scores, equal ones by column; without truncation all stand in the order of columns.
    """
    if not np.isfinite(highest):
        return int(scores.argmax())  # one score is infinite: there is nothing to weigh against it
    limit = params.top_k if 0 < params.top_k < len(scores) else None
    if not _cuts(params, len(scores)):
        return _of_all(_weights(scores, highest, params), uniform)
    weights = _weights(scores, highest, params) if limit is None and params.top_p < 1.0 else None
    total = None if weights is None else float(weights.sum())
    columns = _candidates(scores, highest, limit, params, weights, total or 0.0)
    chosen = scores if columns is None else scores[columns]
    falling = -np.sort(-chosen)[:limit]
    chances = falling.astype(np.float64)
    # Divided after the largest is taken off: a temperature near zero then cannot overflow.
    chances -= highest
    chances /= max(params.temperature, _TINY)
    np.exp(chances, out=chances)
    cumulative = chances.cumsum()
    kept = _kept(chances, cumulative, total, params)
    place = int(cumulative[:kept].searchsorted(_point(uniform, float(cumulative[kept - 1])), side="right"))
    score = falling[place]
    among_equals = place - int(np.count_nonzero(chosen > score))
    column = np.flatnonzero(chosen == score)[among_equals]
    return int(column if columns is None else columns[column])


def _point(uniform: float, total: float) -> float:
    """The share ``uniform`` of ``total``, below it however it is rounded."""
    return min(uniform * total, float(np.nextafter(total, 0.0)))


def _weights(scores: NDArray[np.float32], highest: float, params: SamplingParams) -> NDArray[np.float32]:
    """exp((score - highest) / temperature) of the whole row."""
    weights = scores - np.float32(highest)
    with np.errstate(over="ignore", under="ignore"):  # to minus infinity, and to a weight of zero
        np.divide(weights, np.float32(max(params.temperature, _TINY)), out=weights)
        np.exp(weights, out=weights)
    return weights


def _of_all(weights: NDArray[np.float32], uniform: float) -> int:
    """The column where the cumulative sum of ``weights`` passes ``uniform`` of their total."""
    whole = len(weights) // _BLOCK * _BLOCK
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    cumulative = np.append(sums, weights[whole:].sum()).cumsum(dtype=np.float64)
    point = _point(uniform, float(cumulative[-1]))
    block = int(cumulative.searchsorted(point, side="right"))
    within = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    before = cumulative[block - 1] if block else 0.0
    place = int(within.searchsorted(point - before, side="right"))
    if place == len(within):  # the block's own rounding: its last token of any weight
        place = int(within.searchsorted(within[-1]))
    return block * _BLOCK + place


def _candidates(
    scores: NDArray[np.float32],
    highest: float,
    limit: int | None,
    params: SamplingParams,
    weights: NDArray[np.float32] | None,
    total: float,
) -> NDArray[np.int64] | None:
    """The columns near the highest score that are sure to hold all that is kept; None for all columns.

    ``limit``: those of top-k. ``weights``: of the whole row, with their sum, where top-p takes its share.
    """
    end = np.inf
    if params.min_p and (limit is None or params.top_p == 1.0):
        # min-p says itself how far it reaches. Not where top-p takes its share of all k first.
        end = (1 + _MARGIN) * -float(np.log(params.min_p * (1 - _MARGIN)))
    enough = params.top_p * (1 + _MARGIN) * total
    for reach in (*(reach for reach in _REACHES if reach < end), end):
        if np.isinf(reach):
            break
        floor = np.float32(highest - reach * params.temperature)
        # One below, so that rounding to fp32 leaves none out.
        columns = np.flatnonzero(scores >= np.nextafter(floor, np.float32(-np.inf)))
        if reach == end or (limit is not None and len(columns) >= limit):
            return columns
        if weights is not None and float(weights[columns].sum()) >= enough:
            return columns
    return None


def _kept(
    weights: NDArray[np.float64],
    cumulative: NDArray[np.float64],
    total: float | None,
    params: SamplingParams,
) -> int:
    """How many of the likeliest stay: at least one."""
    kept = len(weights)
    if params.top_p < 1.0:
        # Those before which top-p's share is not reached; under top-k, its share of the k.
        mass = params.top_p * (float(cumulative[-1]) if total is None else total)
        kept = min(kept, int(cumulative.searchsorted(mass)) + 1)
    if params.min_p:
        kept = min(kept, int(np.count_nonzero(weights >= params.min_p)))
    return max(kept, 1)


def draw_rows(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """As ``draw_row`` for all rows of ``logits`` [rows, vocabulary] together, on any device: ids [rows]."""
    tokens = torch.empty(len(params), dtype=torch.int64, device=logits.device)
    # Apart, because their tokens stand in another order: a row's token must not depend on its company.
    for cut in (False, True):
        rows = [index for index, own in enumerate(params) if _cuts(own, logits.shape[1]) is cut]
        if not rows:
            continue
        own = [params[index] for index in rows]
        scores = logits if len(rows) == len(params) else logits[rows]
        # Divided after the largest is taken off: a temperature near zero then cannot overflow.
        shifted = scores - scores.amax(dim=-1, keepdim=True)
        uniform = _column([uniforms[index] for index in rows], logits.device)
        temperature = _column([p.temperature for p in own], logits.device)
        if cut:
            tokens[rows] = _draw_kept(shifted, own, temperature, uniform)
        else:
            tokens[rows] = _invert(torch.softmax(shifted.double() / temperature, dim=-1), uniform)
    return tokens


def _cuts(params: SamplingParams, vocabulary: int) -> bool:
    """Whether any token is taken out before one is drawn."""
    return 0 < params.top_k < vocabulary or params.top_p < 1.0 or params.min_p > 0.0


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]


def _draw_kept(
    shifted: Tensor, params: Sequence[SamplingParams], temperature: Tensor, uniform: Tensor
) -> Tensor:
    """Ids [rows], drawn from what top-k, top-p and min-p leave of scores whose highest is 0."""
    vocabulary = shifted.shape[1]
    top_k = [min(p.top_k or vocabulary, vocabulary) for p in params]
    top_p = _column([p.top_p for p in params], shifted.device)
    # The whole vocabulary in fp32, the few candidates in fp64: passes over 150,000 scores cost milliseconds.
    narrow = temperature.float().clamp_min(_TINY)
    total = torch.logsumexp(shifted / narrow, dim=-1, keepdim=True).double()
    width = min(max([k for k in top_k if k < vocabulary], default=0), vocabulary)
    width = max(width, min(_CANDIDATES, vocabulary))
    scores = highest_scores(shifted, width)
    best = scores.double() / temperature
    mass = torch.exp(best - total).sum(dim=-1, keepdim=True)
    limits = torch.tensor(top_k, device=shifted.device)[:, None]
    if bool(((mass < top_p) & (limits > width)).any()):
        scores = highest_scores(shifted, vocabulary)
        best = scores.double() / temperature
    rank = torch.arange(best.shape[1], device=shifted.device)
    # Rows limited by top-k renormalise over their k; the others over the whole vocabulary.
    kept = best.masked_fill(rank >= limits, float("-inf"))
    norm = torch.where(limits < vocabulary, torch.logsumexp(kept, dim=-1, keepdim=True), total)
    probabilities = torch.exp(kept - norm)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill((before >= top_p) & (top_p < 1.0) & (rank > 0), 0.0)
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
