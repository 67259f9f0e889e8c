"""The CPU set: weights packed once by oneDNN, attention by tiled multiplies, the rest as the reference.

The packing operators are private to torch and may go: they are tried once, at first use, against
``F.linear``, and left alone if they are missing or disagree; ``describe`` tells.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.models.formats.base import WeightFormat, dtype_name, plain_format
from rooflens.runtime.kernels import paged_attention
from rooflens.runtime.kernels.base import AttentionSettings, PackedLinear, WeightHolding
from rooflens.runtime.kernels.eager import EagerKernels

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kv_cache import PagedKVCache

#: Shape of the trial multiply, and how far (relative to the largest value) the packed one may be off.
_TRIAL = (8, 64, 32)
_TRIAL_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


#: Rows up to which a norm's time is that of its calls.
_FEW_ROWS = 16


class OneDnnLinear(PackedLinear):
    """A weight in oneDNN's blocked layout, opaque to everyone else."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self._format = plain_format(dtype_name(str(weight.dtype)))
        self.holding = f"{str(weight.dtype).removeprefix('torch.')}, packed by oneDNN"
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``."""
        return ((self.out_features, self._format),)


@lru_cache
def onednn_packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of ``dtype`` here and multiplies them right: tried, not assumed."""
    if dtype not in _TRIAL_TOLERANCE or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    rows, out_features, in_features = _TRIAL
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    bias = torch.randn(out_features, generator=generator).to(dtype)
    x = torch.randn(rows, in_features, generator=generator).to(dtype)
    try:
        packed = OneDnnLinear(weight, bias).apply(x).float()
    except (RuntimeError, AttributeError, TypeError):
        return False
    plain = F.linear(x.float(), weight.float(), bias.float())
    return bool((packed - plain).abs().max() <= _TRIAL_TOLERANCE[dtype] * plain.abs().max())


@lru_cache
def has_matrix_tiles() -> bool:
    """Whether the processor multiplies bf16 in tiles (AMX), which torch's fused attention then uses."""
    asked = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(asked is not None and asked())


class CpuKernels(EagerKernels):
    """oneDNN-packed linears and tiled attention."""

    name = "cpu"

    def __init__(self, *, not_native: str | None = None) -> None:
        """``not_native``: why the C kernels are not used instead, for ``describe``."""
        self._packing: dict[str, str] = {}
        self._not_native = not_native

    def pack(self, weight: Tensor, bias: Tensor | None, *, holding: WeightHolding = "plain") -> PackedLinear:
        """See ``Kernels.pack``."""
        if holding == "plain" and onednn_packs(weight.dtype):
            packed: PackedLinear = OneDnnLinear(weight, bias)
        else:
            packed = super().pack(weight, bias, holding=holding)
        self._packing[packed.holding] = type(packed).__name__
        return packed

    def norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        kind: Literal["rms", "layer"],
        eps: float,
    ) -> Tensor:
        """See ``Kernels.norm``; ``F.rms_norm`` is a dozen operators on CPUs, these are fewer."""
        narrow = x.dtype in (torch.bfloat16, torch.float16)
        if kind != "rms" or not narrow or (weight is not None and weight.dtype != x.dtype):
            return super().norm(x, weight, bias, kind=kind, eps=eps)
        if x.shape[:-1].numel() <= _FEW_ROWS:
            # Beside its negative a row has the mean 0 and its own mean square as variance.
            both = torch.cat((x, -x), dim=-1)
            result = F.layer_norm(both, both.shape[-1:], None, None, eps)[..., : x.shape[-1]]
            result = result.clone() if weight is None else result * weight
        else:
            wide = x.float()
            length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
            wide *= length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
            result = (wide if weight is None else wide.mul_(weight)).to(x.dtype)
        return result if bias is None else result + bias

    def attend(
        self, query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
    ) -> Tensor:
        """See ``Kernels.attend``."""
        fused = query.dtype == torch.bfloat16 and settings.softcap is None and has_matrix_tiles()
        return paged_attention.attend(
            query, cache, layer, batch, settings, prefill=paged_attention.fused_prefill if fused else None
        )

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        prefill = f"multiplies over tiles of about {paged_attention.TILE_ROWS} rows"
        if has_matrix_tiles():
            prefill = f"scaled_dot_product_attention in bf16, else {prefill}"
        told = {
            "linear": "; ".join(sorted(self._packing)) or "nothing packed yet",
            "attention": f"prefill by {prefill}, decode by scaled_dot_product_attention with folded heads",
            "norm": "F.layer_norm on few rows, by steps in fp32 on many",
        }
        return told if self._not_native is None else {**told, "native": f"not used: {self._not_native}"}
