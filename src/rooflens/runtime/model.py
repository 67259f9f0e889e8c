"""DecoderModel: the modules of a ModelSpec, run one step at a time over the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rooflens.models.spec import Attention, ModelSpec, Rotary
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.blocks.basic import Embedding, Linear, Norm
from rooflens.runtime.blocks.layer import Layer
from rooflens.runtime.blocks.rotary import RotaryTable
from rooflens.runtime.blocks.state import StepState
from rooflens.runtime.kernels.base import Kernels
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.support import check_supported

if TYPE_CHECKING:
    from rooflens.runtime.profile.modules import ModuleTimes


class DecoderModel(nn.Module):
    """A decoder built from ``spec``; every module's path is the operator's name in the prediction.

    Weights are not part of building it: a loader fills the modules. ``context``: the longest sequence
    that will be run (default: the model's own limit), which some rotary scalings depend on.
    """

    #: Set while a profiler times the modules. What runs whole steps either hands it their times or leaves
    #: the step to the modules.
    watcher: Callable[[ModuleTimes], None] | None = None

    def __init__(
        self,
        spec: ModelSpec,
        kernels: Kernels,
        *,
        dtype: torch.dtype = torch.float32,
        context: int | None = None,
    ) -> None:
        """Raises UnsupportedError naming the first thing in ``spec`` that the runtime cannot do."""
        check_supported(spec)
        super().__init__()
        assert spec.embedding is not None
        assert spec.head is not None
        assert spec.final_norm is not None
        self.spec = spec
        self.kernels = kernels
        self.dtype = dtype
        self.context = context or spec.max_context
        self.embedding = Embedding(spec.embedding, dtype)
        self.layers = nn.ModuleList(Layer(layer, index, kernels) for index, layer in enumerate(spec.layers))
        self.final_norm = Norm(spec.final_norm, kernels)
        self.lm_head = Linear(spec.head)
        self._tables = {
            rotary: RotaryTable(rotary, context=self.context, limit=spec.max_context)
            for rotary in _rotaries(spec)
        }

    @torch.inference_mode()
    def prepare_positions(self, device: torch.device) -> None:
        """Make the tables of positions for the whole context now, in memory that then stays in place."""
        first = torch.zeros(1, dtype=torch.int64, device=device)
        for table in self._tables.values():
            table(first, self.context or 1, torch.empty(0, dtype=self.dtype, device=device))

    def state(self, batch: StepBatch, cache: PagedKVCache) -> StepState:
        """What a step carries through the layers."""
        return StepState(batch, cache, self._tables, self.dtype)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: PagedKVCache) -> Tensor:
        """Run one step; the cache receives its keys and values.

        Returns fp32 logits [rows of ``batch.sample_rows``, vocabulary]: the head runs for these only.
        """
        state = self.state(batch, cache)
        hidden = self.embedding(batch.token_ids)
        for layer in self.layers:
            hidden = layer(hidden, state)
        return self.logits(hidden, batch)

    def logits(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """fp32 logits of the rows to sample, from the last layer's output for all rows."""
        if batch.sample_rows.shape[0] != batch.tokens:
            hidden = hidden.index_select(0, batch.sample_rows)
        logits: Tensor = self.lm_head(self.final_norm(hidden)).float()
        if self.spec.head_scale != 1.0:
            logits = logits * self.spec.head_scale
        cap = self.spec.final_logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


class Qwen2Model(DecoderModel):
    """A Qwen 1.5, 2 or 2.5 decoder: the general one, for a spec of that type only."""

    def __init__(
        self,
        spec: ModelSpec,
        kernels: Kernels,
        *,
        dtype: torch.dtype = torch.float32,
        context: int | None = None,
    ) -> None:
        """Raises UnsupportedError for a spec of another type."""
        check_supported(spec, model_types=("qwen2",))
        super().__init__(spec, kernels, dtype=dtype, context=context)


def _rotaries(spec: ModelSpec) -> set[Rotary]:
    found = set()
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention) and mixer.rotary is not None:
                found.add(mixer.rotary)
    return found
