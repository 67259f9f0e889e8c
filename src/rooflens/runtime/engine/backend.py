"""What the engine asks of a model, and how long a device is waited for."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from rooflens.models.spec import ModelSpec
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.tokenizer import Tokenizer


class BlockStore(Protocol):
    """What the engine asks of a KV cache; ``PagedKVCache`` is one."""

    blocks: int
    block_tokens: int

    def copy_blocks(self, source: Tensor, target: Tensor) -> None:
        """Copy the contents of whole blocks; every source is read before any target is written."""
        ...


class Backend(Protocol):
    """What the engine asks of a model; ``NativeBackend`` is one."""

    @property
    def spec(self) -> ModelSpec:
        """The model as held."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where there is only the model."""
        ...

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        ...

    @property
    def context(self) -> int:
        """The longest sequence."""
        ...

    @property
    def cache(self) -> BlockStore:
        """The blocks that the engine hands out."""
        ...

    def step(self, batch: StepBatch) -> Tensor:
        """fp32 logits of the rows to sample, valid until the next step."""
        ...


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has done what it was given; a CPU always has."""
    if device.type != "cpu":
        module: Any = getattr(torch, device.type)
        module.synchronize()
