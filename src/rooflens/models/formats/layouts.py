"""The layouts that quantisation tools write, as WeightFormats: what lies beside the weights, and where.

Every function names the tensors of one [out, in] matrix as the tool stores them. Group sizes of -1 mean
one group a row. Sources: the tools' own checkpoints and loaders, named with each function.
"""

from __future__ import annotations

from fractions import Fraction

from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from rooflens.models.formats.base import WeightFormat, plain_format
from rooflens.units import BITS_PER_BYTE

FP32, HALF, BYTE = 32, 16, 8
NVFP4_GROUP, MX_GROUP, FP8_BLOCK = 16, 32, 128
BNB_BLOCK, BNB_NESTED_BLOCK = 64, 256
_BNB_4BIT_MAP_ENTRIES, _BNB_8BIT_MAP_ENTRIES = 16, 256


def _group_suffix(group: int) -> str:
    return "" if group < 0 else f"-g{group}"


def fp8_tensor(*, static_activations: bool = False) -> WeightFormat:
    """weight fp8 [out, in], weight_scale fp32 []; with static activations input_scale fp32 [] too."""
    return WeightFormat("fp8", 8, tensor_bits=FP32 * (2 if static_activations else 1), compute_dtype="fp8")


def fp8_channel(*, scale_bits: int = FP32, activations: bool = True) -> WeightFormat:
    """weight fp8 [out, in], weight_scale [out, 1]: fp32 in fbgemm, the model's type in compressed-tensors."""
    return WeightFormat("fp8-channel", 8, row_bits=scale_bits, compute_dtype="fp8" if activations else None)


def fp8_block(
    rows: int = FP8_BLOCK, columns: int = FP8_BLOCK, *, scale_bits: int = FP32, activations: bool = True
) -> WeightFormat:
    """weight fp8 [out, in], weight_scale_inv [out/rows, in/columns]: fp32, or one byte (ue8m0)."""
    return WeightFormat(
        f"fp8-block-{rows}x{columns}",
        8,
        block=rows,
        block_columns=columns,
        scale_bits=scale_bits,
        compute_dtype="fp8" if activations else None,
    )


def mxfp8(*, activations: bool = True) -> WeightFormat:
    """weight fp8 [out, in], weight_scale e8m0 [out, in/32] (OCP Microscaling Formats v1.0)."""
    return WeightFormat(
        "mxfp8",
        8,
        group_size=MX_GROUP,
        scale_bits=BYTE,
        compute_dtype="fp8" if activations else None,
    )


def mxfp4(*, activations: bool = False) -> WeightFormat:
    """blocks fp4 [out, in/32, 16 bytes], scales e8m0 [out, in/32]: 4.25 bits (OCP Microscaling v1.0)."""
    return WeightFormat(
        "mxfp4",
        4,
        group_size=MX_GROUP,
        scale_bits=BYTE,
        compute_dtype="fp4" if activations else None,
    )


def nvfp4(group: int = NVFP4_GROUP, *, activations: bool = True) -> WeightFormat:
    """weight fp4 [out, in/2 bytes], weight_scale fp8 [out, in/16], weight_scale_2 fp32 []: 4.5 bits.

    With fp4 activations an input_scale fp32 [] too. Layout: ModelOpt and compressed-tensors exports.
    """
    return WeightFormat(
        "nvfp4" if activations else "nvfp4-w4a16",
        4,
        group_size=group,
        scale_bits=BYTE,
        tensor_bits=FP32 * (2 if activations else 1),
        compute_dtype="fp4" if activations else None,
    )


def int8_channel(*, scale_bits: int = HALF, activations: bool = False) -> WeightFormat:
    """weight int8 [out, in], weight_scale [out, 1]; ``activations``: int8 too, so int8 arithmetic."""
    return WeightFormat(
        "w8a8" if activations else "w8a16",
        8,
        row_bits=scale_bits,
        compute_dtype="int8" if activations else None,
    )


def packed_int(
    bits: int,
    group: int,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    compute_dtype: str | None = None,
) -> WeightFormat:
    """compressed-tensors "pack-quantized": weight_packed int32 [out, in*bits/32], weight_scale [out, in/g].

    Asymmetric: weight_zero_point packed along the rows. Act-order by group: weight_g_idx int32 [in].
    """
    return WeightFormat(
        f"int{bits}{_group_suffix(group)}" + ("" if symmetric else "-zp"),
        bits,
        group_size=group,
        scale_bits=HALF,
        zero_bits=0 if symmetric else bits,
        column_bits=FP32 if act_order else 0,
        compute_dtype=compute_dtype,
    )


def awq(bits: int = 4, group: int = 128, *, zero_point: bool = True) -> WeightFormat:
    """AutoAWQ: qweight int32 [in, out*bits/32], qzeros int32 [in/g, out*bits/32], scales fp16 [in/g, out]."""
    return WeightFormat(
        f"awq-int{bits}{_group_suffix(group)}",
        bits,
        group_size=group,
        scale_bits=HALF,
        zero_bits=bits if zero_point else 0,
    )


def gptq(bits: int = 4, group: int = 128) -> WeightFormat:
    """AutoGPTQ: qweight int32 [in*bits/32, out], qzeros int32 [in/g, out*bits/32], scales fp16 [in/g, out].

    g_idx int32 [in] stands beside them, in act-order or not; symmetric checkpoints store qzeros too.
    """
    return WeightFormat(
        f"gptq-int{bits}{_group_suffix(group)}",
        bits,
        group_size=group,
        scale_bits=HALF,
        zero_bits=bits,
        column_bits=FP32,
    )


def bnb_4bit(kind: str = "nf4", *, double_quant: bool = True) -> WeightFormat:
    """bitsandbytes 4 bit: weight packed flat, absmax per 64 elements of it, quant_map fp32 [16].

    absmax is fp32, or with double quantisation one byte, with nested_absmax fp32 per 256 of them and
    nested_quant_map fp32 [256]. Source: QLoRA (arXiv 2305.14314) and bitsandbytes' QuantState.
    """
    maps = _BNB_4BIT_MAP_ENTRIES + (_BNB_8BIT_MAP_ENTRIES if double_quant else 0)
    return WeightFormat(
        kind if double_quant else f"{kind}-single",
        4,
        group_size=BNB_BLOCK,
        flat=True,
        scale_bits=BYTE if double_quant else FP32,
        nested_group=BNB_NESTED_BLOCK if double_quant else 0,
        nested_bits=FP32,
        tensor_bits=maps * FP32,
    )


def bnb_int8() -> WeightFormat:
    """bitsandbytes LLM.int8(): weight int8 [out, in], SCB fp32 [out]; outlier columns run in 16 bits."""
    return WeightFormat("bnb-int8", 8, row_bits=FP32, compute_dtype="int8")


def mlx_affine(bits: int = 4, group: int = 64) -> WeightFormat:
    """MLX: weight uint32 [out, in*bits/32], scales and biases [out, in/g] in the model's 16-bit type."""
    return WeightFormat(f"mlx-{bits}bit-g{group}", bits, group_size=group, scale_bits=2 * HALF)


def exl(bits: Fraction, *, version: int) -> WeightFormat:
    """ExLlama: ``bits`` is the mean over the model, scales, permutations and sign vectors included."""
    return WeightFormat(f"exl{version}-{float(bits):g}bpw", bits)


def scale_and_zero(tool: str, bits: int, group: int) -> WeightFormat:
    """torchao's and quanto's 4 and 2 bits: packed weights, a 16-bit scale and a 16-bit zero per group."""
    return WeightFormat(f"{tool}-int{bits}-g{group}", bits, group_size=group, scale_bits=2 * HALF)


def hqq(bits: int, group: int) -> WeightFormat:
    """HQQ: W_q packed (3 bits: 10 to a word), scale and zero in 16 bits per group of the flat matrix."""
    stored = Fraction(32, 10) if bits == 3 else bits
    return WeightFormat(f"hqq-int{bits}-g{group}", stored, group_size=group, scale_bits=2 * HALF, flat=True)


def aqlm(*, codebooks: int, code_bits: int, in_group: int) -> WeightFormat:
    """AQLM with out_group_size 1: codes [out, in/group, codebooks] in whole bytes, scales fp16 [out].

    codebooks fp16 [codebooks, 2^code_bits, group] once a matrix. Source: arXiv 2401.06118, its library.
    """
    code_bytes = next(size for size in (1, 2, 4, 8) if size * BITS_PER_BYTE >= code_bits)
    return WeightFormat(
        f"aqlm-{codebooks}x{code_bits}",
        Fraction(codebooks * code_bytes * BITS_PER_BYTE, in_group),
        tensor_bits=codebooks * 2**code_bits * in_group * HALF,
        row_bits=HALF,
    )


def bitnet() -> WeightFormat:
    """BitNet b1.58: four ternary weights a byte, weight_scale [1] in 16 bits; int8 activations."""
    return WeightFormat("bitnet", 2, tensor_bits=HALF, compute_dtype="int8")


def ggml(name: str) -> WeightFormat:
    """A GGML tensor type, ``Q4_K`` and the like: rows of whole blocks."""
    type_ = GGML_TYPES_BY_NAME[name]
    if type_.block_elements == 1:
        return plain_format({"F32": "fp32", "F16": "fp16", "BF16": "bf16"}[name])
    return WeightFormat(
        name.lower(),
        Fraction(type_.block_bytes * BITS_PER_BYTE, type_.block_elements),
        pads_rows_to=type_.block_elements,
    )
