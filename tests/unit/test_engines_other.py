"""SGLang, llama.cpp, ollama and the own runtime: sizes as their code and start-up lines give them."""

from __future__ import annotations

from typing import Any

import pytest

from rooflens.analysis.engines import rules_for
from rooflens.analysis.engines.layer_caches import LayerCache, fixed_bytes, layer_caches, logical_bytes
from rooflens.analysis.engines.llamacpp import llamacpp_build, ollama_build, padded
from rooflens.analysis.engines.native import token_bytes
from rooflens.analysis.engines.sglang_pool import default_fraction, prefill_graphs, running_limit, split_pool
from rooflens.analysis.ledger import Ledger, LedgerInput
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import InputError, UnsupportedError
from rooflens.models.formats.apply import apply_format
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.units import GIB, MIB

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def asked(
    spec: ModelSpec | str, *, tp: int = 1, memory: float | None = 80 * GIB, **fields: Any
) -> LedgerInput:
    spec = read_model(spec) if isinstance(spec, str) else spec
    layout = Layout(tp)
    reported = None if memory is None else int(memory)
    values = {"batch": 1, "prompt": 512, "context": 640, "kv_dtype": spec.dtype, **fields}
    return LedgerInput(
        spec=spec,
        stages=rank_specs(spec, layout),
        layout=layout,
        capacity_bytes=reported,
        reported_bytes=reported,
        **values,
    )


def run(engine: str, *args: Any, **fields: Any) -> Ledger:
    return rules_for(engine)(asked(*args, **fields))


def test_sglang_default_fraction() -> None:
    """What is left, in MiB: 512 + 1.5 x chunk + 2 x graph batch + 1024 x ranks / 8 + 8 x prefill graphs."""
    assert prefill_graphs(8192) == 8 + 14 + 8 + 8 + 12 + 8
    reserved = 512 + 1.5 * 8192 + 2 * 256 + 1024 / 8 + 8 * 58
    assert default_fraction(asked(LLAMA), total_bytes=79 * GIB) == round(1 - reserved / (79 * 1024), 3)
    # 8 to 32 by 4, to 256 by 16, to 512 by 32, to 1024 by 64, to 2048 by 256
    assert prefill_graphs(2048) == 8 + 14 + 8 + 8 + 4
    reserved = 512 + 1.5 * 2048 + 2 * 24 + 1024 / 8 + 8 * prefill_graphs(2048)
    assert default_fraction(asked(LLAMA), total_bytes=24 * GIB) == round(1 - reserved / (24 * 1024), 3)


def test_sglang_pools() -> None:
    """Windows get 0.8 tokens for each full one; state gets 0.9 of the bytes the tokens get."""
    full, window = LayerCache("full", 1000), LayerCache("sliding", 500, 128)
    pools = split_pool((full, window), 1_400_000)
    assert (pools.tokens, pools.window_tokens, pools.state_slots) == (1000, 800, None)
    assert 1000 * 1000 + 800 * 500 == 1_400_000
    mixed = split_pool((full, LayerCache("state", state_bytes=9000)), 1_900_000)
    assert mixed.state_slots == 1_900_000 * 9 // 19 // 9000 == 100
    assert mixed.tokens == (1_900_000 - 900_000) // 1000
    assert running_limit(1_000_000, context=131_072, slots=100, asked=None) == 100 // 5
    assert running_limit(1_000_000, context=8192, slots=None, asked=None) == 4096


def test_sglang_static_part_holds_weights_and_cache_only() -> None:
    found = run("sglang", LLAMA, memory_utilization=0.8)
    assert found.capacity_bytes == int(79.5 * GIB * 0.8)
    assert found.kv_capacity_bytes == found.capacity_bytes - 8_030_261_248 * 2
    assert found.kv_capacity_tokens == found.kv_capacity_bytes // 131_072
    outside = {row.name: row.bytes for row in found.outside}
    assert outside["activations"] == int(79.5 * GIB) - found.capacity_bytes
    assert found.fits


def test_sglang_says_when_it_does_not_know_a_layout() -> None:
    found = run("sglang", "deepseek-ai/DeepSeek-V4-Pro", tp=8, memory=141 * GIB)
    assert found.cache is not None
    assert "not covered" in found.cache.layout
    assert found.kv_capacity_tokens is None
    assert run("sglang", LLAMA, memory=None).capacity_bytes is None


def test_llamacpp_rows_as_it_prints_them() -> None:
    """Llama-3 8B in f16: 512 x (128256 + 4096) x 4 B = 258.5 MiB of compute buffer, the table on the host."""
    found = run("llama.cpp", apply_format(read_model(LLAMA), "F16"), kv_dtype="fp16", max_model_len=8192)
    assert found.row("activations") / MIB == pytest.approx(258.5)
    assert found.row("kv_cache") == 1024 * MIB  # 8192 cells x 128 KiB
    host = next(row for row in found.outside if row.name == "host")
    assert host.bytes == 128_256 * 4096 * 2
    small = run("llama.cpp", "meta-llama/Llama-2-7b-hf", kv_dtype="fp16", max_model_len=4096)
    assert small.row("activations") / MIB == pytest.approx(70.5)  # 512 x (32000 + 4096) x 4 B


def test_llamacpp_allocates_every_slot() -> None:
    found = run("llama.cpp", LLAMA, kv_dtype="q8_0", max_model_len=5000, max_sequences=4)
    assert padded(5000) == 5120
    # 34 bytes for 32 elements
    assert found.row("kv_cache") == 4 * 5120 * 32 * 2 * 8 * 128 * 34 // 32
    assert found.reasons == ()
    over = run("llama.cpp", LLAMA, memory=16 * GIB, max_model_len=131_072)
    assert "failed to allocate the KV cache" in over.reasons[0]
    assert over.longest_context is not None
    assert over.longest_context < 131_072
    assert over.fits is False
    assert "failed to allocate weights" in run("llama.cpp", LLAMA, memory=8 * GIB).reasons[0]


def test_llamacpp_keeps_state_in_fp32() -> None:
    spec = read_model("Qwen/Qwen3.5-35B-A3B")
    found = run("llama.cpp", spec, kv_dtype="fp16").cache
    assert found is not None
    state = next(group for group in found.groups if group.kind == "state")
    assert state.page_bytes == (32 * 128 * 128 + 8192 * 3) * 4


def test_windows_before_their_cache_was_built() -> None:
    model = "google/gemma-3-27b-it"
    old, new = (
        run("llama.cpp", model, context=32_768, engine_version=build).cache for build in ("b5000", "b5500")
    )
    assert old is not None
    assert new is not None
    assert old.allocated_bytes == 62 * 8192 * 32_768
    assert new.allocated_bytes == (10 * 32_768 + 52 * 1536) * 8192


def test_ollama_versions() -> None:
    """deepseek-r1 671b in 0.5.7 at 2048: 4,997,120 B x 2048 = 9.53 GiB, as its log says."""
    found = run(
        "ollama",
        "deepseek-ai/DeepSeek-R1",
        memory=None,
        kv_dtype="fp16",
        context=2048,
        engine_version="0.5.7",
    )
    assert found.cache is not None
    assert found.cache.allocated_bytes / GIB == pytest.approx(9.53, abs=0.005)
    assert not ollama_build("0.8.0").windows
    assert ollama_build(None).latent
    for build, text in ((llamacpp_build, "main"), (ollama_build, "latest")):
        with pytest.raises(InputError, match="engine_version is not"):
            build(text)


def test_own_runtime_keeps_every_token_of_every_layer() -> None:
    spec = read_model("google/gemma-3-1b-it")
    found = run("rooflens", spec, context=4096, memory=8 * GIB)
    assert found.cache is not None
    assert token_bytes(spec, kv_dtype="bf16") == 26 * 1 * 256 * 2 * 2
    assert found.cache.allocated_bytes == 4096 * 26 * 1024
    assert found.cache.allocated_bytes > found.cache.logical_bytes
    # int8: one byte an element, and a scale of four bytes per token and head for keys and for values
    assert token_bytes(spec, kv_dtype="int8") == 26 * 2 * (256 + 4)
    with pytest.raises(UnsupportedError, match="does not run mla layers"):
        run("rooflens", "deepseek-ai/DeepSeek-V2-Lite")
    with pytest.raises(UnsupportedError, match="uses one device"):
        run("rooflens", LLAMA, tp=2)
    assert "no room for one block" in run("rooflens", LLAMA, memory=8 * GIB).reasons[0]


def test_the_runtime_counts_the_same_bytes() -> None:
    kv_cache = pytest.importorskip("rooflens.runtime.kv_cache")
    spec = read_model("Qwen/Qwen2.5-0.5B")
    for dtype in ("bf16", "fp32", "int8"):
        assert kv_cache.kv_bytes_per_token(spec, dtype) == token_bytes(spec, kv_dtype=dtype)


def test_layer_caches() -> None:
    spec = read_model("zai-org/GLM-5.1")
    # latent 512 + 64 in bf16, and the indexer's 128 fp8 key features with one fp32 scale
    assert next(iter(layer_caches(spec, kv_dtype="bf16"))) == LayerCache("mla", 576 * 2 + 128 + 4)
    with pytest.raises(UnsupportedError, match="compressed attention"):
        list(layer_caches(read_model("deepseek-ai/DeepSeek-V4-Pro"), kv_dtype="bf16"))


@pytest.mark.parametrize(
    "model", ["google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V4-Pro", "Qwen/Qwen3.5-4B", LLAMA]
)
def test_fixed_and_growing_parts_add_up_at_long_context(model: str) -> None:
    from rooflens.analysis.engines.layer_caches import growth_bytes_per_token

    spec = read_model(model)
    far = 2**20
    whole = logical_bytes(spec, context=far, kv_dtype="bf16")
    assert whole == fixed_bytes(spec, kv_dtype="bf16") + growth_bytes_per_token(spec, kv_dtype="bf16") * far


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "ollama", "rooflens"])
def test_rules_never_report_negative_bytes(engine: str) -> None:
    for memory in (None, GIB, 10 * GIB, 200 * GIB):
        found = run(engine, LLAMA, memory=memory)
        assert all(row.bytes >= 0 for row in (*found.rows, *found.outside))
        assert found.kv_capacity_bytes is None or found.kv_capacity_bytes >= 0
        assert found.to_dict()["fits"] is found.fits
