"""The interface between the model and its kernels.

The model's modules call nothing of torch that costs time: they go through a ``Kernels`` set. A set packs
each weight once at load into whatever its multiply wants, and computes the few operators below. To add
kernels, subclass ``EagerKernels`` (the reference, in every sense: correct first) and override what is
faster; ``describe`` says which path each operator takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kv_cache import PagedKVCache

#: How a linear's weight is held: in the compute type, or quantised when it is packed.
WeightHolding = Literal["plain", "int8", "int4"]


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


class PackedLinear(ABC):
    """A weight [out_features, in_features] and its bias, in the layout that its multiply reads.

    ``holding`` names the layout in reports; ``nbytes`` is what it occupies.
    """

    in_features: int
    out_features: int
    holding: str
    nbytes: int

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """y = x W^T + b for ``x`` [tokens, in_features], in the type of ``x``."""


class Kernels(ABC):
    """One way to compute every operator of a decoder step."""

    name: str

    @abstractmethod
    def pack(self, weight: Tensor, bias: Tensor | None, *, holding: WeightHolding = "plain") -> PackedLinear:
        """Take over ``weight`` (which the caller then drops) in the layout of this set's multiply."""

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
    def greedy(self, logits: Tensor) -> Tensor:
        """The most likely token of each row of ``logits`` [rows, vocabulary]; the first of equals."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Which path each operator takes, in words, for reports and benchmark records."""
