"""What the adapters of the less common architectures decide, note and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooflens.analysis.costs import attended_pairs, compressed_attention_cost
from rooflens.analysis.step import decode_step, prefill_step, step_ops
from rooflens.errors import InputError, RooflensError, UnsupportedError
from rooflens.models.accounting import (
    count_parameters,
    kv_elements,
    kv_growth_elements,
    layer_counts,
    weights_bytes,
)
from rooflens.models.families.registry import FAMILIES, adapter_for, read_spec
from rooflens.models.spec import Attention, CompressedAttention, LatentAttention, ModelSpec, Recurrent

CONFIGS = Path(__file__).parent.parent / "data" / "oracle_exotic" / "configs"


def published(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def read(name: str, **changes: Any) -> ModelSpec:
    return read_spec(published(name) | changes, name=name)


def nested(name: str, **changes: Any) -> ModelSpec:
    fields = published(name)
    fields["text_config"] |= changes
    return read_spec(fields, name=name)


def test_every_model_type_has_its_adapter() -> None:
    for model_type in FAMILIES:
        assert callable(adapter_for(model_type))


def test_a_null_query_rank_is_not_an_absent_one() -> None:
    fields = published("deepseek-ai__DeepSeek-V2-Lite")
    assert fields["q_lora_rank"] is None
    names = [linear.name for linear in read_spec(fields, name="lite").layers[0].mixers[0].linears]
    assert names[0] == "q_proj"
    del fields["q_lora_rank"]
    spec = read_spec(fields, name="lite")
    assert [linear.name for linear in spec.layers[0].mixers[0].linears][:2] == ["q_a_proj", "q_b_proj"]
    assert any("q_lora_rank = 1536" in note for note in spec.notes)


def test_prediction_layers_are_counted_apart() -> None:
    with_mtp = count_parameters(read("deepseek-ai__DeepSeek-V3"))
    without = count_parameters(read("deepseek-ai__DeepSeek-V3", num_nextn_predict_layers=0))
    assert with_mtp.total == without.total
    assert "mtp" not in with_mtp.components
    # One layer as the 58 others, its input projection 2 x 7168 x 7168 and three norms of 7168
    layer = (with_mtp.layers - 3 * (187_107_328 + 396_361_728 + 2 * 7168)) // 58
    assert with_mtp.mtp == layer + 2 * 7168 * 7168 + 3 * 7168
    assert without.mtp == 0
    assert weights_bytes(read("deepseek-ai__DeepSeek-V3")) == weights_bytes(
        read("deepseek-ai__DeepSeek-V3", num_nextn_predict_layers=0)
    )


def test_only_layers_with_an_indexer_of_their_own_cache_its_keys() -> None:
    spec = read("zai-org__GLM-5.2")
    latent = [mixer for layer in spec.layers for mixer in layer.mixers if isinstance(mixer, LatentAttention)]
    assert len(latent) == 78
    own = [mixer for mixer in latent if mixer.indexer_key_dim]
    # Layers 0, 1, 2, 6, 10, ... 74
    assert len(own) == 3 + 18
    assert all(mixer.indexer_top_k == 2048 for mixer in latent)
    assert kv_growth_elements(spec) == 78 * 576 + 21 * 128
    assert any("head_dim 192 is not used" in note for note in spec.notes)


def test_indexer_patterns_in_all_spellings() -> None:
    fields = published("zai-org__GLM-5.2")
    expected = kv_growth_elements(read_spec(fields, name="list"))
    del fields["indexer_types"]
    assert kv_growth_elements(read_spec(fields, name="frequency")) == expected
    fields["index_topk_pattern"] = "FFF" + "SSSF" * 18 + "SSS"
    assert kv_growth_elements(read_spec(fields, name="letters")) == expected
    fields["index_topk_pattern"] = "FFX"
    with pytest.raises(InputError, match="indexer types"):
        read_spec(fields, name="damaged")


def test_compressed_entries_appear_when_they_are_full() -> None:
    mixer = CompressedAttention(
        heads=2,
        head_dim=16,
        rope_dim=4,
        window=8,
        ratio=4,
        linears=(),
        indexer_heads=1,
        indexer_key_dim=4,
        indexer_top_k=2,
    )
    for context in range(40):
        window = sum(1 for token in range(context) if token >= context - 8)
        entries = sum(1 for entry in range(context) if (entry + 1) * 4 <= context)
        assert kv_elements(mixer, context) == 16 * window + (16 + 4) * entries


@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize(("context", "new"), [(0, 1), (0, 13), (5, 1), (7, 9), (30, 4)])
def test_compressed_attention_costs_what_a_loop_counts(context: int, new: int, top_k: int) -> None:
    heads, dim, window, ratio, index_heads, index_dim = 3, 8, 6, 4, 2, 5
    cost = compressed_attention_cost(
        heads=heads,
        head_dim=dim,
        window=window,
        ratio=ratio,
        sequences=1,
        new_tokens=new,
        context=context,
        kv_element_bytes=2,
        element_bytes=2,
        index_heads=index_heads if top_k else 0,
        index_dim=index_dim if top_k else 0,
        index_top_k=top_k,
    )
    flops = 0
    for position in range(context, context + new):
        entries = (position + 1) // ratio
        seen = min(position + 1, window) + (min(entries, top_k) if top_k else entries)
        flops += 2 * heads * 2 * dim * seen
        flops += 2 * index_heads * index_dim * entries if top_k else 0
    assert cost.flops == flops
    held = context // ratio
    read = min(context, window - 1) * dim
    read += (min(held, top_k) if top_k else held) * dim + (held * index_dim if top_k else 0)
    assert cost.kv_read_bytes == 2 * read
    made = (context + new) // ratio - held
    assert cost.kv_write_bytes == 2 * (new * dim + made * (dim + (index_dim if top_k else 0)))


def test_windows_that_look_both_ways() -> None:
    # 5 tokens, 1 to each side: 2 + 3 + 3 + 3 + 2
    assert attended_pairs(new_tokens=5, context=0, window=3, causal=False) == 13


def test_short_ratio_lists_are_refused() -> None:
    with pytest.raises(InputError, match="compress_ratios has 3 entries for 61 layers"):
        read("deepseek-ai__DeepSeek-V4-Pro", compress_ratios=[4, 128, 4])


def test_hybrid_state_has_a_type_of_its_own() -> None:
    spec = nested("Qwen__Qwen3.5-27B", mamba_ssm_dtype="bfloat16")
    states = {m.state_dtype for layer in spec.layers for m in layer.mixers if isinstance(m, Recurrent)}
    assert states == {"bf16"}


def test_gpt_oss_alternates_windows_and_has_sinks() -> None:
    spec = read("openai__gpt-oss-20b")
    windows = [mixer.window for layer in spec.layers for mixer in layer.mixers]
    assert windows == [128, None] * 12
    first = spec.layers[0].mixers[0]
    assert isinstance(first, Attention)
    assert first.sinks


def test_llama4_has_chunks_where_it_has_positions() -> None:
    spec = read("meta-llama__Llama-4-Scout-17B-16E-Instruct")
    assert layer_counts(spec)["chunked"] == 36
    for index, layer in enumerate(spec.layers):
        mixer = layer.mixers[0]
        assert isinstance(mixer, Attention)
        everywhere = (index + 1) % 4 == 0
        assert (mixer.rotary is None) == everywhere
        assert mixer.window == (None if everywhere else 8192)
    assert any("vision_config" in note and "defaults" in note for note in spec.notes)


def test_gemma4_layers_that_share_a_cache_store_none() -> None:
    spec = read("google__gemma-4-E4B-it")
    sharing = [layer.mixers[0].kv_elements_per_token == 0 for layer in spec.layers]
    assert sharing == [False] * 24 + [True] * 18
    assert spec.tables[0].parameters == 262144 * 42 * 256


def test_nemotron_layers_are_one_thing_each() -> None:
    spec = read("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    counts = layer_counts(spec)
    assert (counts["mamba"], counts["full"], counts["moe"]) == (23, 6, 23)
    assert all(len(layer.mixers) + (layer.mlp is not None) == 1 for layer in spec.layers)
    with pytest.raises(InputError, match="unknown kind of layer"):
        read("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", hybrid_override_pattern="MXE")
    longer = read("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", hybrid_override_pattern="ME*")
    assert len(longer.layers) == 3
    assert any("contradicts the pattern" in note for note in longer.notes)


def test_falcon_h1_has_both_mixers_in_a_layer() -> None:
    spec = read("tiiuae__falcon-h1-0.5b-500m-bridge")
    assert [mixer.attribute for mixer in spec.layers[0].mixers] == ["attention", "mamba"]
    assert any("24 heads of 64 features make it" in note for note in spec.notes)


def test_an_image_is_cached_once_and_its_keys_made_once() -> None:
    spec = read("meta-llama__Llama-3.2-90B-Vision-Instruct")
    crossing = [layer.mixers[0] for layer in spec.layers if layer.mixers[0].attribute == "cross_attention"]
    # 4 tiles of (560 / 14)^2 patches and a class token
    tokens = 4 * (40 * 40 + 1)
    assert {mixer.cross_tokens for mixer in crossing if isinstance(mixer, Attention)} == {tokens}
    assert kv_elements(crossing[0], 7) == kv_elements(crossing[0], 7000) == tokens * 8 * 128 * 2
    name = "layers.{i}.cross_attention.kv_proj"
    for step, made in (
        (prefill_step(sequences=2, prompt=5), 2 * tokens),
        (decode_step(sequences=2, context=5), 0),
    ):
        (op,) = [op for op in step_ops(spec, step, kv_dtype="bf16") if op.name == name]
        assert op.cost.flops == 2 * 8192 * 2048 * made


def test_an_empty_text_config_means_the_familys_defaults() -> None:
    spec = read("llava-hf__llava-1.5-7b-hf")
    assert (len(spec.layers), spec.hidden_size, spec.vocab_size) == (32, 4096, 32064)
    assert any("num_hidden_layers = 32" in note for note in spec.notes)


def test_experts_that_do_nothing_are_not_stored() -> None:
    fields = {
        "model_type": "longcat_flash",
        "vocab_size": 131072,
        "hidden_size": 6144,
        "num_layers": 28,
        "num_attention_heads": 64,
        "ffn_hidden_size": 12288,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_topk": 12,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
        "expert_ffn_hidden_size": 2048,
        "dtype": "bfloat16",
    }
    spec = read_spec(fields, name="LongCat-Flash")
    count = count_parameters(spec)
    # Published: 560e9 in total, 18.6e9 to 31.3e9 of them active (the token table apart)
    assert round(count.total, -10) == 560e9
    assert round(count.active - count.embedding_table, -8) == 31.4e9
    # Two latent attentions a layer
    assert kv_growth_elements(spec) == 2 * 28 * (512 + 64)
    assert any("256 of the 768 experts do nothing" in note for note in spec.notes)


def test_searched_architectures_vary_by_layer() -> None:
    def block(group: int | None, multiplier: float | None) -> dict[str, Any]:
        return {
            "attention": {"n_heads_in_group": group, "no_op": group is None},
            "ffn": {"ffn_mult": multiplier, "no_op": multiplier is None},
        }

    fields = {
        "model_type": "nemotron-nas",
        "vocab_size": 1024,
        "hidden_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "block_configs": [block(4, 2.625), block(None, 5.25), block(8, None)],
        "torch_dtype": "bfloat16",
    }
    spec = read_spec(fields, name="searched")
    assert kv_growth_elements(spec) == 2 * 64 * (2 + 1)
    widths = [layer.mlp.intermediate_size if layer.mlp else None for layer in spec.layers]  # type: ignore[union-attr]
    # 2 x 2.625 x 512 / 3 = 896, up to 1024; twice that is 1792
    assert widths == [1024, 1792, None]
    assert [len(layer.norms) for layer in spec.layers] == [2, 1, 1]
    fields["block_configs"][0]["attention"]["num_sink_tokens"] = 4
    with pytest.raises(UnsupportedError, match="num_sink_tokens"):
        read_spec(fields, name="searched")


def test_unknown_wrappers_name_the_language_model_inside() -> None:
    fields = {"model_type": "ovis9", "text_config": {"model_type": "qwen3", "hidden_size": 64}}
    with pytest.raises(UnsupportedError, match="ovis9") as caught:
        read_spec(fields, name="ovis")
    assert "qwen3" in str(caught.value.next)


def test_unknown_towers_are_refused_by_name() -> None:
    fields = published("llava-hf__llava-1.5-7b-hf")
    fields["vision_config"] = {"model_type": "eagle_tower", "hidden_size": 64}
    with pytest.raises(UnsupportedError, match="eagle_tower"):
        read_spec(fields, name="llava")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("ibm-granite__granite-4.0-h-tiny", "layer_types", ["mamba"] * 39 + ["rwkv"]),
        ("XiaomiMiMo__MiMo-V2-Flash", "hybrid_layer_pattern", [0, 1]),
        ("openai__gpt-oss-20b", "num_key_value_heads", 7),
        ("openai__gpt-oss-20b", "num_experts_per_tok", 33),
        ("tiiuae__falcon-h1-0.5b-500m-bridge", "mamba_d_ssm", 1000),
    ],
)
def test_contradictions_are_refused(name: str, field: str, value: Any) -> None:
    with pytest.raises(RooflensError):
        read(name, **{field: value})
