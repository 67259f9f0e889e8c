"""Public reports of wrong or confusing memory figures: the number each of them names, with its arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rooflens.analysis.engines import rules_for
from rooflens.analysis.engines.sglang_pool import minimum_fraction, running_limit
from rooflens.analysis.ledger import Ledger, LedgerInput
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import InputError
from rooflens.models.bundled import find_bundled
from rooflens.models.formats.apply import apply_format
from rooflens.models.read import read_model
from rooflens.models.spec import Attention, Layer, ModelSpec
from rooflens.units import GIB, MIB

H100 = int(79.18 * GIB)
# The layers of Gemma 4 31B: 10 without a window (4 KV heads of 512), 50 with one of 1024 (16 heads of 256).
GEMMA_4_31B = ((10, 4, 512, None), (50, 16, 256, 1024))


def ledger(
    engine: str, spec: ModelSpec | str, *, tp: int = 1, memory: float | None = None, **fields: Any
) -> Ledger:
    spec = read_model(spec) if isinstance(spec, str) else spec
    layout = Layout(tp)
    values = {"batch": 1, "prompt": 512, "context": 640, "kv_dtype": spec.dtype, **fields}
    reported = None if memory is None else int(memory)
    return rules_for(engine)(
        LedgerInput(
            spec=spec,
            stages=rank_specs(spec, layout),
            layout=layout,
            capacity_bytes=reported,
            reported_bytes=reported,
            **values,
        )
    )


def attention_only(layers: tuple[tuple[int, int, int, int | None], ...]) -> ModelSpec:
    stack: list[Layer] = []
    for count, kv_heads, head_dim, window in layers:
        mixer = Attention(heads=kv_heads, kv_heads=kv_heads, head_dim=head_dim, linears=(), window=window)
        stack += [Layer((mixer,), None, ())] * count
    return ModelSpec("attention only", "gemma4", 1, 1024, tuple(stack), None, None, max_context=262_144)


def varied(model: str, **changes: Any) -> ModelSpec:
    bundled = find_bundled(model)
    assert bundled is not None
    return read_model({**json.loads((bundled.directory / "config.json").read_text()), **changes})


@pytest.mark.parametrize(("pool_gib", "tokens"), [(64.68, 626_949), (103.92, 1_007_303)])
def test_b12_gemma_4_tokens_on_h200(pool_gib: float, tokens: int) -> None:
    """81,920 + 819,200 x 9,232 / 262,144 = 110,770 B a token at 262,144 tokens, whatever the weights are."""
    found = ledger(
        "vllm",
        attention_only(GEMMA_4_31B),
        kv_pool_bytes=int(pool_gib * GIB),
        max_model_len=262_144,
        max_batched_tokens=8192,
        engine_version="0.24.0",
    )
    assert found.kv_capacity_tokens == pytest.approx(tokens, rel=1e-3)
    assert found.cache is not None
    assert found.cache.growth_bytes_per_token == 10 * 4 * 512 * 2 * 2 == 81_920
    assert found.cache.fixed_bytes == 50 * 16 * 256 * 2 * 2 * 1024 == 819_200 * 1024
    # 577 blocks of 16 tokens stand for the window and the batch: 9,232 tokens
    assert found.cache.minimum_bytes / 262_144 == pytest.approx(81_920 + 819_200 * 9232 / 262_144, rel=1e-4)


def test_b13_fixed_part_growth_and_printed_figure_are_three_numbers() -> None:
    """Qwen3.5-35B: 30 states of 2,097,152 + 49,152 B and 10 x 2 heads x 256 x 2 x 2 B a token."""
    short, long = (
        ledger(
            "vllm",
            "Qwen/Qwen3.5-35B-A3B",
            kv_pool_bytes=40 * GIB,
            max_model_len=length,
            engine_version="0.24.0",
        )
        for length in (8192, 262_144)
    )
    for found in (short, long):
        assert found.cache is not None
        assert found.cache.fixed_bytes == 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
        assert found.cache.growth_bytes_per_token == 20_480
    printed = [40 * GIB / (found.kv_capacity_tokens or 1) for found in (short, long)]
    assert printed[0] > 1.2 * printed[1] > 20_480
    assert any("no capacity" in note for note in short.notes)


def test_b15_the_same_pool_prints_fewer_tokens_at_a_shorter_length() -> None:
    """Blocks of 1056 tokens: at 8192 a request takes 8 + 3, at 262,144 it takes 249 + 3."""
    tokens = {}
    for length in (8192, 262_144):
        found = ledger(
            "vllm",
            "Qwen/Qwen3.5-35B-A3B",
            kv_pool_bytes=40 * GIB,
            max_model_len=length,
            context=length,
            engine_version="0.24.0",
        )
        assert found.cache is not None
        blocks = 40 * GIB // (10 * 1056 * 2048)
        each = -(-length // 1056) + 3
        tokens[length] = found.kv_capacity_tokens
        assert found.kv_capacity_tokens == int(blocks / each * length)
        assert found.cache.waste_bytes == each * 10 * 1056 * 2048 - (30 * 2_146_304 + 20_480 * length)
    assert tokens[8192] < 0.8 * tokens[262_144]


def test_b11_latent_attention_by_engine_and_build() -> None:
    """61 x (128 x 192 + 128 x 128) x 2 = 4,997,120 B a token per head; 61 x 576 x 2 = 70,272 B latent."""
    model = "deepseek-ai/DeepSeek-V3"
    old, new = (
        ledger("llama.cpp", model, kv_dtype="fp16", context=65_536, engine_version=build).cache
        for build in ("b4700", "b5200")
    )
    assert old is not None
    assert new is not None
    assert old.allocated_bytes == 4_997_120 * 65_536
    assert old.allocated_bytes / GIB == pytest.approx(305.0, abs=0.05)
    assert new.allocated_bytes == 70_272 * 65_536
    assert new.allocated_bytes / GIB == pytest.approx(4.29, abs=0.005)
    assert "every head" in old.layout
    assert "one latent" in new.layout


def test_b17_only_the_full_attention_layers_grow() -> None:
    """Qwen3.6-27B: 16 of 64 layers, 4 heads x 256 x 2 x 2 B: 65,536 B x 262,144 = 16,384 MiB."""
    found = ledger("llama.cpp", "nvidia/Qwen3.6-27B-NVFP4", kv_dtype="fp16", context=262_144).cache
    assert found is not None
    assert found.growth_bytes_per_token == 65_536
    paged = sum(
        group.layers * group.blocks * group.page_bytes for group in found.groups if group.kind == "full"
    )
    assert paged == 16_384 * MIB


def test_b19_windows_are_used_by_some_engines_only() -> None:
    model = "mistralai/Mistral-7B-v0.1"
    ignored = ledger("llama.cpp", model, context=32_768)
    honoured = ledger("vllm", model, context=32_768, max_batched_tokens=2048, engine_version="0.24.0")
    assert ignored.cache is not None
    assert honoured.cache is not None
    assert ignored.cache.allocated_bytes == 32_768 * 131_072
    # ceil((4096 - 1 + 2048) / 16) + 1 blocks
    assert honoured.cache.allocated_bytes == 385 * 16 * 131_072
    assert any("window of 4096 tokens is not used" in note for note in ignored.notes)
    windowed = ledger("llama.cpp", "google/gemma-3-27b-it", context=131_072).cache
    assert windowed is not None
    share = dict(windowed.alternatives)
    assert share["swa_full off"] / share["swa_full on"] == pytest.approx(1 / 6, abs=0.02)


def test_b21_both_totals_of_the_full_window_switch() -> None:
    """Gemma 4 31B at 131,072: 10.0 GiB grow; the windows are 1.2 GiB, or 100 GiB when kept in full."""
    off, on = (
        ledger("llama.cpp", attention_only(GEMMA_4_31B), context=131_072, swa_full=full).cache
        for full in (False, True)
    )
    assert off is not None
    assert on is not None
    # 1024 + 512 cells, a multiple of 256 already
    assert off.allocated_bytes == 131_072 * 81_920 + 1536 * 819_200
    assert on.allocated_bytes == 131_072 * (81_920 + 819_200)
    assert (
        dict(off.alternatives)
        == dict(on.alternatives)
        == {
            "swa_full off": off.allocated_bytes,
            "swa_full on": on.allocated_bytes,
        }
    )


def test_b39_weights_and_activations_leave_too_little() -> None:
    """Llama-3.3-70B in fp8 on one H100 at .95: 67.7 + 4.8 GiB of 75.2; 16,000 tokens need 4.88 more."""
    spec = apply_format(read_model("meta-llama/Llama-3.1-70B-Instruct"), "fp8-channel")
    found = ledger(
        "vllm", spec, memory=H100, memory_utilization=0.95, max_model_len=16_000, context=16_000,
        engine_version="0.11.0",
    )  # fmt: skip
    assert found.row("weights") / GIB == pytest.approx(67.72, rel=1e-3)
    assert found.row("activations") / GIB == pytest.approx(4.84, rel=5e-3)
    assert found.fits is False
    assert found.deficit_bytes == found.total_bytes - int(H100 * 0.95) > 2 * GIB
    assert "needs 4.88 GiB of KV cache, larger than the available 2.5" in found.reasons[0]


def test_b41_cache_and_weight_types_are_taken() -> None:
    base = {"memory": H100, "memory_utilization": 0.95, "max_model_len": 8192, "engine_version": "0.19.0"}
    model = read_model("meta-llama/Llama-3.1-8B-Instruct")
    plain = ledger("vllm", model, **base)
    half_cache = ledger("vllm", model, kv_dtype="fp8", **base)
    assert plain.kv_capacity_tokens is not None
    assert half_cache.kv_capacity_tokens == pytest.approx(2 * plain.kv_capacity_tokens, rel=1e-4)
    wide = ledger("vllm", apply_format(model, "fp32"), **base)
    assert wide.row("weights") == 2 * plain.row("weights")
    small = ledger("vllm", apply_format(model, "fp8"), **base)
    assert small.row("weights") / GIB == pytest.approx(8.49, abs=0.01)


def test_b43_activations_follow_the_batched_tokens() -> None:
    """On a 3090 20,000 works, 29,000 fails, 35,000 works: above 32k the prompt is cut into chunks."""
    found = {
        length: ledger(
            "vllm",
            "meta-llama/Llama-3.1-8B-Instruct",
            memory=23.58 * GIB,
            memory_utilization=0.9,
            max_model_len=length,
            engine_version="0.6.4",
        )
        for length in (20_000, 29_000, 35_000)
    }
    # (3 x 14336 + 3 x 4096) x 2 B a token: gate, up and their product; input, residual and output
    peaks = {n: (each.row("weights") + each.row("activations")) / GIB for n, each in found.items()}
    assert peaks[20_000] == pytest.approx(17.06, abs=0.05)
    assert peaks[29_000] == pytest.approx(17.98, abs=0.05)
    assert peaks[35_000] == pytest.approx(15.05, abs=0.05)
    assert [bool(each.reasons) for each in found.values()] == [False, True, False]


def test_b45_which_knob_moved() -> None:
    """221,000 x 49,152 B = 10.12 GiB; raising the batched tokens with the length shrinks the pool itself."""
    base = {"memory": 44.5 * GIB, "kv_dtype": "fp8", "engine_version": "0.10.2"}
    spec = apply_format(read_model("Qwen/Qwen3-30B-A3B"), "fp8")
    lengths = (100_000, 221_000)
    found = [ledger("vllm", spec, max_model_len=n, max_batched_tokens=n, **base) for n in lengths]
    assert found[1].cache is not None
    assert found[1].cache.growth_bytes_per_token == 49_152
    assert found[1].cache.minimum_bytes / GIB == pytest.approx(10.12, abs=0.01)
    assert (found[0].kv_capacity_bytes or 0) > (found[1].kv_capacity_bytes or 0)
    rows = [next(row for row in each.rows if row.name == "activations") for each in found]
    assert rows[0].bytes < rows[1].bytes
    assert "221000 tokens" in rows[1].source
    same_batch = [ledger("vllm", spec, max_model_len=n, max_batched_tokens=8192, **base) for n in lengths]
    assert same_batch[0].kv_capacity_bytes == same_batch[1].kv_capacity_bytes


def test_b47_the_smallest_static_fraction() -> None:
    """125.65 GB of weights on 140.4: .88 is 123.5, too little; 137.90 were free, so .9113 is needed."""
    assert 0.88 * 140.4 < 125.65
    smallest = minimum_fraction(weights_bytes=125.65, cache_bytes=0, free_bytes=125.65 + 12.25)
    assert smallest == pytest.approx(0.9113, abs=2e-4)
    tight = ledger("sglang", "meta-llama/Llama-3.1-8B-Instruct", memory=24 * GIB, memory_utilization=0.6)
    assert not tight.fits
    # 14.957 of 23.5 GiB free
    assert "mem_fraction_static=0.6 of 23.50 GiB free: the smallest fraction is 0.6365" in tight.reasons[0]


def test_b49_the_longest_length_that_fits() -> None:
    """gpt-oss-120b: 18 full layers x 2048 B x 131,072 = 4.5 GiB, and the windows; 1.71 GiB are there."""
    spec = varied("openai/gpt-oss-20b", num_hidden_layers=36, num_local_experts=128, layer_types=None)
    assert [layer.mixers[0].window for layer in spec.layers].count(None) == 18
    found = ledger(
        "vllm",
        spec,
        kv_pool_bytes=int(1.71 * GIB),
        max_model_len=131_072,
        max_batched_tokens=1024,
        engine_version="0.11.0",
    )
    assert found.cache is not None
    # 8192 blocks of full layers + ceil((127 + 1024) / 16) + 1 of the others, 18 x 16 x 2048 B each
    assert found.cache.minimum_bytes == (8192 + 73) * 18 * 16 * 2048
    assert found.cache.minimum_bytes > 4.5 * GIB
    blocks = int(1.71 * GIB) // (18 * 16 * 2048)
    assert found.longest_context == (blocks - 73) * 16
    assert str(found.longest_context) in found.reasons[0]


def test_b51_all_sizes_are_checked_against_tp() -> None:
    with pytest.raises(InputError, match="151936 vocabulary entries and 8 KV heads") as error:
        rank_specs(read_model("Qwen/Qwen3-14B"), Layout(5))
    assert "not divisible by tp=5" in error.value.what
    # 50257 is padded to 50304 = 64 x 786, as engines do
    assert rank_specs(read_model("openai-community/gpt2"), Layout(2))


def test_b53_memory_outside_torch_has_a_row() -> None:
    """20,865 blocks x 16 x 81,920 B = 25.5 GiB; the 10,750 blocks more of before were NCCL's."""
    found = ledger(
        "vllm", "meta-llama/Llama-2-70b-hf", tp=4, memory=80 * GIB, kv_pool_bytes=20_865 * 16 * 81_920
    )
    assert found.cache is not None
    assert found.cache.bytes_per_block == 16 * 81_920
    assert found.cache.blocks == 20_865
    assert 20_865 * 16 * 81_920 / GIB == pytest.approx(25.5, abs=0.05)
    row = next(row for row in found.rows if row.name == "non_torch")
    assert row.low_bytes is not None
    assert row.high_bytes is not None
    assert row.low_bytes < row.bytes < row.high_bytes
    assert row.source


def test_b55_images_of_all_sequences_are_warned_of() -> None:
    """11B-Vision: 6404 encoder tokens for each of max_num_seqs images took 36.6 GiB."""
    text = Attention(heads=32, kv_heads=8, head_dim=128, linears=())
    layers = (Layer((text,), None, ()), Layer((replace(text, cross_tokens=6404),), None, ()))
    spec = ModelSpec("cross", "mllama", 4096, 128_256, layers, None, None, max_context=8192)
    found = ledger("vllm", spec, engine_version="0.6.6", max_sequences=16)
    assert any("image tokens x max_num_seqs (16)" in note for note in found.notes)


def test_b57_two_limits() -> None:
    """2,086,558 tokens are shared: 8.15 requests of 256,000; 33 requests is a limit of another kind."""
    assert 2_086_558 / 256_000 == pytest.approx(8.15, abs=0.005)
    assert running_limit(2_086_558, context=256_000, slots=None, asked=33) == 33
    spec = read_model("meta-llama/Llama-3.1-8B-Instruct")
    found = ledger(
        "sglang",
        spec,
        memory=300 * GIB,
        kv_pool_bytes=2_086_558 * 131_072,
        max_model_len=256_000,
        max_sequences=33,
    )
    assert found.kv_capacity_tokens == 2_086_558
    assert found.max_concurrency == pytest.approx(8.15, abs=0.005)
    assert found.max_sequences == 33
    words = "2086558 is shared by all requests, 8.15 of 256000 tokens each; max_running_requests 33"
    assert any(words in note for note in found.notes)
