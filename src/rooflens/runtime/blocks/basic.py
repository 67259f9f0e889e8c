"""Linear, norm and embedding: a weight each, filled by the loader, computed by the kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rooflens.models.spec import Embedding as EmbeddingSpec
from rooflens.models.spec import Linear as LinearSpec
from rooflens.models.spec import Norm as NormSpec
from rooflens.runtime.kernels.base import Kernels, PackedLinear


class Linear(nn.Module):
    """One matrix multiply of the spec; ``packed`` is set when weights are loaded."""

    packed: PackedLinear

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, in_features] to [tokens, out_features]."""
        return self.packed.apply(x)


class Norm(nn.Module):
    """One normalisation; ``weight`` is the stored weight with the spec's offset added."""

    weight: Tensor | None = None
    bias: Tensor | None = None

    def __init__(self, spec: NormSpec, kernels: Kernels) -> None:
        super().__init__()
        self.spec = spec
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x``."""
        return self.kernels.norm(x, self.weight, self.bias, kind=self.spec.kind, eps=self.spec.eps)


class Embedding(nn.Module):
    """The token table, one row read per token, times the spec's scale.

    ``weight`` is the table, or, for a tied one that the head can give rows of, ``packed`` is the head's.
    """

    weight: Tensor
    packed: PackedLinear | None = None
    dtype: torch.dtype

    def __init__(self, spec: EmbeddingSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        """[tokens] to [tokens, dim]."""
        rows = self.rows_of(token_ids)
        if self.spec.scale == 1.0:
            return rows
        # Rounded to the compute type first, as the models that scale their embedding were trained.
        return rows * rows.new_tensor(self.spec.scale)

    def rows_of(self, token_ids: Tensor) -> Tensor:
        """The tokens' rows of the table, as they are."""
        if self.packed is not None:
            return self.packed.rows(token_ids, self.dtype)
        return F.embedding(token_ids, self.weight)
