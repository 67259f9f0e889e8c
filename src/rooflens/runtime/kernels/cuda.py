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
from rooflens.runtime.kernels.paged_attention import Span

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
        return paged_attention.attend(
            query,
            cache,
            layer,
            batch,
            settings,
            prefill=_prefill if settings.softcap is None else None,
            padded_tokens=sys.maxsize,
        )

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        return {
            "linear": "F.linear (cuBLAS)",
            "step": "decodes as CUDA graphs by shape",
            "attention": "scaled_dot_product_attention over the gathered cache",
            "norm": "F.rms_norm",
        }


def _prefill(query: Tensor, key: Tensor, value: Tensor, span: Span, settings: AttentionSettings) -> Tensor:
    """``query`` [count, kv_heads, group, head_dim] against the span's tokens: [count, heads * head_dim]."""
    seen = span.length - span.begin
    causal = span.count == seen and (settings.window is None or seen <= settings.window)
    mask = None
    if not causal:
        row = torch.arange(seen - span.count, seen, device=query.device)[:, None]
        column = torch.arange(seen, device=query.device)[None, :]
        mask = column <= row
        if settings.window is not None:
            mask &= column > row - settings.window
    mixed = F.scaled_dot_product_attention(
        query.flatten(1, 2).transpose(0, 1)[None],
        key[None, :, :seen],
        value[None, :, :seen],
        attn_mask=mask,
        is_causal=causal,
        scale=settings.scale,
        enable_gqa=settings.group > 1,
    )
    return mixed[0].transpose(0, 1).flatten(1)
