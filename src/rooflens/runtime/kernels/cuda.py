"""The CUDA set: cuBLAS linears, ``scaled_dot_product_attention`` over the gathered cache.

All decodes of a step are padded to one length and go in one call; a prompt without a cached prefix takes
the causal path, which needs no mask. Nothing here is special to CUDA, so tests run it on any device.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import Tensor

from rooflens.runtime.kernels import paged_attention
from rooflens.runtime.kernels.base import AttentionSettings
from rooflens.runtime.kernels.eager import EagerKernels
from rooflens.runtime.kernels.paged_attention import fused_prefill

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kernels.steps import StepRunner
    from rooflens.runtime.kv_cache import PagedKVCache
    from rooflens.runtime.model import DecoderModel


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
            prefill=fused_prefill if settings.softcap is None else None,
            padded_tokens=sys.maxsize,
        )

    def steps(self, model: DecoderModel, cache: PagedKVCache) -> StepRunner | None:
        """See ``Kernels.steps``: decodes as CUDA graphs."""
        from rooflens.runtime.graphs import DecodeGraphs

        return DecodeGraphs(model, cache) if cache.device.type == "cuda" else None

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        return {
            "linear": "F.linear (cuBLAS)",
            "step": "decodes as CUDA graphs by shape",
            "attention": "scaled_dot_product_attention over the gathered cache",
            "norm": "F.rms_norm",
        }
