"""Bytes of one matrix in every layout, written out from the tensors that the tools store."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from rooflens.models.formats import layouts
from rooflens.models.formats.base import WeightFormat, dtype_bytes, dtype_name, plain_format

OUT, IN = 3584, 18944  # Qwen2.5-7B's down_proj


def test_plain_types():
    assert plain_format("bf16").matrix_bytes(OUT, IN) == OUT * IN * 2
    assert plain_format("fp32").matrix_bytes(OUT, IN) == OUT * IN * 4
    assert plain_format("int4").matrix_bytes(3, 5) == 8  # 60 bits
    assert dtype_bytes("fp4") == 0.5
    assert dtype_name("torch.bfloat16") == "bf16"


def test_awq_is_qweight_qzeros_scales():
    qweight = IN * (OUT * 4 // 32) * 4  # int32 [in, out/8]
    qzeros = IN // 128 * (OUT // 8) * 4  # int32 [in/128, out/8]
    scales = IN // 128 * OUT * 2  # fp16 [in/128, out]
    assert layouts.awq().matrix_bytes(OUT, IN) == qweight + qzeros + scales


def test_awq_scales_double_with_half_the_group():
    fine, coarse = layouts.awq(4, 64), layouts.awq(4, 128)
    extra = (IN // 64 - IN // 128) * OUT * (2 + Fraction(1, 2))
    assert fine.matrix_bytes(OUT, IN) - coarse.matrix_bytes(OUT, IN) == extra


@pytest.mark.parametrize(("bits", "words"), [(2, 16), (4, 8), (8, 4)])
def test_gptq_is_qweight_qzeros_scales_g_idx(bits: int, words: int):
    qweight = IN // words * OUT * 4
    qzeros = IN // 128 * (OUT // words) * 4
    scales = IN // 128 * OUT * 2
    assert layouts.gptq(bits, 128).matrix_bytes(OUT, IN) == qweight + qzeros + scales + IN * 4


def test_gptq_three_bits_pack_32_weights_in_three_words():
    qweight = IN // 32 * 3 * OUT * 4
    qzeros = IN // 128 * (OUT // 32 * 3) * 4
    assert layouts.gptq(3, 128).matrix_bytes(OUT, IN) == qweight + qzeros + IN // 128 * OUT * 2 + IN * 4


def test_gptq_without_groups_has_one_scale_a_row():
    one_group = OUT * 2 + OUT // 8 * 4 + IN * 4
    assert layouts.gptq(4, -1).matrix_bytes(OUT, IN) == OUT * IN // 2 + one_group


def test_compressed_tensors_integers():
    scales = OUT * (IN // 128) * 2
    assert layouts.packed_int(4, 128).matrix_bytes(OUT, IN) == OUT * IN // 2 + scales
    with_order = layouts.packed_int(4, 128, act_order=True)
    assert with_order.matrix_bytes(OUT, IN) == OUT * IN // 2 + scales + IN * 4
    zeros = OUT // 8 * (IN // 128) * 4
    asymmetric = layouts.packed_int(4, 128, symmetric=False)
    assert asymmetric.matrix_bytes(OUT, IN) == OUT * IN // 2 + scales + zeros


def test_eight_bits():
    assert layouts.fp8_tensor().matrix_bytes(OUT, IN) == OUT * IN + 4
    assert layouts.fp8_tensor(static_activations=True).matrix_bytes(OUT, IN) == OUT * IN + 8
    assert layouts.fp8_channel().matrix_bytes(OUT, IN) == OUT * IN + OUT * 4
    assert layouts.int8_channel().matrix_bytes(OUT, IN) == OUT * IN + OUT * 2
    assert layouts.bnb_int8().matrix_bytes(OUT, IN) == OUT * IN + OUT * 4
    assert layouts.mxfp8().matrix_bytes(OUT, IN) == OUT * IN + OUT * IN // 32


def test_deepseek_blocks_are_rounded_up():
    # DeepSeek-V3's kv_a_proj: 576 rows are 4.5 blocks of 128, so 5 x 56 scales.
    assert layouts.fp8_block().matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4
    assert layouts.fp8_block(scale_bits=layouts.BYTE).matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56
    assert layouts.fp8_block(1, 128).matrix_bytes(576, 7168) == 576 * 7168 + 576 * 56 * 4


def test_four_bit_floats():
    nvfp4 = OUT * IN // 2 + OUT * (IN // 16) + 2 * 4  # weight, fp8 scales, two fp32 scalars
    assert layouts.nvfp4().matrix_bytes(OUT, IN) == nvfp4
    assert layouts.nvfp4(activations=False).matrix_bytes(OUT, IN) == nvfp4 - 4
    # gpt-oss's experts: 2880 inputs are 90 groups of 16 bytes and one e8m0 scale.
    assert layouts.mxfp4().matrix_bytes(5760, 2880) == 5760 * 90 * 17
    assert layouts.mxfp4().bits_per_weight(5760, 2880) == 4.25


def test_bitsandbytes_blocks_run_over_the_flat_matrix():
    rows, columns = 7, 96  # 672 weights: 10.5 blocks of 64
    single = layouts.bnb_4bit(double_quant=False)
    assert single.matrix_bytes(rows, columns) == 672 // 2 + 11 * 4 + 16 * 4
    double = layouts.bnb_4bit(double_quant=True)
    assert double.matrix_bytes(rows, columns) == 672 // 2 + 11 + 1 * 4 + (16 + 256) * 4
    absmax = OUT * IN // 64
    nested = -(-absmax // 256) * 4
    assert double.matrix_bytes(OUT, IN) == OUT * IN // 2 + absmax + nested + 272 * 4


def test_other_tools():
    assert layouts.mlx_affine(4, 64).bits_per_weight(OUT, IN) == 4 + 32 / 64
    assert layouts.hqq(4, 64).bits_per_weight(OUT, IN) == 4 + 32 / 64
    assert layouts.exl(Fraction("4.25"), version=3).bits_per_weight(OUT, 2 * IN) == 4.25
    assert layouts.bitnet().matrix_bytes(OUT, IN) == OUT * IN // 4 + 2
    # 1x16: one 16-bit code for 8 weights, a codebook of 65,536 x 8 fp16, a scale a row.
    codebook = 65536 * 8 * 2
    aqlm = layouts.aqlm(codebooks=1, code_bits=16, in_group=8)
    assert aqlm.matrix_bytes(OUT, IN) == OUT * IN // 8 * 2 + codebook + OUT * 2


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"])
def test_ggml_blocks_equal_what_the_library_writes(name: str):
    weights = np.random.default_rng(7).standard_normal((6, 512), dtype=np.float32)
    written = quantize(weights, GGMLQuantizationType[name])
    assert layouts.ggml(name).matrix_bytes(6, 512) == written.nbytes


def test_ggml_rows_are_whole_blocks():
    # A K-quant row of 300 weights would take two super-blocks of 256.
    assert layouts.ggml("Q4_K").matrix_bytes(3, 300) == 3 * 2 * 144


def test_a_fraction_of_a_byte_is_rounded_up():
    assert WeightFormat("x", Fraction(1, 3)).matrix_bytes(5, 5) == 2  # 8.33 bits
