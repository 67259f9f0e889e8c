"""How the weights of one matrix are packed into a stored tensor, told from its type and shape.

Quantising tools store 2 to 8 bits a weight in integers of 8 to 32 bits, along the rows (compressed-tensors,
MLX), along the columns (GPTQ, AWQ), in blocks (MXFP4) or flat (bitsandbytes); the file's header says only how
many integers there are.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

from rooflens.models.checkpoint.safetensors_header import DTYPE_BITS
from rooflens.models.checkpoint.tensor import TensorInfo

#: Storage types by the name of the element type that they hold as it is.
PLAIN = {
    "F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16",
    "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F8_E4M3FNUZ": "fp8", "F8_E5M2FNUZ": "fp8", "I8": "int8",
}  # fmt: skip
#: Types that other numbers are packed into.
_CARRIERS = frozenset({"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"})
#: Endings of the tensor that holds the weights, in the order to look for it.
MAIN = ("weight", "qweight", "weight_packed", "blocks", "q_weight", "trellis", "W_q", "codes", "packed")
#: Of these the shape says nothing: tiles of a trellis, codes of a codebook, a matrix reshaped into groups.
_RESHAPED = ("trellis", "W_q", "codes")
_LEAST_BITS, _MOST_BITS = Fraction(1, 2), 16


def bits_per_weight(
    tensor: TensorInfo, *, shape: tuple[int, int], copies: int = 1, ending: str = "weight"
) -> Fraction | None:
    """Bits that ``tensor`` spends on a weight of ``copies`` matrices of ``shape``; None if they do not fit.

    ``ending``: the last word of its name. Scales are stored beside it and are not counted.
    """
    rows, columns = shape
    weights = rows * columns * copies
    whole = (
        (rows, columns) if copies == 1 else (copies, rows, columns),
        (copies * rows, columns),
        (rows * columns,),
    )
    if tensor.shape in whole:
        return Fraction(DTYPE_BITS[tensor.dtype])
    if tensor.dtype not in _CARRIERS or not weights:
        return None
    bits = Fraction(DTYPE_BITS[tensor.dtype] * prod(tensor.shape), weights)
    if not _LEAST_BITS <= bits < min(DTYPE_BITS[tensor.dtype], _MOST_BITS + 1):
        return None
    sides = {rows, columns, copies * rows}
    flat = max(tensor.shape, default=0) == prod(tensor.shape)
    fits = flat or ending in _RESHAPED or not sides.isdisjoint(tensor.shape)
    return bits if fits else None
