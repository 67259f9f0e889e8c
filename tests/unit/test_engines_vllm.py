"""vLLM's rules: groups, blocks, pages, versions. The arithmetic stands beside each literal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.analysis.engines import ENGINES, rules_for
from rooflens.analysis.engines.block_groups import plan_blocks
from rooflens.analysis.engines.compressed_groups import plan_compressed
from rooflens.analysis.engines.layer_caches import LayerCache, fixed_bytes
from rooflens.analysis.engines.vllm_profile import profile_peak, rotary_table_bytes
from rooflens.analysis.engines.vllm_versions import capture_sizes, token_budget, vllm_rules
from rooflens.analysis.ledger import Ledger, LedgerInput, bare_ledger
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import InputError, UnsupportedError
from rooflens.models.bundled import find_bundled
from rooflens.models.free_form import dense
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.units import GIB, MIB

H100 = int(79.19 * GIB)


def vllm(model: str, *, tp: int = 1, pp: int = 1, memory: int | None = H100, **fields: object) -> Ledger:
    spec, layout = read_model(model), Layout(tp, pp)
    values: dict[str, object] = {"batch": 1, "prompt": 512, "context": 640, "kv_dtype": spec.dtype, **fields}
    return rules_for("vllm")(
        LedgerInput(
            spec=spec,
            stages=rank_specs(spec, layout),
            layout=layout,
            capacity_bytes=memory,
            reported_bytes=memory,
            **values,  # type: ignore[arg-type]
        )
    )


def test_names_of_engines() -> None:
    assert ENGINES == ("none", "rooflens", "vllm", "sglang", "llama.cpp", "ollama")
    assert rules_for("none") is bare_ledger
    with pytest.raises(UnsupportedError, match="engine has no memory rules") as error:
        rules_for("vlm")
    assert error.value.next == "did you mean vllm?"


def test_a_plain_model_is_one_group_of_blocks() -> None:
    ledger = vllm("meta-llama/Llama-3.1-8B-Instruct", kv_pool_bytes=58 * GIB, max_model_len=8192)
    # 16 tokens x 32 layers x 8 heads x 128 x 2 x 2 B = 2 MiB a block
    assert ledger.cache is not None
    assert ledger.cache.bytes_per_block == 2 * MIB
    assert ledger.cache.blocks == 58 * 512
    assert ledger.kv_capacity_tokens == 58 * 512 * 16
    assert ledger.max_concurrency == pytest.approx(58.0)  # 8192 tokens are 1 GiB


def test_rows_of_llama_on_h100() -> None:
    ledger = vllm("meta-llama/Llama-3.1-8B-Instruct", memory_utilization=0.95, max_model_len=8192)
    # 8,030,261,248 x 2 B + cosines and sines of 131072 x 128 x 2 B
    assert ledger.row("weights") == 8_030_261_248 * 2 + 131_072 * 128 * 2
    # 1024 rows x 128256 logits x 14 B + 132 rows x 128256 x 4 B + (8192 + 2048) x 4096 x 2 B + 32 MiB
    sampler = 1024 * 128_256 * 14 + 132 * 128_256 * 4 + 10_240 * 4096 * 2 + 32 * MIB
    assert ledger.row("activations") == sampler
    assert sampler / GIB == pytest.approx(1.89, abs=0.01)  # as the log prints it
    assert ledger.capacity_bytes == int(H100 * 0.95)
    graphs = next(row for row in ledger.outside if row.name == "graphs")
    assert graphs.low_bytes is not None
    assert graphs.high_bytes is not None
    assert graphs.low_bytes < 0.91 * GIB < graphs.high_bytes
    assert "0.19.0" in graphs.source


@pytest.mark.parametrize(
    ("version", "model", "logged"),
    [
        ("0.11.0", "Qwen/Qwen3-32B", 5.64),  # 1024 x 151936 x 38 B + 10240 x 5120 x 2 B + 32 MiB
        ("0.11.0", "Qwen/Qwen3-0.6B", 5.56),
        ("0.11.0", "openai/gpt-oss-20b", 7.38),
        ("0.19.0", "google/gemma-2-9b", 3.65),
        ("0.19.0", "Qwen/Qwen1.5-MoE-A2.7B", 2.47),  # the fused experts' buffers stay beside the sampler
    ],
)
def test_profiled_peaks_of_the_logs(version: str, model: str, logged: float) -> None:
    spec = read_model(model)
    peak = profile_peak(
        spec,
        rules=vllm_rules(version),
        tokens=8192,
        sequences=1024,
        vocabulary=spec.vocab_size,
        first=True,
        last=True,
    )
    # The bundled Gemma is stored in fp32, the log is of bf16: two bytes per element less of hidden states.
    assert peak.sampler_bytes / GIB == pytest.approx(logged, rel=0.02 if spec.dtype != "fp32" else 0.15)


def test_only_the_last_stage_samples_and_later_stages_keep_what_they_receive() -> None:
    spec = read_model("meta-llama/Llama-3.1-8B-Instruct")
    rules = vllm_rules("0.19.0")
    fixed = {"rules": rules, "tokens": 8192, "sequences": 1024, "vocabulary": 128_256}
    first = profile_peak(spec, first=True, last=False, **fixed)  # type: ignore[arg-type]
    last = profile_peak(spec, first=False, last=True, **fixed)  # type: ignore[arg-type]
    assert first.sampler_bytes == 0
    alone = profile_peak(spec, first=True, last=True, **fixed)  # type: ignore[arg-type]
    assert last.sampler_bytes - alone.sampler_bytes == 2 * 8192 * 4096 * 2


def test_linear_scaling_tabulates_every_scaled_position() -> None:
    spec = read_model("google/gemma-3-4b-it")
    positions = spec.max_context
    assert positions is not None
    # full layers: 8 x positions, windowed layers: positions; 256 features, 2 B
    assert rotary_table_bytes(spec) == 9 * positions * 256 * 2


def test_hybrid_groups_of_gemma_3_are_padded() -> None:
    """27B: 10 full and 52 windowed layers in groups of 10, so 62 layers cost as 70."""
    ledger = vllm(
        "google/gemma-3-27b-it", kv_pool_bytes=int(19.53 * GIB), max_model_len=8192, engine_version="0.19.0"
    )
    assert ledger.cache is not None
    groups = ledger.cache.groups
    assert sorted(group.layers for group in groups) == [8, 8, 9, 9, 9, 9, 10]
    assert sum(group.layers + group.padding for group in groups) == 70
    # 10 layers x 16 tokens x (16 heads x 128 x 2 x 2 B)
    assert ledger.cache.bytes_per_block == 10 * 16 * 8192
    # 512 blocks of the full group + 6 x (ceil(8192 / 16) + 1) of the others
    assert ledger.cache.minimum_bytes == (512 + 6 * 513) * ledger.cache.bytes_per_block
    assert ledger.kv_capacity_tokens == 36_560  # 15998 blocks // 7 groups x 16, as the log prints
    assert ledger.max_concurrency == pytest.approx(4.46, abs=0.01)


def test_a_window_needs_its_tokens_and_the_batch_in_flight() -> None:
    kwargs = {"kv_pool_bytes": 64 * GIB, "max_model_len": 131_072, "max_batched_tokens": 8192}
    old = vllm("google/gemma-3-27b-it", engine_version="0.24.0", **kwargs)
    new = vllm("google/gemma-3-27b-it", engine_version="0.26.0", **kwargs)
    assert old.cache is not None
    assert new.cache is not None
    block = old.cache.bytes_per_block
    # (1023 + 8192) / 16 -> 576 + 1 blocks; two batches in flight since 0.26: (1023 + 16384) / 16 -> 1088 + 1
    assert old.cache.minimum_bytes == (8192 + 6 * 577) * block
    assert new.cache.minimum_bytes == (8192 + 6 * 1089) * block


def test_the_printed_size_by_version() -> None:
    kwargs = {"kv_pool_bytes": 64 * GIB, "max_model_len": 131_072, "max_batched_tokens": 8192}
    blocks = 64 * GIB // (10 * 16 * 8192)
    by_groups = vllm("google/gemma-3-27b-it", engine_version="0.19.0", **kwargs)
    by_concurrency = vllm("google/gemma-3-27b-it", engine_version="0.20.2", **kwargs)
    assert by_groups.kv_capacity_tokens == blocks // 7 * 16
    assert by_concurrency.kv_capacity_tokens == int(blocks / (8192 + 6 * 577) * 131_072)
    assert by_groups.max_concurrency == by_concurrency.max_concurrency


def test_attention_blocks_grow_to_the_state() -> None:
    """Qwen3.5-35B: a state of 32 x 128 x 128 x 4 B + 8192 x 3 x 2 B; 2 x 2 x 256 x 2 B a token of a layer."""
    ledger = vllm("Qwen/Qwen3.5-35B-A3B", memory=int(200 * GIB), max_model_len=262_144)
    state = 32 * 128 * 128 * 4 + 8192 * 3 * 2
    assert ledger.cache is not None
    full = next(group for group in ledger.cache.groups if group.kind == "full")
    assert full.block_tokens == 16 * -(-state // (16 * 2048)) == 1056
    assert {group.page_bytes for group in ledger.cache.groups} == {1056 * 2048}
    assert [group.layers for group in ledger.cache.groups] == [10, 10, 10, 10]
    # three groups keep one state each; 640 tokens are one block of the fourth
    assert [group.blocks for group in ledger.cache.groups].count(1) == 4


def test_cached_state_prefixes_take_a_second_block() -> None:
    """Two logs of Qwen3.6-35B, fp8 cache: 10 layers x 2096 tokens x 1024 B a block, 63 + 3 x 2 blocks."""
    for pool, tokens in ((6.01, 569_878), (5.98, 567_978)):
        ledger = vllm(
            "Qwen/Qwen3.5-35B-A3B",
            kv_dtype="fp8",
            kv_pool_bytes=int(pool * GIB),
            max_model_len=131_072,
            prefix_caching=True,
            engine_version="0.24.0",
        )
        assert ledger.cache is not None
        assert ledger.cache.bytes_per_block == 10 * 2096 * 1024
        assert ledger.kv_capacity_tokens == tokens


def test_state_prefixes_are_cached_by_default_since_0_26() -> None:
    blocks = [
        vllm("Qwen/Qwen3.5-35B-A3B", engine_version=version).cache.groups[0].blocks  # type: ignore[union-attr]
        for version in ("0.25.0", "0.26.0")
    ]
    assert blocks == [1, 2]


def test_latent_attention_is_not_divided_and_was_once_kept_per_head() -> None:
    one, four = (vllm("deepseek-ai/DeepSeek-V2-Lite", tp=tp) for tp in (1, 4))
    assert one.cache is not None
    assert four.cache is not None
    assert one.cache.bytes_per_block == four.cache.bytes_per_block == 16 * 27 * 576 * 2
    old = vllm("deepseek-ai/DeepSeek-V2-Lite", engine_version="0.5.4")
    assert old.cache is not None
    assert old.cache.bytes_per_block == 16 * 27 * 16 * (256 + 256) * 2
    assert "padded to 256" in old.cache.layout


def test_pipeline_stages_keep_the_blocks_of_the_tightest() -> None:
    """Llama-3.1-8B over two stages: the last one samples, so it has least room (log: 1,075,312 tokens)."""
    ledger = vllm(
        "meta-llama/Llama-3.1-8B-Instruct", pp=2, memory_utilization=0.95, max_model_len=8192,
        engine_version="0.19.0",
    )  # fmt: skip
    assert ledger.kv_capacity_tokens == pytest.approx(1_075_312, rel=1e-3)
    assert ledger.row("activations") / GIB == pytest.approx(2.01, abs=0.01)


def test_graphs_are_paid_from_the_pool_since_0_20() -> None:
    before, after = (
        vllm("meta-llama/Llama-3.1-8B-Instruct", memory_utilization=0.9, engine_version=version)
        for version in ("0.19.1", "0.20.0")
    )
    assert before.row("graphs") == 0
    assert after.row("graphs") > 0
    assert before.kv_capacity_bytes is not None
    assert after.kv_capacity_bytes is not None
    assert before.kv_capacity_bytes - after.kv_capacity_bytes == after.row("graphs")
    eager = vllm(
        "meta-llama/Llama-3.1-8B-Instruct", memory_utilization=0.9, engine_version="0.20.0", graphs=False
    )
    assert eager.kv_capacity_bytes == before.kv_capacity_bytes


def test_a_checkpoint_s_own_cache_scheme_is_followed_only_when_nothing_was_asked() -> None:
    model = "nvidia/Llama-3.1-70B-Instruct-FP8"
    assert read_model(model).kv_scheme == "fp8"
    cases = (
        ({"kv_dtype_auto": True}, "fp8"),
        ({}, "bf16"),
        ({"kv_dtype_auto": True, "engine_version": "0.11.0"}, "bf16"),
    )
    for fields, dtype in cases:
        ledger = vllm(model, tp=2, **fields)
        assert ledger.cache is not None
        assert ledger.cache.dtype == dtype, fields


def test_defaults_by_device_and_version() -> None:
    new, old = vllm_rules("0.28.0"), vllm_rules("0.19.0")
    ask = {"device": "", "max_model_len": 8192}
    assert token_budget(old, total_bytes=80 * GIB, **ask) == 8192
    assert token_budget(old, total_bytes=80 * GIB, device="A100 80GB", max_model_len=8192) == 2048
    assert token_budget(old, total_bytes=24 * GIB, **ask) == 2048
    assert token_budget(new, total_bytes=180 * GIB, **ask) == 16384
    assert token_budget(old, total_bytes=180 * GIB, **ask) == 8192
    assert capture_sizes(1024) == 51  # 1, 2, 4; 8 to 256 by 8; 272 to 512 by 16
    assert vllm_rules("0.20.0").utilization == 0.92
    assert vllm_rules(None).utilization == 0.9


@pytest.mark.parametrize("text", ["0.1.dev20073", "latest", ""])
def test_what_is_not_a_release_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a vLLM release"):
        vllm_rules(text or " ")


@pytest.mark.parametrize(
    ("text", "v1"),
    [("0.7.3", False), ("0.7.3 V1", True), ("0.8.5", True), ("0.8.5 V0", False), ("v0.24.0+x", True)],
)
def test_which_engine_a_version_runs(text: str, v1: bool) -> None:
    assert vllm_rules(text).v1 is v1


def test_unlike_pages_are_padded_or_refused() -> None:
    stages = ((LayerCache("full", 3072), LayerCache("sliding", 2048, 1024)),)
    fields = {"block_tokens": None, "batched_tokens": 2048}
    with pytest.raises(UnsupportedError, match="pages equal"):
        plan_blocks(stages, rules=vllm_rules("0.19.0"), **fields)  # type: ignore[arg-type]
    layout = plan_blocks(stages, rules=vllm_rules("0.24.0"), **fields)  # type: ignore[arg-type]
    assert layout is not None
    assert {group.page_bytes for group in layout.groups} == {16 * 3072}


def test_smaller_pages_get_larger_blocks() -> None:
    """Gemma 4 31B: 4 x 512 x 2 x 2 B a token in full layers, 16 x 256 x 2 x 2 B in windowed ones."""
    stages = ((LayerCache("full", 8192),) * 10 + (LayerCache("sliding", 16_384, 1024),) * 50,)
    layout = plan_blocks(stages, rules=vllm_rules("0.24.0"), block_tokens=None, batched_tokens=8192)
    assert layout is not None
    assert [group.block_tokens for group in layout.groups] == [32, 16, 16, 16, 16, 16]
    assert layout.stage_block_bytes == (10 * 16 * 16_384,)
    # 262144 / 32 + 5 x (ceil((1023 + 8192) / 16) + 1)
    assert layout.blocks(262_144) == 8192 + 5 * 577


def test_groups_before_the_hybrid_manager() -> None:
    stages = ((LayerCache("full", 8192),) * 10 + (LayerCache("sliding", 8192, 1024),) * 52,)
    layout = plan_blocks(stages, rules=vllm_rules("0.8.5"), block_tokens=None, batched_tokens=8192)
    assert layout is not None
    assert len(layout.groups) == 1
    assert layout.stage_block_bytes == (62 * 16 * 8192,)


def test_no_cache_no_blocks() -> None:
    assert plan_blocks(((),), rules=vllm_rules(None), block_tokens=None, batched_tokens=2048) is None


_CACHES = st.sampled_from(
    [LayerCache("full", 4096), LayerCache("sliding", 4096, 512), LayerCache("sliding", 4096, 2048),
     LayerCache("chunked", 4096, 1024), LayerCache("mla", 1024), LayerCache("state", state_bytes=100_000)]
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(_CACHES, min_size=1, max_size=20).map(tuple), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["0.10.0", "0.19.0", "0.33.0"]),
    st.integers(1, 40_000),
)
def test_every_layer_has_its_place(
    stages: tuple[tuple[LayerCache, ...], ...], version: str, tokens: int
) -> None:
    layout = plan_blocks(stages, rules=vllm_rules(version), block_tokens=None, batched_tokens=2048)
    assert layout is not None
    assert sum(group.layers for group in layout.groups) == sum(map(len, stages))
    if len(layout.groups) > 1:
        sizes = {group.layers + group.padding for group in layout.groups}
        assert len(sizes) == 1
        assert len({group.page_bytes for group in layout.groups}) == 1
    assert layout.blocks(tokens) <= layout.blocks(tokens + 1)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 131_072),
    st.sampled_from(["Qwen/Qwen3.5-35B-A3B", "google/gemma-3-27b-it", "openai/gpt-oss-20b"]),
)
def test_more_is_allocated_than_needed(context: int, model: str) -> None:
    ledger = vllm(model, context=context)
    assert ledger.cache is not None
    assert ledger.cache.allocated_bytes >= ledger.cache.logical_bytes
    assert ledger.cache.fixed_bytes == fixed_bytes(read_model(model), kv_dtype="bf16")


def test_without_a_device_nothing_is_said_of_room() -> None:
    ledger = vllm("meta-llama/Llama-3.1-8B-Instruct", memory=None)
    assert ledger.capacity_bytes is ledger.kv_capacity_tokens is ledger.fits is None
    assert not ledger.reasons


def test_free_form_models_have_no_layers_to_lay_out() -> None:
    spec = dense(params=8e9, kv_bytes_per_token=131_072)
    with pytest.raises(UnsupportedError, match="need the model's layers"):
        rules_for("vllm")(
            LedgerInput(
                spec=spec,
                stages=(spec,),
                layout=Layout(),
                batch=1,
                prompt=1,
                context=1,
                kv_dtype="bf16",
                capacity_bytes=None,
            )
        )


def flash() -> ModelSpec:
    """DeepSeek-V4-Flash's layers: 43, of them 21 with the fine ratio and 20 with the coarse one."""
    bundled = find_bundled("deepseek-ai/DeepSeek-V4-Pro")
    assert bundled is not None
    fields = json.loads((bundled.directory / "config.json").read_text())
    ratios = [0, 0, *([4, 128] * 20), 4, 0]
    return read_model({**fields, "num_hidden_layers": 43, "compress_ratios": ratios})


def test_compressed_attention_is_packed() -> None:
    """An error of 0.22 names 6.66 GiB for V4-Flash at 30,000 tokens, and 13,528 tokens for 5.44 GiB."""
    layout = plan_compressed((flash(),), rules=vllm_rules("0.22.0"), kv_dtype="fp8", batched_tokens=16_384)
    # Pages of 256 tokens in multiples of 576 B: 64 x 132 B of index keys, 64 x 584 and 2 x 584 B of entries
    index, fine, coarse = 15 * 576, 65 * 576, 3 * 576
    assert (index, fine, coarse) == (8640, 37_440, 1728)
    # 22 slots pad 21, 43, 21 and 20 least; 43 windowed layers make two groups
    assert layout.need_block_bytes == 22 * (index + fine + coarse)
    assert layout.stage_block_bytes == (21 * index + 22 * fine + 20 * coarse,)
    # 30000 / 256; 2 x (127 + 16384) / 64 + 1; (7 + 16384) / 4 + 1; (127 + 16384) / 8 + 1, each rounded up
    assert layout.blocks(30_000) == 118 + 2 * 259 + 4099 + 2065
    assert layout.need_bytes(30_000, stage=0) / GIB == pytest.approx(6.66, abs=0.005)
    fits = [n for n in (13_500, 13_528, 13_560) if layout.need_bytes(n, stage=0) <= 5.445 * GIB]
    assert fits == [13_500, 13_528]


def test_compressed_attention_in_the_ledger() -> None:
    ledger = vllm(
        "deepseek-ai/DeepSeek-V4-Pro", tp=8, memory=int(280 * GIB), kv_dtype="fp8", max_model_len=65_536
    )
    assert ledger.cache is not None
    assert "0.24.0" in ledger.cache.layout
    assert {group.kind for group in ledger.cache.groups} == {"compressed", "sliding", "compressor"}
    assert ledger.fits
    assert ledger.cache.allocated_bytes > ledger.cache.logical_bytes
    staged = vllm("deepseek-ai/DeepSeek-V4-Pro", tp=4, pp=2, memory=int(280 * GIB), kv_dtype="fp8")
    assert staged.cache is not None
    assert staged.cache.bytes_per_block is not None
    assert ledger.cache.bytes_per_block is not None
    assert staged.cache.bytes_per_block < ledger.cache.bytes_per_block
    with pytest.raises(UnsupportedError, match="no compressed attention"):
        vllm("deepseek-ai/DeepSeek-V4-Pro", tp=8, engine_version="0.19.0")
