"""KV-cache types: bytes of an element, names, and what never sets them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from formats_support import model, quantised

from rooflens.errors import UnsupportedError
from rooflens.models.accounting import kv_sequence_bytes
from rooflens.models.formats.apply import apply_format
from rooflens.models.formats.kv import KV_FORMATS, kv_element_bytes, kv_format


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp32", 32), ("bf16", 16), ("fp16", 16), ("fp8", 8), ("int8", 8),
        ("nvfp4", 4 + Fraction(8, 16)),  # an fp8 scale per 16
        ("q8_0", Fraction(34 * 8, 32)),  # 32 bytes and an fp16 scale
        ("q5_1", Fraction(24 * 8, 32)), ("q5_0", Fraction(22 * 8, 32)),
        ("q4_1", Fraction(20 * 8, 32)), ("q4_0", Fraction(18 * 8, 32)), ("iq4_nl", Fraction(18 * 8, 32)),
    ],
)  # fmt: skip
def test_bits_of_an_element(name: str, bits: Fraction | int):
    assert kv_format(name).bits == bits
    assert kv_element_bytes(name) == float(Fraction(bits) / 8)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("FP8_E4M3", "fp8"), ("fp8_e5m2", "fp8"), ("bfloat16", "bf16"), ("torch.float16", "fp16"),
        ("f16", "fp16"), ("Q8_0", "q8_0"), ("fp4", "nvfp4"), ("NVFP4", "nvfp4"),
    ],
)  # fmt: skip
def test_aliases(alias: str, name: str):
    assert kv_format(alias) is KV_FORMATS[name]


@pytest.mark.parametrize("name", ["q6_k", "fp7", "fp64", ""])
def test_unknown_types_are_refused_by_name(name: str):
    with pytest.raises(UnsupportedError, match="kv_dtype is not a known KV-cache type"):
        kv_format(name)


def test_the_logical_cache_uses_the_types_bytes():
    spec = model("meta-llama__Meta-Llama-3.1-8B")
    elements = 32 * 2 * 8 * 128
    assert kv_sequence_bytes(spec, context=1000, kv_dtype="bf16") == 1000 * elements * 2
    assert kv_sequence_bytes(spec, context=1000, kv_dtype="q8_0") == 1000 * elements * 34 // 32


def test_weight_precision_never_reaches_the_cache():
    """Qwen2.5-7B-Instruct-GPTQ-Int8: 28 x 2 x 4 x 128 x 2 B = 57,344 B a token; 3,072 tokens are 168 MiB."""
    gptq = {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False, "sym": True}
    for spec in (
        quantised("Qwen__Qwen2.5-7B-Instruct", gptq, torch_dtype="float16"),
        apply_format(model("Qwen__Qwen2.5-7B-Instruct"), "gptq-int8"),
    ):
        assert spec.kv_scheme is None
        assert kv_sequence_bytes(spec, context=1, kv_dtype=spec.dtype) == 57_344
        assert kv_sequence_bytes(spec, context=3072, kv_dtype=spec.dtype) == 168 * 2**20


def test_a_checkpoints_scheme_is_reported_and_not_applied():
    spec = model("nvidia__Llama-3.1-70B-Instruct-FP8")
    assert (spec.kv_scheme, spec.dtype) == ("fp8", "bf16")
