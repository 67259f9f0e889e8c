"""The CUDA set: cuBLAS linears, ``scaled_dot_product_attention`` over the gathered cache.

All decodes of a step are padded to one length and go in one call; a prompt without a cached prefix takes
the causal path, which needs no mask. Nothing here is special to CUDA, so tests run it on any device.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.runtime.kernels import paged_attention
from rooflens.runtime.kernels.base import AttentionSettings
from rooflens.runtime.kernels.eager import EagerKernels
from rooflens.runtime.kernels.paged_attention import Padded, Span, plan_attention

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kv_cache import PagedKVCache


class CudaKernels(EagerKernels):
    """cuBLAS linears, fused attention."""

    name = "cuda"

    def attend(
        self, query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
    ) -> Tensor:
        """See ``Kernels.attend``. Scores with a soft cap have no fused kernel and take the tiled path."""
        if settings.softcap is not None:
            return paged_attention.attend(query, cache, layer, batch, settings)
        plan = plan_attention(batch, settings.window, padded_tokens=sys.maxsize)
        output = torch.empty_like(query)
        for span in plan.spans:
            rows = slice(span.row, span.row + span.count)
            output[rows] = _prefill(query[rows], cache, layer, span, settings)
        if plan.padded is not None:
            output[plan.padded.rows] = _decodes(query, cache, layer, plan.padded, settings)
        return output.flatten(1)

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        return {
            "linear": "F.linear (cuBLAS)",
            "attention": "scaled_dot_product_attention over the gathered cache",
            "norm": "F.rms_norm",
        }


def _prefill(
    query: Tensor, cache: PagedKVCache, layer: int, span: Span, settings: AttentionSettings
) -> Tensor:
    """``query`` [count, heads, head_dim] of one sequence: the same shape."""
    key, value = cache.read_blocks(layer, span.ids)
    seen = span.length - span.begin
    key, value = key[None, :, :seen], value[None, :, :seen]
    causal = span.count == seen and (settings.window is None or seen <= settings.window)
    mask = None
    if not causal:
        row = torch.arange(seen - span.count, seen, device=query.device)[:, None]
        column = torch.arange(seen, device=query.device)[None, :]
        mask = column <= row
        if settings.window is not None:
            mask &= column > row - settings.window
    mixed = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        scale=settings.scale,
        enable_gqa=settings.group > 1,
    )
    return mixed[0].transpose(0, 1)


def _decodes(
    query: Tensor, cache: PagedKVCache, layer: int, padded: Padded, settings: AttentionSettings
) -> Tensor:
    """One query for each padded sequence, the heads of a group folded into rows."""
    key, value = cache.read_blocks(layer, padded.ids)
    shape = (settings.kv_heads, padded.sequences, -1, settings.head_dim)
    rows = query.index_select(0, padded.rows)
    rows = rows.view(padded.sequences, settings.kv_heads, settings.group, settings.head_dim)
    mixed = F.scaled_dot_product_attention(
        rows,
        key.view(shape).transpose(0, 1),
        value.view(shape).transpose(0, 1),
        attn_mask=~padded.hidden.transpose(0, 1),
        scale=settings.scale,
    )
    return mixed.flatten(1, 2)
