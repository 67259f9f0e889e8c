"""Which format a holding or a GGUF tensor gets in C, and what it costs."""

from __future__ import annotations

import torch

from rooflens.models.formats.base import WeightFormat, plain_format
from rooflens.models.formats.layouts import ggml
from rooflens.runtime.kernels.base import WeightHolding
from rooflens.runtime.native.layout import GROUP, SUPER_GROUP, Format

#: GGUF types that are kept at their own width.
GGUF_FORMATS = {
    "Q8_0": Format.Q8_0,
    "Q4_0": Format.Q4_0,
    "Q4_1": Format.Q4_1,
    "Q5_0": Format.Q5_0,
    "Q5_1": Format.Q5_1,
    "Q4_K": Format.Q4_K,
    "Q5_K": Format.Q5_K,
    "Q6_K": Format.Q6_K,
}
_QUANTISED: dict[WeightHolding, Format] = {
    "int8": Format.Q8_0,
    "int8-channel": Format.Q8_CHANNEL,
    "int4": Format.Q4_1,
    "int4-symmetric": Format.Q4_0,
}
_PLAIN = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}
_FP16_BITS, _FP32_BITS = 16, 32
_NAMES = {
    Format.Q8_CHANNEL: "int8 per channel",
    Format.Q8_0: f"int8 group {GROUP}",
    Format.Q4_0: f"int4 group {GROUP}, symmetric",
    Format.Q4_1: f"int4 group {GROUP}, scale and minimum",
}


def format_of(holding: WeightHolding, dtype: torch.dtype) -> Format | None:
    """The format for a matrix of ``dtype`` held so; None where C has none for it."""
    return _PLAIN.get(dtype) if holding == "plain" else _QUANTISED[holding]


def weight_format(form: Format) -> WeightFormat:
    """What a matrix in ``form`` costs, for predictions: rows are padded to whole groups of input features."""
    if form is Format.F32 or form is Format.BF16:
        return plain_format("fp32" if form is Format.F32 else "bf16")
    if form is Format.Q8_CHANNEL:
        return WeightFormat("int8", bits=8, row_bits=_FP32_BITS, pads_rows_to=GROUP)
    if form is Format.Q8_0:
        return WeightFormat("int8-g32", bits=8, group_size=GROUP, scale_bits=_FP16_BITS, pads_rows_to=GROUP)
    if form in (Format.Q4_0, Format.Q4_1):
        scale_bits = _FP16_BITS * (2 if form is Format.Q4_1 else 1)
        return WeightFormat("int4-g32", bits=4, group_size=GROUP, scale_bits=scale_bits, pads_rows_to=GROUP)
    return ggml(form.name)


def name_of(form: Format) -> str:
    """How reports call a layout."""
    if form is Format.F32 or form is Format.BF16:
        return f"{'fp32' if form is Format.F32 else 'bf16'}, tiles of C kernels"
    return f"{_NAMES.get(form, form.name)}, tiles of C kernels"


def takes_columns(form: Format, in_features: int) -> bool:
    """Whether rows of so many input features are whole blocks of a GGUF format."""
    return in_features % (SUPER_GROUP if form >= Format.Q4_K else GROUP) == 0
