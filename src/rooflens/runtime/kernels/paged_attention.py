"""Attention over the paged cache with matrix multiplies: query heads folded, query rows in tiles.

The query heads that share a KV head are rows of one multiply ([kv_heads, rows * group, head_dim]), so
keys and values are read once for all of them. A prefill goes in tiles of query rows: the scores of a
tile stay in the cache, and tokens after the tile are never multiplied. Sequences that decode one token
go together where padding them to one length costs less than calling for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rooflens.runtime.batch import StepBatch
from rooflens.runtime.kernels.base import AttentionSettings
from rooflens.runtime.kv_cache import PagedKVCache

#: Query rows of one tile of a prefill.
TILE_ROWS = 64
#: Decodes of up to this many tokens of context are padded to one length and go in one multiply.
PADDED_TOKENS = 1024


@dataclass(frozen=True)
class Span:
    """The blocks that one sequence's queries see, from the block that holds token ``begin`` on.

    ``run``: the id of the first block if all follow each other in memory; else ``ids`` names them.
    """

    row: int
    count: int
    length: int
    begin: int
    blocks: int
    run: int | None
    ids: Tensor


@dataclass(frozen=True)
class Padded:
    """Decodes of several sequences as one multiply: their rows, their blocks, and which tokens to hide."""

    rows: Tensor
    ids: Tensor
    sequences: int
    hidden: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """How one step's queries are gone through; the same for every layer with the same window."""

    spans: tuple[Span, ...]
    padded: Padded | None


def plan_attention(
    batch: StepBatch, window: int | None, *, padded_tokens: int = PADDED_TOKENS
) -> AttentionPlan:
    """The plan of ``batch`` for layers of this window, worked out once per step."""
    plan = batch.plans.get(window)
    if plan is None:
        plan = batch.plans[window] = _plan(batch, window, padded_tokens)
    assert isinstance(plan, AttentionPlan)
    return plan


def _plan(batch: StepBatch, window: int | None, padded_tokens: int) -> AttentionPlan:
    spans: list[Span] = []
    decodes: list[Span] = []
    for index, row in enumerate(batch.query_starts):
        span = _span(batch, index, row, window)
        small = span.count == 1 and span.length - span.begin <= padded_tokens
        (decodes if small else spans).append(span)
    if len(decodes) < 2:
        return AttentionPlan((*spans, *decodes), None)
    return AttentionPlan(tuple(spans), _pad(batch, decodes, window))


def _span(batch: StepBatch, index: int, row: int, window: int | None) -> Span:
    count, length = batch.query_lengths[index], batch.sequence_lengths[index]
    oldest = 0 if window is None else max(0, length - count - window + 1)
    first, end = oldest // batch.block_tokens, -(-length // batch.block_tokens)
    ids = batch.block_tables[index, first:end]
    listed = ids.tolist()
    in_a_row = listed == list(range(listed[0], listed[0] + len(listed)))
    return Span(
        row, count, length, first * batch.block_tokens, end - first, listed[0] if in_a_row else None, ids
    )


def _pad(batch: StepBatch, decodes: list[Span], window: int | None) -> Padded:
    device = batch.token_ids.device
    width = max(span.blocks for span in decodes)
    ids = torch.zeros((len(decodes), width), dtype=torch.int64, device=device)
    for index, span in enumerate(decodes):
        ids[index, : span.blocks] = span.ids
    begins = torch.tensor([[span.begin] for span in decodes], device=device)
    lengths = torch.tensor([[span.length] for span in decodes], device=device)
    position = begins + torch.arange(width * batch.block_tokens, device=device)
    hidden = position >= lengths
    if window is not None:
        hidden |= position < lengths - window
    rows = torch.tensor([span.row for span in decodes], device=device)
    return Padded(rows, ids.flatten(), len(decodes), hidden[None, :, None, :])


def attend(
    query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
) -> Tensor:
    """See ``Kernels.attend``: [T, heads * head_dim]."""
    plan = plan_attention(batch, settings.window)
    # Scaled before the multiply: the scores then need no pass of their own.
    query = (query * settings.scale).view(-1, settings.kv_heads, settings.group, settings.head_dim)
    if plan.padded is None and len(plan.spans) == 1:
        return _one_sequence(query, cache, layer, plan.spans[0], settings)
    output = query.new_empty(query.shape[0], settings.heads * settings.head_dim)
    for span in plan.spans:
        rows = slice(span.row, span.row + span.count)
        output[rows] = _one_sequence(query[rows], cache, layer, span, settings)
    if plan.padded is not None:
        output[plan.padded.rows] = _padded_decodes(query, cache, layer, plan.padded, settings)
    return output


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _one_sequence(
    query: Tensor, cache: PagedKVCache, layer: int, span: Span, settings: AttentionSettings
) -> Tensor:
    """``query`` [count, kv_heads, group, head_dim], scaled, against the span's tokens."""
    if span.run is None:
        key, value = cache.read_blocks(layer, span.ids)
    else:
        key, value = cache.read_run(layer, span.run, span.blocks)
    outputs = []
    for start in range(0, span.count, TILE_ROWS):
        rows = min(TILE_ROWS, span.count - start)
        tile = query[start : start + rows].transpose(0, 1).flatten(1, 2)
        # Positions of the tile's first query, and of the tokens it and its rows see.
        first = span.length - span.count + start
        low = 0 if settings.window is None else max(0, first - settings.window + 1 - span.begin)
        high = first + rows - span.begin
        scores = _capped(torch.bmm(tile, key[:, low:high].transpose(1, 2)), settings.softcap)
        _hide(scores, rows=rows, group=settings.group, seen_before=high - low - rows, window=settings.window)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), value[:, low:high])
        mixed = mixed.view(settings.kv_heads, rows, settings.group, settings.head_dim)
        outputs.append(mixed.transpose(0, 1).reshape(rows, -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _hide(scores: Tensor, *, rows: int, group: int, seen_before: int, window: int | None) -> None:
    """Hide, in place, what each row of a tile must not see: later tokens, and those before its window.

    ``scores`` [kv_heads, rows * group, seen_before + rows]: the last ``rows`` columns are the tile's own.
    """
    if rows > 1:
        scores[..., seen_before:].masked_fill_(_later(rows, group, scores.device), float("-inf"))
    columns = seen_before + rows
    if window is not None and columns > window:
        row = torch.arange(rows, device=scores.device).repeat_interleave(group)[:, None]
        column = torch.arange(columns, device=scores.device)[None, :]
        scores.masked_fill_(column <= row + seen_before - window, float("-inf"))


@lru_cache(maxsize=256)
def _later(rows: int, group: int, device: torch.device) -> Tensor:
    """[rows * group, rows]: True where the column's token comes after the row's."""
    row = torch.arange(rows, device=device).repeat_interleave(group)[:, None]
    return torch.arange(rows, device=device)[None, :] > row


def _padded_decodes(
    query: Tensor, cache: PagedKVCache, layer: int, padded: Padded, settings: AttentionSettings
) -> Tensor:
    """One query for each of the padded sequences: [sequences, heads * head_dim]."""
    key, value = cache.read_blocks(layer, padded.ids)
    shape = (settings.kv_heads, padded.sequences, -1, settings.head_dim)
    key, value = key.view(shape), value.view(shape)
    rows = query.index_select(0, padded.rows).transpose(0, 1)
    scores = _capped(torch.matmul(rows, key.transpose(2, 3)), settings.softcap)
    weights = torch.softmax(scores.masked_fill_(padded.hidden, float("-inf")), dim=-1)
    mixed = torch.matmul(weights, value)
    return mixed.transpose(0, 1).flatten(1)
