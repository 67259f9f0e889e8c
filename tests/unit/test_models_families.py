"""What the dense families say beyond sizes: positions, norms, scales, windows, and how contradictions end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.errors import InputError, RooflensError, UnsupportedError
from rooflens.models.accounting import count_parameters, kv_growth_elements
from rooflens.models.families.registry import FAMILIES, read_spec
from rooflens.models.json_input import read_json_object
from rooflens.models.read import read_model
from rooflens.models.spec import Attention, MixtureOfExperts, ModelSpec
from rooflens.models.tensors import checkpoint_tensors

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}


PUBLISHED = read_json_object(
    Path(__file__).parent.parent / "data" / "oracle" / "published_sizes.json", what="published sizes"
)["models"]
JUNK: list[Any] = [
    None, 0, -1, 1, 3, 7, 1.5, 1e308, -0.0, True, False, "", "x", "4", [], {}, [1], ["a"], {"a": 1}, 10**12,
    2**31, [None], [[1, 2]], [[["global"], 10**12]], {"rope_type": 5}, {"type": "yarn"}, ["full_attention"],
    {"rope_theta": 0}, {"partial_rotary_factor": 9}, "sliding_attention", float("inf"), float("nan"),
]  # fmt: skip


def spec_of(model_type: str, **fields: Any) -> ModelSpec:
    return read_spec({**SMALL, "model_type": model_type, **fields}, name=model_type)


def attention(spec: ModelSpec, layer: int = 0) -> Attention:
    mixer = spec.layers[layer].mixers[0]
    assert isinstance(mixer, Attention)
    return mixer


def windows(spec: ModelSpec) -> list[int | None]:
    return [attention(spec, index).window for index in range(len(spec.layers))]


def norm_names(spec: ModelSpec) -> list[str]:
    return [norm.name for norm in spec.layers[0].norms]


def test_llama_3_scales_its_positions() -> None:
    spec = read_model("meta-llama/Meta-Llama-3.1-8B")
    rotary = attention(spec).rotary
    assert rotary is not None
    assert (rotary.dim, rotary.theta, rotary.interleaved) == (128, 500000.0, False)
    assert dict(rotary.scaling) == {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    assert spec.layers[0].norms[0].eps == 1e-5
    assert (spec.dtype, spec.tied, spec.max_context) == ("bf16", False, 131072)


def test_old_and_new_spellings_of_rope_mean_the_same() -> None:
    old = spec_of("llama", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = spec_of("llama", rope_parameters={"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0})
    assert attention(old).rotary == attention(new).rotary


def test_phi_3_keeps_the_length_before_the_extension_beside_the_scaling() -> None:
    rotary = attention(read_model("microsoft/Phi-3.5-mini-instruct")).rotary
    assert rotary is not None
    scaling = dict(rotary.scaling)
    assert scaling["original_max_position_embeddings"] == 4096
    assert len(scaling["long_factor"]) == 48  # half of a head of 96


def test_phi_3_has_no_window_where_it_is_longer_than_the_context() -> None:
    spec = read_model("microsoft/Phi-4-mini-instruct")
    assert set(windows(spec)) == {None}
    assert any("reaches over the whole context" in note for note in spec.notes)
    rotary = attention(spec).rotary
    assert rotary is not None
    assert rotary.dim == 96  # 0.75 of 128


def test_gemma_3_has_one_layer_in_six_without_window_and_its_own_base() -> None:
    spec = read_model("google/gemma-3-1b-it")
    assert windows(spec)[:7] == [512, 512, 512, 512, 512, None, 512]
    local, everywhere = attention(spec, 0), attention(spec, 5)
    assert local.rotary is not None
    assert everywhere.rotary is not None
    assert (local.rotary.theta, everywhere.rotary.theta) == (10000.0, 1e6)
    assert local.scale == 256**-0.5
    assert [norm.name for norm in local.norms] == ["q_norm", "k_norm"]
    assert {norm.offset for norm in (*spec.layers[0].norms, *local.norms)} == {1.0}
    assert norm_names(spec) == ["attention_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm"]
    assert spec.embedding is not None
    assert spec.embedding.scale == 1152**0.5
    assert spec.tied
    assert spec.layers[0].mlp is not None
    assert getattr(spec.layers[0].mlp, "activation", None) == "gelu_tanh"
    # 4 of 26 layers grow: 4 x 2 x 1 KV head x 256
    assert kv_growth_elements(spec) == 4 * 2 * 256


def test_gemma_3_scales_only_the_layers_without_window() -> None:
    spec = spec_of(
        "gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window_pattern=2
    )
    local, everywhere = attention(spec, 0).rotary, attention(spec, 1).rotary
    assert local is not None
    assert everywhere is not None
    assert not local.scaling
    assert dict(everywhere.scaling) == {"rope_type": "linear", "factor": 8.0}


def test_gemma_3_takes_positions_nested_per_layer_type() -> None:
    nested = {
        "full_attention": {"rope_type": "default", "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    spec = spec_of("gemma3_text", rope_parameters=nested, sliding_window_pattern=2)
    thetas = [getattr(attention(spec, index).rotary, "theta", None) for index in (0, 1)]
    assert thetas == [3e4, 2e6]


def test_gemma_2_caps_scores_and_logits_unless_null() -> None:
    spec = read_model("google/gemma-2-2b")
    assert (attention(spec).logit_softcap, spec.final_logit_softcap) == (50.0, 30.0)
    assert windows(spec)[:4] == [4096, None, 4096, None]
    bare = spec_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (attention(bare).logit_softcap, bare.final_logit_softcap) == (None, None)


def test_gemma_1_says_gelu_and_means_its_approximation() -> None:
    spec = read_model("google/gemma-7b")
    assert getattr(spec.layers[0].mlp, "activation", None) == "gelu_tanh"
    assert any("tanh" in note for note in spec.notes)


def test_smollm_3_leaves_positions_out_of_every_fourth_layer() -> None:
    spec = read_model("HuggingFaceTB/SmolLM3-3B")
    rotated = [attention(spec, index).rotary is not None for index in range(8)]
    assert rotated == [True, True, True, False] * 2
    assert spec.tied


def test_qwen_2_5_has_biases_and_a_window_only_where_asked() -> None:
    spec = read_model("Qwen/Qwen2.5-7B-Instruct")
    qkv, out = attention(spec).linears
    assert (qkv.bias, out.bias) == (True, False)
    assert set(windows(spec)) == {None}
    asked = spec_of("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=3)
    assert windows(asked) == [None, None, None, 8]


def test_qwen_3_normalises_heads_and_not_the_whole() -> None:
    spec = read_model("Qwen/Qwen3-0.6B")
    mixer = attention(spec)
    assert [(norm.size, norm.groups, norm.source) for norm in mixer.norms] == [
        (128, 1, "self_attn.q_norm"),
        (128, 1, "self_attn.k_norm"),
    ]
    assert (mixer.heads * mixer.head_dim, spec.hidden_size) == (2048, 1024)


def test_qwen_1_counts_gate_and_up_in_intermediate_size() -> None:
    spec = read_model("Qwen/Qwen-7B")
    assert getattr(spec.layers[0].mlp, "intermediate_size", None) == 22016 // 2
    assert any("gate and up together" in note for note in spec.notes)


def test_olmo_2_normalises_outputs_and_all_of_q() -> None:
    spec = read_model("allenai/OLMo-2-1124-13B")
    assert norm_names(spec) == ["post_attention_norm", "post_mlp_norm"]
    assert [norm.size for norm in attention(spec).norms] == [5120, 5120]


def test_olmo_3_scales_only_the_layers_without_window() -> None:
    spec = read_model("allenai/Olmo-3.1-32B-Instruct")
    local, everywhere = attention(spec, 0), attention(spec, 3)
    assert (local.window, everywhere.window) == (4096, None)
    assert local.rotary is not None
    assert everywhere.rotary is not None
    assert not local.rotary.scaling
    assert dict(everywhere.rotary.scaling)["rope_type"] == "yarn"


def test_cohere_runs_both_blocks_from_one_norm() -> None:
    spec = read_model("command-r")
    assert (norm_names(spec), spec.layers[0].parallel) == (["attention_norm"], True)
    norm = spec.layers[0].norms[0]
    assert (norm.kind, norm.bias) == ("layer", False)
    assert attention(spec).rotary is not None
    assert getattr(attention(spec).rotary, "interleaved", None) is True
    assert (spec.head_scale, spec.tied) == (0.0625, True)
    assert spec.max_context == 131072  # model_max_length; max_position_embeddings says 8192
    assert any("model_max_length" in note for note in spec.notes)


def test_cohere_2_rotates_only_inside_windows() -> None:
    spec = spec_of("cohere2", sliding_window=8)
    assert windows(spec) == [8, 8, 8, None]
    assert [attention(spec, index).rotary is not None for index in range(4)] == [True, True, True, False]


def test_granite_scales_four_things() -> None:
    spec = spec_of(
        "granite",
        attention_multiplier=0.1,
        embedding_multiplier=12,
        residual_multiplier=0.2,
        logits_scaling=8,
    )
    assert spec.embedding is not None
    scales = (attention(spec).scale, spec.embedding.scale, spec.layers[0].residual_scale, spec.head_scale)
    assert scales == (0.1, 12.0, 0.2, 1 / 8)


def test_minicpm_scales_by_depth_and_width() -> None:
    spec = read_model("openbmb/MiniCPM-MoE-8x2B")
    assert spec.embedding is not None
    assert spec.embedding.scale == 12
    assert spec.layers[0].residual_scale == pytest.approx(1.4 / 40**0.5)
    assert spec.head_scale == pytest.approx(256 / 2304)


def test_falcon_has_one_kv_head_whatever_num_kv_heads_says() -> None:
    spec = read_model("tiiuae/falcon-7b")
    mixer = attention(spec)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim) == (71, 1, 64)
    assert any("num_kv_heads 71" in note for note in spec.notes)
    assert kv_growth_elements(spec) == 32 * 2 * 64


def test_gpt_neox_runs_side_by_side_on_a_quarter_of_each_head() -> None:
    spec = read_model("EleutherAI/pythia-1b")
    assert spec.layers[0].parallel
    assert norm_names(spec) == ["attention_norm", "mlp_norm"]
    assert getattr(attention(spec).rotary, "dim", None) == 64  # 0.25 of 256
    assert attention(spec).linears[0].parts[0].layout == "grouped"


def test_gpt_2_stores_its_matrices_transposed_and_positions_in_a_table() -> None:
    spec = read_model("gpt2")
    shapes = dict(checkpoint_tensors(spec))
    assert shapes["transformer.h.0.attn.c_attn.weight"] == (768, 3 * 768)
    assert shapes["transformer.wpe.weight"] == (1024, 768)
    assert attention(spec).rotary is None
    assert not attention(spec).alibi


def test_bloom_and_baichuan_13b_have_alibi() -> None:
    assert attention(read_model("bigscience/bloom-560m")).alibi
    thirteen = spec_of("baichuan", hidden_size=5120, num_attention_heads=40, num_key_value_heads=40)
    seven = spec_of("baichuan", hidden_size=4096, num_attention_heads=32, num_key_value_heads=32)
    assert (attention(thirteen).alibi, attention(thirteen).rotary) == (True, None)
    assert not attention(seven).alibi
    assert attention(seven).rotary is not None
    with pytest.raises(UnsupportedError, match="hidden_size"):
        spec_of("baichuan")


def test_mistral_windows_every_layer_unless_null() -> None:
    assert set(windows(read_model("mistralai/Mistral-7B-v0.1"))) == {4096}
    assert set(windows(read_model("mistralai/Mistral-7B-Instruct-v0.3"))) == {None}
    assumed = spec_of("mistral")
    assert set(windows(assumed)) == {4096}
    assert any("not given" in note for note in assumed.notes)


def test_glm_4_5_under_the_wrong_type_is_read_by_its_class() -> None:
    spec = read_model("zai-org/GLM-4.5-Air")
    assert isinstance(spec.layers[1].mlp, MixtureOfExperts)
    assert any("glm4_moe" in note for note in spec.notes)


def test_mixtral_routes_two_of_eight() -> None:
    spec = read_model("mistralai/Mixtral-8x7B-v0.1")
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MixtureOfExperts)
    assert (mlp.experts, mlp.top_k, mlp.shared) == (8, 2, None)
    assert mlp.expert.linears[0].parts[0].source == "block_sparse_moe.experts.{e}.w1"


def test_a_reward_model_has_a_score_and_does_not_generate() -> None:
    spec = read_model("Skywork/Skywork-Reward-Llama-3.1-8B-v0.2")
    assert (spec.head, spec.generates) == (None, False)
    assert [linear.parameters for linear in spec.linears] == [4096]
    assert any("does not generate" in note for note in spec.notes)


def test_a_model_without_head_does_not_generate() -> None:
    spec = spec_of("qwen2", architectures=["Qwen2Model"])
    assert (spec.head, spec.generates) == (None, False)
    with_head = spec_of("qwen2", architectures=["Qwen2ForCausalLM"])
    assert count_parameters(with_head).total - count_parameters(spec).total == 96 * 48


@pytest.mark.parametrize(
    "name", ["LlamaForTokenClassification", "LlamaForCausalLMEagle", "Qwen2ForRewardModel"]
)
def test_an_unknown_head_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        spec_of("llama", architectures=[name])


def test_a_missing_dtype_is_assumed_and_said_so() -> None:
    spec = spec_of("llama", torch_dtype=None)
    assert spec.dtype == "bf16"
    assert any("no dtype" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 49}, "hidden_size"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, "6 attention heads cannot share 4"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": -8}, "head_dim"),
        ({"intermediate_size": 1.5}, "intermediate_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "float17"}, "dtype"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ],
)
def test_fields_that_cannot_be_used_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RooflensError, match=message) as caught:
        spec_of("llama", **fields)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "3 entries for 4 layers"),
        ("qwen2", {"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}, "more experts than there are"),
        ("mixtral", {"num_experts_per_tok": 2}, "num_local_experts"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
        ("mpt", {"attn_config": {"alibi": False}}, "alibi"),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
        ("chatglm", {"inner_hidden_size": 64, "position_encoding_2d": True}, "inner_hidden_size"),
        ("minicpm", {"sparse_config": {"topk": 64}}, "sparse_config"),
        ("phi3", {"attention_bias": True}, "attention_bias"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types"),
        ("exaone4", {"sliding_window": 8, "sliding_window_pattern": "LLX"}, "sliding_window_pattern"),
        ("qwen", {"intermediate_size": 41}, "intermediate_size"),
    ],
)
def test_variants_that_are_not_covered_are_named(
    model_type: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RooflensError, match=message):
        spec_of(model_type, **fields)


@settings(max_examples=150, deadline=None)
@given(
    entry=st.sampled_from([x for x in PUBLISHED if x["config"]["model_type"] in FAMILIES]),
    data=st.data(),
)
def test_a_damaged_config_is_read_or_refused(entry: dict[str, Any], data: st.DataObject) -> None:
    fields = dict(entry["config"])
    known = [*fields, "head_dim", "rope_scaling", "layer_types", "sliding_window", "attention_types"]
    for _ in range(data.draw(st.integers(1, 2))):
        fields[data.draw(st.sampled_from(known))] = data.draw(st.sampled_from(JUNK))
    try:
        spec = read_spec(fields, name="damaged")
    except RooflensError:
        return
    assert count_parameters(spec).total > 0
    assert spec.groups


def test_no_model_type_and_unknown_ones() -> None:
    with pytest.raises(InputError, match="model_type"):
        read_spec(SMALL, name="x")
    with pytest.raises(UnsupportedError, match=r"'lamma'.*nearest: llama"):
        spec_of("lamma")


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 3, 4, 8]),
    groups=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([2, 8, 24]),
    hidden=st.integers(1, 100),
    intermediate=st.integers(1, 100),
    layers=st.integers(1, 5),
    vocab=st.integers(1, 100),
    tied=st.booleans(),
    bias=st.booleans(),
    model_type=st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "olmo2"]),
)
def test_the_tensors_add_up_to_the_parameters(
    heads: int,
    groups: int,
    head_dim: int,
    hidden: int,
    intermediate: int,
    layers: int,
    vocab: int,
    tied: bool,
    bias: bool,
    model_type: str,
) -> None:
    spec = spec_of(
        model_type,
        num_attention_heads=heads * groups,
        num_key_value_heads=heads,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        attention_bias=bias,
    )
    total = 0
    for _, shape in checkpoint_tensors(spec):
        elements = 1
        for size in shape:
            elements *= size
        total += elements
    assert total == count_parameters(spec).total
    assert sum(group.count for group in spec.groups) == layers
