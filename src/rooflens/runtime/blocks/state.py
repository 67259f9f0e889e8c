"""What one step carries through the layers beside the hidden states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rooflens.models.spec import Rotary
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.blocks.rotary import RotaryTable
from rooflens.runtime.kv_cache import PagedKVCache


class StepState:
    """The step's batch, the cache, and the rotations of its positions, looked up once per step."""

    def __init__(
        self, batch: StepBatch, cache: PagedKVCache, tables: Mapping[Rotary, RotaryTable], dtype: torch.dtype
    ) -> None:
        self.batch = batch
        self.cache = cache
        self._tables = tables
        self._like = torch.empty(0, dtype=dtype, device=batch.token_ids.device)
        self._rotations: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def rotation(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """(cos, sin) [T, 1, dim] of the step's positions."""
        found = self._rotations.get(rotary)
        if found is None:
            longest = max(self.batch.sequence_lengths)
            found = self._tables[rotary](self.batch.positions, longest, self._like)
            self._rotations[rotary] = found
        return found
