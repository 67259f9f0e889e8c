"""Weights held in 8 or 4 bits by torch's own weight-only kernels; activations stay as they are.

Both kernels take time in proportion to the rows of ``x``. From some rows on it is faster to expand the
weight once per call and multiply plainly: where the two meet was measured, see ``_FEW_ROWS``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.errors import UnsupportedError
from rooflens.models.formats.base import WeightFormat
from rooflens.runtime.kernels.base import PackedLinear, WeightHolding
from rooflens.units import BITS_PER_BYTE

GROUP = 32
_INT8_MAX = 127
_INT4_LEVELS = 15
#: The zero point that the int4 kernel subtracts from every stored level.
_INT4_MIDDLE = 8
#: Inner tiling of the int4 layout; the CPU kernel ignores it, the operator wants a value.
_INNER_K_TILES = 2
#: Rows up to which the weight-only kernel beats expanding the weight: decode batches, never a prefill.
#: Measured on matrices of 9,728 x 896 with AVX-512, one thread: 0.5 ms at 4 rows and 3.8 at 32 by the
#: int8 kernel, 1.9 and 3.1 expanded; int4 meets at 9 to 14 ms.
_FEW_ROWS = {"int8": 20, "int4": 64}


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

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``: scales in the compute type."""
        return ((self.out_features, WeightFormat("int8", bits=8, row_bits=_bits(self.scales))),)


class Int4Linear(PackedLinear):
    """int4 with scale and minimum per group of 32 input features: w = level * scale + minimum.

    The kernel's own layout cannot be read back, so the levels are kept a second time for calls with many
    rows: 1.25 bytes a weight instead of 0.6. There, output features come last, so that scales are applied
    along whole vectors; a byte holds the same place of both halves of a group.
    """

    holding = f"int4 group {GROUP}, scale and minimum"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        groups = weight.float().view(self.out_features, -1, GROUP)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        scale = ((high - low) / _INT4_LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        levels = torch.round((groups - low[..., None]) / scale[..., None]).clamp_(0, _INT4_LEVELS)
        levels = levels.to(torch.int32)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.flatten(1), _INNER_K_TILES)
        # [groups, out, 2]: scale, and the value at the middle level, as the kernel wants them.
        middle = low + _INT4_MIDDLE * scale
        self.scales = torch.stack((scale, middle), dim=-1).transpose(0, 1).contiguous().to(weight.dtype)
        # [groups, 16, out] of two levels each.
        by_place = levels.permute(1, 2, 0)
        half = GROUP // 2
        self.levels = (by_place[:, :half] | by_place[:, half:] << 4).to(torch.uint8).contiguous()
        self.scale, self.middle = (self.scales[:, None, :, side].contiguous() for side in (0, 1))
        self.bias = bias
        held = (self.packed, self.scales, self.levels, self.scale, self.middle)
        self.nbytes = sum(tensor.nbytes for tensor in held) + (bias.nbytes if bias is not None else 0)

    def _expanded(self) -> Tensor:
        """The weight, transposed: [in_features, out_features]."""
        half = GROUP // 2
        levels = self.scale.new_empty(self.levels.shape[0], GROUP, self.out_features)
        levels[:, :half] = self.levels & _INT4_LEVELS
        levels[:, half:] = self.levels >> 4
        return torch.addcmul(self.middle, levels.sub_(_INT4_MIDDLE), self.scale).view(self.in_features, -1)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        if x.shape[0] > _FEW_ROWS["int4"]:
            y = torch.mm(x, self._expanded())
        else:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, GROUP, self.scales)
        return y if self.bias is None else y + self.bias

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``: without the second copy, which decoding does not read."""
        form = WeightFormat("int4", bits=4, group_size=GROUP, scale_bits=2 * _bits(self.scales))
        return ((self.out_features, form),)


def _bits(scales: Tensor) -> int:
    return BITS_PER_BYTE * scales.element_size()


def pack_quantized(weight: Tensor, bias: Tensor | None, *, holding: WeightHolding) -> PackedLinear:
    """Quantise ``weight`` and hold it so. Raises UnsupportedError where no kernel takes it."""
    if weight.device.type != "cpu":
        raise UnsupportedError(f"{holding} weights have a kernel on CPU only", value=weight.device.type)
    if holding not in ("int8", "int8-channel", "int4"):
        raise UnsupportedError("only the C kernels hold weights so", value=holding)
    if holding != "int4":
        return Int8Linear(weight, bias)
    if weight.shape[1] % GROUP:
        raise UnsupportedError(
            f"int4 weights need input features in groups of {GROUP}", value=weight.shape[1]
        )
    return Int4Linear(weight, bias)
