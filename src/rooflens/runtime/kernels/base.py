"""The interface between the model and its kernels.

The model's modules call nothing of torch that costs time: they go through a ``Kernels`` set. A set packs
each weight once at load into whatever its multiply wants, and computes the few operators below. To add
kernels, subclass ``EagerKernels`` (the reference, in every sense: correct first) and override what is
faster; ``describe`` says which path each operator takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rooflens.models.formats.base import WeightFormat

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kernels.steps import StepRunner
    from rooflens.runtime.kv_cache import PagedKVCache
    from rooflens.runtime.model import DecoderModel

#: How a linear's weight is held: in the compute type, or quantised when it is packed.
WeightHolding = Literal["plain", "int8", "int8-channel", "int4", "int4-symmetric"]


@dataclass(frozen=True)
class AttentionSettings:
    """The numbers of one layer's attention. ``window`` counts the tokens a query sees, itself included."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class StoredPart:
    """Rows of a matrix as a GGUF file has them: ``blocks`` [rows, bytes of a row] of the type ``kind``."""

    kind: str
    blocks: Tensor


class PackedLinear(ABC):
    """A weight [out_features, in_features] and its bias, in the layout that its multiply reads.

    ``holding`` names the layout in reports; ``nbytes`` is what it occupies, ``copied_bytes`` the part of it
    that holds the weight a second time, in another layout.
    """

    #: Whether ``rows`` gives rows back, so that a tied token table need not be held beside it.
    gives_rows = False

    in_features: int
    out_features: int
    holding: str
    nbytes: int
    copied_bytes: int = 0

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """y = x W^T + b for ``x`` [tokens, in_features], in the type of ``x``."""

    @abstractmethod
    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """(rows, format) of what is read of the weight, from its first row to its last."""

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight's rows ``ids`` [n] in ``dtype``, where ``gives_rows``: [n, in_features]."""
        raise NotImplementedError(self.holding)


class Kernels(ABC):
    """One way to compute every operator of a decoder step."""

    name: str
    #: Whether ``pack`` quantises weights in fp32 too, whatever the compute type.
    quantises_wide = False

    def expect(self, model_bytes: int) -> None:
        """What the weights to come need at most, told before the first of them; may be ignored."""
        return

    @abstractmethod
    def pack(self, weight: Tensor, bias: Tensor | None, *, holding: WeightHolding = "plain") -> PackedLinear:
        """Take over ``weight`` (which the caller then drops) in the layout of this set's multiply."""

    def keeps(self, kinds: Sequence[str], in_features: int) -> bool:
        """Whether ``pack_stored`` takes a matrix of parts in these GGUF types."""
        return False

    def pack_stored(
        self, parts: Sequence[StoredPart], bias: Tensor | None, *, in_features: int
    ) -> PackedLinear:
        """Hold a matrix at the width that its file has, without loss. Only where ``keeps`` says so."""
        raise NotImplementedError(self.name)

    def steps(self, model: DecoderModel, cache: PagedKVCache) -> StepRunner | None:
        """What runs whole steps of ``model`` over ``cache`` faster than its modules; None: nothing does."""
        return None

    @abstractmethod
    def norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        kind: Literal["rms", "layer"],
        eps: float,
    ) -> Tensor:
        """Normalise the last dimension. An fp32 ``weight`` beside a narrower ``x``: computed in fp32."""

    @abstractmethod
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
        """Turn the first features of ``x`` [tokens, heads, head_dim] by ``cos``, ``sin`` [tokens, 1, dim]."""

    @abstractmethod
    def activate(self, x: Tensor, *, activation: str, gated: bool) -> Tensor:
        """act(x), or act(first half) * second half of the last dimension where ``gated``."""

    @abstractmethod
    def attend(
        self, query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
    ) -> Tensor:
        """Causal attention of ``query`` [T, heads, head_dim] over each sequence's blocks.

        Returns [T, heads * head_dim]. The step's own keys and values are in the cache already.
        """

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Which path each operator takes, in words, for reports and benchmark records."""
