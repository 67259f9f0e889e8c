"""Weights held in 8 or 4 bits by torch's own weight-only kernels; activations stay as they are.

Both kernels take time in proportion to the rows of ``x``. From a few rows on it is faster to expand the
weight once per call and multiply plainly: where the two meet was measured, see ``_FEW_ROWS``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.errors import UnsupportedError
from rooflens.runtime.kernels.base import PackedLinear, WeightHolding

GROUP = 32
_INT8_MAX = 127
_INT4_LEVELS = 15
#: The zero point that the int4 kernel subtracts from every stored level.
_INT4_MIDDLE = 8
#: Inner tiling of the int4 layout; the CPU kernel ignores it, the operator wants a value.
_INNER_K_TILES = 2
#: Rows up to which the weight-only kernel beats expanding the weight (decode batches; never a prefill).
_FEW_ROWS = {"int8": 6, "int4": 6}


class Int8Linear(PackedLinear):
    """Symmetric int8 with one scale per output feature: w = level * scale, scale = max|row| / 127."""

    holding = "int8 per channel"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        wide = weight.float()
        scale = (wide.abs().amax(dim=1, keepdim=True) / _INT8_MAX).clamp_min(torch.finfo(torch.float32).tiny)
        self.levels = torch.round(wide / scale).to(torch.int8)
        self.scales = scale.squeeze(1).to(weight.dtype)
        self.bias = bias
        self.nbytes = self.levels.nbytes + self.scales.nbytes + (bias.nbytes if bias is not None else 0)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        if x.shape[0] > _FEW_ROWS["int8"]:
            y = F.linear(x, self.levels.to(x.dtype)) * self.scales
        else:
            y = torch.ops.aten._weight_int8pack_mm(x.contiguous(), self.levels, self.scales)
        return y if self.bias is None else y + self.bias


class Int4Linear(PackedLinear):
    """int4 with scale and minimum per group of 32 input features: w = level * scale + minimum.

    The kernel's own layout cannot be read back, so the levels are kept a second time, two in a byte, for
    calls with many rows: 1.1 bytes a weight instead of 0.6.
    """

    holding = f"int4 group {GROUP}, scale and minimum"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        groups = weight.float().view(self.out_features, -1, GROUP)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        scale = ((high - low) / _INT4_LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        levels = torch.round((groups - low[..., None]) / scale[..., None]).clamp_(0, _INT4_LEVELS)
        levels = levels.to(torch.int32).flatten(1)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, _INNER_K_TILES)
        # [groups, out, 2]: scale, and the value at the middle level, as the kernel wants them.
        middle = low + _INT4_MIDDLE * scale
        self.scales = torch.stack((scale, middle), dim=-1).transpose(0, 1).contiguous().to(weight.dtype)
        self.levels = (levels[:, ::2] | levels[:, 1::2] << 4).to(torch.uint8)
        self.bias = bias
        self.nbytes = self.packed.nbytes + self.scales.nbytes + self.levels.nbytes
        self.nbytes += bias.nbytes if bias is not None else 0

    def _expanded(self) -> Tensor:
        levels = torch.stack((self.levels & _INT4_LEVELS, self.levels >> 4), dim=-1)
        scale, middle = self.scales.transpose(0, 1).unbind(-1)
        groups = levels.view(self.out_features, -1, GROUP).to(scale.dtype) - _INT4_MIDDLE
        return torch.addcmul(middle[..., None], groups, scale[..., None]).flatten(1)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        if x.shape[0] > _FEW_ROWS["int4"]:
            y = F.linear(x, self._expanded())
        else:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, GROUP, self.scales)
        return y if self.bias is None else y + self.bias


def pack_quantized(weight: Tensor, bias: Tensor | None, *, holding: WeightHolding) -> PackedLinear:
    """Quantise ``weight`` and hold it so. Raises UnsupportedError where no kernel takes it."""
    if weight.device.type != "cpu":
        raise UnsupportedError(f"{holding} weights have a kernel on CPU only", value=weight.device.type)
    if holding == "int8":
        return Int8Linear(weight, bias)
    if weight.shape[1] % GROUP:
        raise UnsupportedError(
            f"int4 weights need input features in groups of {GROUP}", value=weight.shape[1]
        )
    return Int4Linear(weight, bias)
