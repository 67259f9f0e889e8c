"""What a stored number costs: element types, and weight formats with their scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rooflens.dtypes import spelt
from rooflens.errors import UnsupportedError
from rooflens.units import BITS_PER_BYTE

# Bits of one element of each plain type; a type that is not here is not guessed.
DTYPE_BITS: dict[str, int] = {
    "fp64": 64,
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "int64": 64,
    "int32": 32,
    "fp8": 8,
    "int8": 8,
    "fp4": 4,
    "int4": 4,
}

_ZERO_POINT_WORD_BITS = 32


def dtype_name(text: str, *, field: str = "dtype") -> str:
    """The one spelling Rooflens uses for an element type; raises UnsupportedError by name."""
    name = spelt(text)
    if name not in DTYPE_BITS:
        raise UnsupportedError(
            f"{field} is not a known element type", value=text, allowed=", ".join(DTYPE_BITS)
        )
    return name


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element (0.5 for 4-bit types); ``dtype`` in Rooflens's own spelling."""
    bits = DTYPE_BITS[dtype]
    return bits // BITS_PER_BYTE if bits % BITS_PER_BYTE == 0 else bits / BITS_PER_BYTE


@dataclass(frozen=True)
class WeightFormat:
    """How the weight matrix of one linear layer is stored.

    ``bits`` are the bits of one stored weight (a fraction for block and trellis formats). Beside them
    stand, where the format has them:

    - a scale of ``scale_bits`` and a zero point of ``zero_bits`` per group of ``group_size`` input
      features (0: none, -1: one group a row), or per ``group_size`` elements of the flattened matrix
      where ``flat``; ``nested_group`` of these scales share a scale of ``nested_bits`` of their own;
    - a scale of ``scale_bits`` per block of ``block`` rows x ``block_columns`` (0: as ``block``);
    - ``row_bits`` per output feature, ``column_bits`` per input feature, ``tensor_bits`` per matrix.

    ``compute_dtype`` is the type that the matrix multiply runs in, None for "as the activations".
    ``pads_rows_to`` rounds the input features up, as the block formats of GGUF require.
    """

    name: str
    bits: Fraction | int
    group_size: int = 0
    scale_bits: int = 0
    zero_bits: int = 0
    block: int = 0
    row_bits: int = 0
    column_bits: int = 0
    tensor_bits: int = 0
    compute_dtype: str | None = None
    pads_rows_to: int = 1
    block_columns: int = 0
    flat: bool = False
    nested_group: int = 0
    nested_bits: int = 0

    def matrix_bytes(self, out_features: int, in_features: int) -> int:
        """Exact bytes of an [out, in] matrix in this format, scales and zero points included."""
        columns = _groups(in_features, self.pads_rows_to) * self.pads_rows_to
        bits = self.bits * out_features * columns
        if self.group_size:
            bits += self._group_bits(out_features, columns)
        if self.block:
            down = _groups(out_features, self.block)
            bits += down * _groups(in_features, self.block_columns or self.block) * self.scale_bits
        bits += out_features * self.row_bits + in_features * self.column_bits + self.tensor_bits
        return -(-bits // BITS_PER_BYTE)

    def bits_per_weight(self, out_features: int, in_features: int) -> float:
        """Bits per weight of an [out, in] matrix, everything included."""
        return BITS_PER_BYTE * self.matrix_bytes(out_features, in_features) / (out_features * in_features)

    def _group_bits(self, rows: int, columns: int) -> int:
        if self.flat and self.group_size > 0:
            scales = _groups(rows * columns, self.group_size)
            return scales * self.scale_bits + (
                _groups(scales, self.nested_group) * self.nested_bits if self.nested_group else 0
            )
        groups = 1 if self.group_size < 0 else _groups(columns, self.group_size)
        # Zero points are packed in words along the output features, each group's row of its own.
        zeros = groups * _groups(rows * self.zero_bits, _ZERO_POINT_WORD_BITS) * _ZERO_POINT_WORD_BITS
        return rows * groups * self.scale_bits + zeros


def _groups(count: int, size: int) -> int:
    """How many groups of ``size`` hold ``count`` things."""
    return -(-count // size)


def plain_format(dtype: str) -> WeightFormat:
    """The format of an unquantised matrix: the element type alone, nothing beside it."""
    return WeightFormat(name=dtype, bits=DTYPE_BITS[dtype])
