"""Attention over the paged cache: query heads folded, prefill in tiles, decodes together.

The query heads that share a KV head are rows of one multiply ([rows * group, head_dim]), so keys and
values are read once for all of them. A prefill goes in tiles of query rows by multiplies, one KV head at a
time: the scores of a tile stay in the processor's cache, keys are read where they lie, and tokens after the
tile are never multiplied. Torch's fused attention takes half as long again on CPUs without matrix tiles
(AMX), and half to two thirds of the time on those with them. Decodes use the fused attention, which is
faster for the few rows of one token until sequences are long; those of short ones are padded to one length
and go in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.runtime.batch import StepBatch
from rooflens.runtime.kernels.base import AttentionSettings
from rooflens.runtime.kv_cache import PagedKVCache

#: Rows of a tile's multiplies, the heads that share keys folded in, and most query rows: enough for the
#: multiply's full rate, few enough that the scores stay in the processor's cache.
TILE_ROWS, MOST_QUERY_ROWS = 512, 256
#: From so many tokens, and so many query heads to a KV head, multiplies are faster than the fused attention
#: for a decode: measured on AVX-512 with 2 KV heads of 7, in bf16, they take 0.7 of its time at 2,000 tokens,
#: and as long at 1,000.
FOLDED_TOKENS, FOLDED_GROUP = 1024, 4
#: Decodes up to this many tokens are padded together: gathering them costs less than a call for each.
PADDED_TOKENS = 512


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
    """Decodes of several sequences as one call: their rows, their blocks, and what hides the padding.

    ``bias`` [sequences, 1, 1, tokens] is added to the scores: 0, or minus infinity.
    """

    rows: Tensor
    ids: Tensor
    sequences: int
    bias: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """How one step's queries are gone through; the same for every layer with the same window."""

    spans: tuple[Span, ...]
    padded: Padded | None


def plan_attention(
    batch: StepBatch, window: int | None, dtype: torch.dtype, *, padded_tokens: int = PADDED_TOKENS
) -> AttentionPlan:
    """The plan of ``batch`` for layers of this window, worked out once per step."""
    plan = batch.plans.get(window)
    if plan is None:
        plan = batch.plans[window] = _plan(batch, window, dtype, padded_tokens)
    assert isinstance(plan, AttentionPlan)
    return plan


def _plan(batch: StepBatch, window: int | None, dtype: torch.dtype, padded_tokens: int) -> AttentionPlan:
    spans: list[Span] = []
    decodes: list[Span] = []
    for index, row in enumerate(batch.query_starts):
        span = _span(batch, index, row, window)
        short = span.count == 1 and span.length - span.begin <= padded_tokens
        (decodes if short else spans).append(span)
    if len(decodes) < 2:
        return AttentionPlan((*spans, *decodes), None)
    return AttentionPlan(tuple(spans), _pad(batch, decodes, window, dtype))


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


def _pad(batch: StepBatch, decodes: list[Span], window: int | None, dtype: torch.dtype) -> Padded:
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
    bias = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return Padded(rows, ids.flatten(), len(decodes), bias[:, None, None, :])


def tile_rows(group: int) -> int:
    """Query rows of one tile of a prefill whose query heads share keys in groups of this size."""
    return max(16, min(MOST_QUERY_ROWS, TILE_ROWS // group // 16 * 16))


Prefill = Callable[[Tensor, Tensor, Tensor, Span, AttentionSettings], Tensor]


def attend(
    query: Tensor,
    cache: PagedKVCache,
    layer: int,
    batch: StepBatch,
    settings: AttentionSettings,
    *,
    prefill: Prefill | None = None,
    padded_tokens: int = PADDED_TOKENS,
) -> Tensor:
    """See ``Kernels.attend``: [T, heads * head_dim]. ``prefill`` runs several queries of one sequence."""
    plan = plan_attention(batch, settings.window, query.dtype, padded_tokens=padded_tokens)
    query = query.view(-1, settings.kv_heads, settings.group, settings.head_dim)
    outputs = []
    for span in plan.spans:
        if span.run is None:
            key, value = cache.read_blocks(layer, span.ids)
        else:
            key, value = cache.read_run(layer, span.run, span.blocks)
        run = _decode if span.count == 1 else prefill or tiled_prefill
        outputs.append(run(query[span.row : span.row + span.count], key, value, span, settings))
    if plan.padded is None and len(outputs) == 1:
        return outputs[0]
    output = query.new_empty(query.shape[0], settings.heads * settings.head_dim)
    for span, part in zip(plan.spans, outputs, strict=True):
        output[span.row : span.row + span.count] = part
    if plan.padded is not None:
        output[plan.padded.rows] = _padded_decodes(query, cache, layer, plan.padded, settings)
    return output


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _decode(query: Tensor, key: Tensor, value: Tensor, span: Span, settings: AttentionSettings) -> Tensor:
    """One query [1, kv_heads, group, head_dim] against the span's tokens: [1, heads * head_dim]."""
    high = span.length - span.begin
    low = 0 if settings.window is None else max(0, high - settings.window)
    if key.device.type == "cpu" and settings.group >= FOLDED_GROUP and high - low >= FOLDED_TOKENS:
        return _folded_decode(query[0], key[:, low:high], value[:, low:high], settings).view(1, -1)
    return _fused(query, key[None, :, low:high], value[None, :, low:high], None, settings).view(1, -1)


def _folded_decode(query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings) -> Tensor:
    """``query`` [kv_heads, group, head_dim] against all of ``key``, by a multiply for each KV head."""
    query = query * settings.scale
    output = torch.empty_like(query)
    for head in range(settings.kv_heads):
        scores = _capped(torch.mm(query[head], key[head].t()), settings.softcap)
        torch.mm(torch.softmax(scores, dim=-1), value[head], out=output[head])
    return output


def _padded_decodes(
    query: Tensor, cache: PagedKVCache, layer: int, padded: Padded, settings: AttentionSettings
) -> Tensor:
    """One query for each of the padded sequences: [sequences, heads * head_dim]."""
    key, value = cache.read_blocks(layer, padded.ids)
    shape = (settings.kv_heads, padded.sequences, -1, settings.head_dim)
    key, value = key.view(shape).transpose(0, 1), value.view(shape).transpose(0, 1)
    return _fused(query.index_select(0, padded.rows), key, value, padded.bias, settings).flatten(1)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, settings: AttentionSettings
) -> Tensor:
    """[sequences, kv_heads, group, head_dim]; torch's fused attention, or by steps under a soft cap."""
    if settings.softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=settings.scale)
    scores = _capped(torch.matmul(query * settings.scale, key.transpose(2, 3)), settings.softcap)
    return torch.matmul(torch.softmax(scores if bias is None else scores + bias, dim=-1), value)


def tiled_prefill(
    query: Tensor, key: Tensor, value: Tensor, span: Span, settings: AttentionSettings
) -> Tensor:
    """``query`` [count, kv_heads, group, head_dim] against the span's tokens: [count, heads * head_dim]."""
    # Scaled before the multiply: the scores then need no pass of their own.
    query = (query * settings.scale).transpose(0, 1).contiguous().flatten(1, 2)
    output = torch.empty_like(query)
    group = settings.group
    step = tile_rows(group)
    for start in range(0, span.count, step):
        rows = min(step, span.count - start)
        # Positions, within the span, of the tokens that the tile's rows see.
        first = span.length - span.count + start
        low = 0 if settings.window is None else max(0, first - settings.window + 1 - span.begin)
        high = first + rows - span.begin
        for head in range(settings.kv_heads):
            tile = query[head, start * group : (start + rows) * group]
            scores = _capped(torch.mm(tile, key[head, low:high].t()), settings.softcap)
            _hide(scores, rows=rows, group=group, seen_before=high - low - rows, window=settings.window)
            mixed = output[head, start * group : (start + rows) * group]
            torch.mm(torch.softmax(scores, dim=-1), value[head, low:high], out=mixed)
    shape = (settings.kv_heads, span.count, group * settings.head_dim)
    return output.view(shape).transpose(0, 1).flatten(1)


def fused_prefill(
    query: Tensor, key: Tensor, value: Tensor, span: Span, settings: AttentionSettings
) -> Tensor:
    """As ``tiled_prefill``, by torch's fused attention; scores with a soft cap are not for it."""
    seen = span.length - span.begin
    causal = span.count == seen and (settings.window is None or seen <= settings.window)
    bias = None
    if not causal:
        bias = _bias(span.count, seen, settings.window, query.dtype, query.device)
    mixed = F.scaled_dot_product_attention(
        query.flatten(1, 2).transpose(0, 1)[None],
        key[None, :, :seen],
        value[None, :, :seen],
        attn_mask=bias,
        is_causal=causal,
        scale=settings.scale,
        enable_gqa=settings.group > 1,
    )
    return mixed[0].transpose(0, 1).flatten(1)


@lru_cache(maxsize=4)  # all layers of one step share these
def _bias(count: int, seen: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[count, seen] added to the scores of the last ``count`` of ``seen`` tokens: 0, or minus infinity."""
    row = torch.arange(seen - count, seen, device=device)[:, None]
    column = torch.arange(seen, device=device)[None, :]
    hidden = column > row
    if window is not None:
        hidden |= column <= row - window
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def _hide(scores: Tensor, *, rows: int, group: int, seen_before: int, window: int | None) -> None:
    """Hide, in place, what each row of a tile must not see: later tokens, and those before its window.

    ``scores`` [..., rows * group, seen_before + rows]: the last ``rows`` columns are the tile's own.
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
