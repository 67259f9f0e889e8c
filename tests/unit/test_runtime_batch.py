"""StepBatch and the paged cache: where every token's key and value go, and what comes back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rooflens.errors import InputError  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.kv_cache import (  # noqa: E402
    PagedKVCache,
    dequantize_int8,
    kv_bytes_per_token,
    quantize_int8,
)

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
}
SPEC = read_spec(LLAMA, name="tiny")


def test_a_prefill_chunk_and_a_decode_in_one_step() -> None:
    prefill = Chunk(token_ids=[5, 6, 7], start=15, block_table=[4, 2], sample=0)
    decode = Chunk(token_ids=[9], start=33, block_table=[7, 1, 3])
    batch = StepBatch.build([prefill, decode])
    assert batch.tokens == 4
    assert batch.positions.tolist() == [15, 16, 17, 33]
    # position 15 is the last of block 4 (4*16+15), 16 the first of block 2; 33 the second of block 3.
    assert batch.slot_mapping.tolist() == [79, 32, 33, 49]
    assert batch.query_lengths == (3, 1)
    assert batch.sequence_lengths == (18, 34)
    assert batch.query_starts == (0, 3)
    assert batch.block_tables.tolist() == [[4, 2, 0], [7, 1, 3]]
    assert batch.sample_rows.tolist() == [3]


def test_drafted_tokens_are_all_sampled() -> None:
    batch = StepBatch.build([Chunk([1, 2, 3], 4, [0], sample=3), Chunk([8], 0, [1])])
    assert batch.sample_rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "chunk",
    [Chunk([], 0, [0]), Chunk([1], 0, [0], sample=2), Chunk([1], 16, [0]), Chunk([1] * 17, 0, [0])],
)
def test_a_chunk_that_cannot_be_laid_out_is_refused(chunk: Chunk) -> None:
    with pytest.raises(InputError):
        StepBatch.build([chunk])


def _cache(dtype: str) -> PagedKVCache:
    return PagedKVCache(SPEC, blocks=6, dtype=dtype, compute_dtype=torch.float32)


def test_bytes_per_token_of_each_type() -> None:
    # 2 layers x 2 (key, value) x 2 heads x 8 features = 64 elements; int8 adds 8 scales of 4 bytes.
    assert kv_bytes_per_token(SPEC, "fp32") == 256
    assert kv_bytes_per_token(SPEC, "bf16") == 128
    assert kv_bytes_per_token(SPEC, "int8") == 64 + 32
    assert _cache("bf16").total_bytes == 6 * 16 * 128


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_what_is_written_is_read_back_by_blocks_and_by_run(dtype: str) -> None:
    cache = _cache(dtype)
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(20, 2, 8, generator=generator)
    value = torch.randn(20, 2, 8, generator=generator)
    slots = torch.arange(20) + 3 * 16  # blocks 3 and 4
    cache.write(1, key, value, slots)
    read_key, read_value = cache.read_blocks(1, torch.tensor([3, 4]))
    run_key, run_value = cache.read_run(1, 3, 2)
    tolerance = {"fp32": 0.0, "bf16": 2**-8, "int8": 0.5 / 127}[dtype]
    for wrote, read, run in ((key, read_key, run_key), (value, read_value, run_value)):
        limit = tolerance * wrote.abs().amax(dim=-1, keepdim=True)
        assert ((read.transpose(0, 1)[:20] - wrote).abs() <= limit + 1e-7).all()
        assert torch.equal(read, run)
    assert not cache.keys[0].any()  # the other layer is untouched


def test_copy_blocks_copies_scales_too() -> None:
    cache = _cache("int8")
    cache.write(0, torch.ones(16, 2, 8), 2 * torch.ones(16, 2, 8), torch.arange(16))
    cache.copy_blocks(torch.tensor([0]), torch.tensor([5]))
    key, value = cache.read_blocks(0, torch.tensor([5]))
    assert torch.equal(key, torch.ones(2, 16, 8))
    assert torch.equal(value, 2 * torch.ones(2, 16, 8))


def test_int8_keeps_zeros_and_extremes() -> None:
    values = torch.tensor([[0.0, 0.0], [1e-30, -1e-30], [3.0, -1.5]])
    quantized, scales = quantize_int8(values)
    assert quantized.tolist() == [[0, 0], [127, -127], [127, -64]]
    assert dequantize_int8(quantized, scales, torch.float32)[2, 0] == pytest.approx(3.0)


def test_unusable_cache_types_and_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be kept"):
        _cache("int4")
    with pytest.raises(InputError, match="at least one block"):
        PagedKVCache(SPEC, blocks=0, dtype="bf16", compute_dtype=torch.float32)
