"""Checkpoints' own quantisation configs: what each method converts, in which layout, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from formats_support import CONFIGS, config, formats_of, model, names_of, quantised

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.accounting import count_parameters, weights_bytes
from rooflens.models.families.registry import FAMILIES, read_spec
from rooflens.models.formats.checkpoint_quant import apply_checkpoint_quantization
from rooflens.models.formats.quant_entry import find_quantization

LLAMA = "meta-llama__Meta-Llama-3.1-8B"
QUANTISED = sorted(
    path.name
    for path in CONFIGS.iterdir()
    if find_quantization(config(path.name) or {}) or config(path.name, "hf_quant_config.json")
)
LINEARS = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)  # of Llama-3.1-8B
KEPT = 2 * (2 * 128256 * 4096) + 65 * 4096 * 2  # its table, head and norms in 16 bits
ROWS = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)


def llama_bytes(quantization: dict[str, Any]) -> int:
    return weights_bytes(quantised(LLAMA, quantization))


@pytest.mark.parametrize("name", QUANTISED)
def test_every_bundled_quantised_config_is_read(name: str):
    fields = config(name)
    assert fields is not None
    if fields["model_type"] not in FAMILIES:
        pytest.skip(f"{fields['model_type']} has no adapter")
    spec = model(name)
    assert spec.quantization is not None
    plain = count_parameters(spec)
    assert 3.5 < weights_bytes(spec) * 8 / plain.total < 9
    assert len(spec.groups) <= 8


@pytest.mark.parametrize(
    ("name", "published_bytes"),
    [  # file sizes on the Hub, metadata included
        ("openai__gpt-oss-20b", 13.76e9),
        ("unsloth__llama-3-8b-Instruct-bnb-4bit", 5.70e9),
        ("Qwen__Qwen3-4B-AWQ", 2.67e9),
    ],
)
def test_sizes_of_published_checkpoints(name: str, published_bytes: float):
    assert weights_bytes(model(name)) == pytest.approx(published_bytes, rel=0.002)


def test_qwen3_4b_awq_by_its_tensors():
    q, kv, o, up, down = (4096, 2560), (1024, 2560), (2560, 4096), (9728, 2560), (2560, 9728)
    one = sum(
        rows * columns // 2 + columns // 128 * (rows * 2 + rows // 8 * 4)
        for rows, columns in (q, kv, kv, o, up, up, down)
    )
    norms = 36 * (2 * 2560 + 2 * 128) + 2560
    assert weights_bytes(model("Qwen__Qwen3-4B-AWQ")) == 36 * one + 151936 * 2560 * 2 + norms * 2


def test_llama_70b_fp8_of_modelopt():
    layer = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
    scales = 7 * 2 * 4  # weight_scale and input_scale of every linear
    kept = (2 * 128256 * 8192 + 161 * 8192) * 2
    spec = model("nvidia__Llama-3.1-70B-Instruct-FP8")
    assert weights_bytes(spec) == 80 * (layer + scales) + kept
    assert (spec.quantization, spec.kv_scheme) == ("modelopt fp8", "fp8")
    assert formats_of(spec)["self_attn.q_proj"].compute_dtype == "fp8"


def test_deepseek_v3_block_scales():
    spec = model("deepseek-ai__DeepSeek-V3")
    made = formats_of(spec, layer=5)
    # w2 of an expert: [7168, 2048] has 56 x 16 fp32 scales.
    assert made["mlp.experts.{e}.down_proj"].matrix_bytes(7168, 2048) == 7168 * 2048 + 56 * 16 * 4
    assert made["mlp.gate"] is None
    assert made["lm_head"] is None
    predictor = next(part for part in spec.components if part.kind == "mtp")
    # Nearly all of it is experts in one byte, with four bytes of scale per 128 x 128.
    assert predictor.weight_bytes == pytest.approx(predictor.parameters, rel=0.01)


def test_deepseek_v4_keeps_experts_in_four_bits_and_compressors_in_sixteen():
    names = names_of(model("deepseek-ai__DeepSeek-V4-Pro"), layer=4)
    assert names["ffn.experts.{e}.w1"] == "mxfp4"
    assert names["attn.wq_a"] == "fp8-block-128x128"
    assert names["attn.compressor.wkv"] is None
    assert names["attn.indexer.weights_proj"] is None
    assert names["hc_attn_fn"] == "fp32"
    assert formats_of(model("deepseek-ai__DeepSeek-V4-Pro"), 4)["attn.wq_a"].scale_bits == 8
    nvfp4 = names_of(model("nvidia__DeepSeek-V4-Pro-NVFP4"), layer=4)
    assert nvfp4["ffn.experts.{e}.w1"] == "nvfp4"
    assert nvfp4["ffn.shared_experts.w1"] == "fp8-block-128x128"


def test_modelopt_mixed_precision_follows_its_list():
    spec = model("nvidia__Qwen3.6-27B-NVFP4")
    linear, full = names_of(spec, 0), names_of(spec, 3)
    assert linear["linear_attn.in_proj_qkv"] == full["self_attn.q_proj"] == "fp8"
    assert linear["linear_attn.in_proj_b"] is None
    assert linear["mlp.down_proj"] == full["mlp.down_proj"] == linear["lm_head"] == "nvfp4-w4a16"


@pytest.mark.parametrize("name", ["nvidia__Qwen3.6-27B-NVFP4", "nvidia__GLM-5.1-NVFP4"])
def test_prediction_layers_that_the_config_excludes_stay(name: str):
    """Excluded as ``mtp*`` in the one, as the layer after the last in the other."""
    predictor = next(part for part in model(name).components if part.kind == "mtp")
    assert predictor.weight_bytes == pytest.approx(2 * predictor.parameters, rel=1e-4)


def test_modelopt_wildcards_leave_attention_and_dense_mlps():
    names = names_of(model("nvidia__Gemma-4-26B-A4B-NVFP4"))
    assert names["self_attn.q_proj"] is None
    assert names["mlp.gate_proj"] is None
    assert names["experts.{e}.up_proj"] == "nvfp4"


def test_compressed_tensors_ignores_by_name():
    names = names_of(model("RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"))
    assert names["self_attn.q_proj"] is None
    assert names["feed_forward.router"] is None
    assert names["feed_forward.experts.{e}.down_proj"] == "fp8-channel"
    assert names["lm_head"] is None


def test_gpt_oss_quantises_experts_only():
    names = names_of(model("openai__gpt-oss-20b"))
    assert {source for source, made in names.items() if made} == {
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    }


def test_fp8_without_blocks_has_a_scale_a_matrix():
    base = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    assert llama_bytes(base) == LINEARS + KEPT + 32 * 7 * 4
    assert llama_bytes({**base, "activation_scheme": "static"}) == LINEARS + KEPT + 32 * 7 * 8
    kept = {**base, "modules_to_not_convert": ["model.layers.0"]}
    assert llama_bytes(kept) == LINEARS + KEPT + 31 * 7 * 4 + LINEARS // 32


def test_fbgemm_and_eetq_have_a_scale_a_row():
    assert llama_bytes({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}) == (
        LINEARS + KEPT + ROWS * 4
    )
    assert llama_bytes({"quant_method": "eetq"}) == LINEARS + KEPT + ROWS * 2


def test_gptq_rules_by_expression():
    base = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
    groups = LINEARS // 128
    columns = 32 * (4 * 4096 + 2 * 4096 + 14336)  # g_idx of q, k, v, o, gate, up, down
    assert llama_bytes(base) == LINEARS // 2 + groups * 2 + groups // 2 + columns * 4 + KEPT
    finer = {"bits": 8, "group_size": 32}
    rules = {"-:.*self_attn.*": {}, r"+:model\.layers\.1\.mlp\..*": finer}
    spec = quantised(LLAMA, {**base, "dynamic": rules})
    assert names_of(spec)["self_attn.q_proj"] is None
    assert names_of(spec)["mlp.up_proj"] == "gptq-int4-g128"
    assert names_of(spec, 1)["mlp.up_proj"] == "gptq-int8-g32"
    assert len(spec.groups) == 2
    assert names_of(quantised(LLAMA, {**base, "lm_head": True}))["lm_head"] == "gptq-int4-g128"
    only = quantised(LLAMA, {**base, "modules_in_block_to_quantize": [["mlp.up_proj"], ["mlp.down_proj"]]})
    assert {source for source, made in names_of(only).items() if made} == {"mlp.up_proj", "mlp.down_proj"}


def test_bitsandbytes_four_and_eight_bits():
    nf4 = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
    }
    maps = 32 * 7 * 16 * 4
    assert llama_bytes(nf4) == LINEARS // 2 + LINEARS // 64 * 4 + maps + KEPT
    doubled = LINEARS // 2 + LINEARS // 64 + LINEARS // 64 // 256 * 4 + maps + 32 * 7 * 256 * 4 + KEPT
    assert llama_bytes({**nf4, "bnb_4bit_use_double_quant": True}) == doubled
    int8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert llama_bytes(int8) == LINEARS + ROWS * 4 + KEPT
    skipping = quantised(LLAMA, {**nf4, "llm_int8_skip_modules": ["model.layers.1.mlp"]})
    assert names_of(skipping, 1)["mlp.up_proj"] is None
    assert names_of(skipping, 0)["mlp.up_proj"] == "nf4-single"
    assert names_of(skipping)["lm_head"] == "nf4-single"  # an own list replaces the default one


def compressed(groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": groups, **fields}


def test_compressed_tensors_groups_by_class_name_and_expression():
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    spec = quantised(
        LLAMA,
        compressed(
            {
                "group_0": {"targets": ["Linear"], "weights": int4, "input_activations": None},
                "group_1": {
                    "targets": ["re:.*down_proj$", "model.layers.1.self_attn.o_proj"],
                    "weights": fp8,
                    "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
                },
            },
            ignore=["lm_head", "re:model.layers.2.*"],
            kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor"},
        ),
    )
    assert spec.kv_scheme == "fp8"
    assert names_of(spec, 0)["self_attn.o_proj"] == "int4-g128"
    assert names_of(spec, 1)["self_attn.o_proj"] == names_of(spec, 0)["mlp.down_proj"] == "fp8-channel"
    assert set(names_of(spec, 2).values()) == {None}
    assert len(spec.groups) == 3


def numbers(kind: str, bits: int, strategy: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "num_bits": bits, "strategy": strategy, **fields}


INT8 = {"type": "int", "num_bits": 8}
FP8 = {"type": "float", "num_bits": 8}
FP4 = {"type": "float", "num_bits": 4}


@pytest.mark.parametrize(
    ("weights", "inputs", "name", "compute"),
    [
        (numbers("int", 8, "channel"), INT8, "w8a8", "int8"),
        (numbers("int", 8, "channel"), None, "w8a16", None),
        (numbers("int", 8, "group", group_size=128), None, "int8-g128", None),
        (numbers("int", 4, "channel"), INT8, "int4", "int8"),
        (numbers("int", 4, "group", group_size=128), FP8, "int4-g128", "fp8"),
        (numbers("float", 4, "tensor_group", group_size=16), FP4, "nvfp4", "fp4"),
        (numbers("float", 4, "tensor_group", group_size=16), None, "nvfp4-w4a16", None),
        (numbers("float", 4, "group", group_size=32), None, "mxfp4", None),
        (numbers("float", 8, "group", group_size=32), FP8, "mxfp8", "fp8"),
        (numbers("float", 8, "block", block_structure=[128, 128]), FP8, "fp8-block-128x128", "fp8"),
        (numbers("float", 8, "tensor"), FP8, "fp8", "fp8"),
    ],
)
def test_compressed_tensors_layouts(
    weights: dict[str, Any], inputs: dict[str, Any] | None, name: str, compute: str | None
):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    made = formats_of(quantised(LLAMA, compressed({"group_0": group}, ignore=["lm_head"])))
    assert made["mlp.up_proj"].name == name
    assert made["mlp.up_proj"].compute_dtype == compute
    assert made["lm_head"] is None


def test_mlx_in_either_entry_with_overrides():
    own = config(LLAMA)
    assert own is not None
    settings = {"group_size": 64, "bits": 4, "model.layers.1.mlp.up_proj": {"group_size": 32, "bits": 8}}
    spec = read_spec({**own, "quantization": {**settings, "lm_head": False}}, name="x")
    assert spec.embedding is not None
    assert spec.embedding.weight_format is not None
    assert names_of(spec)["mlp.up_proj"] == spec.embedding.weight_format.name == "mlx-4bit-g64"
    assert names_of(spec, 1)["mlp.up_proj"] == "mlx-8bit-g32"
    assert names_of(spec)["lm_head"] is None
    plain = read_spec({**own, "quantization": {"group_size": 64, "bits": 4}}, name="x")
    # 4.5 bits for 8.03e9 weights: the packed words are not billed as numbers of four bytes.
    assert weights_bytes(plain) * 8 / count_parameters(plain).total == pytest.approx(4.5, rel=0.001)


def test_other_methods():
    quanto = {"quant_method": "quanto", "weights": "int4"}
    assert llama_bytes(quanto) == LINEARS // 2 + LINEARS // 128 * 4 + KEPT
    torchao = {"quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}}}
    assert llama_bytes({"quant_method": "torchao", **torchao}) == LINEARS // 2 + LINEARS // 32 * 4 + KEPT
    assert llama_bytes({"quant_method": "torchao", "quant_type": "int8_weight_only"}) == (
        LINEARS + ROWS * 2 + KEPT
    )
    hqq = {"quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}
    assert (
        llama_bytes({"quant_method": "hqq", "skip_modules": ["lm_head"], **hqq})
        == LINEARS // 2 + LINEARS // 64 * 4 + KEPT
    )
    bitnet = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
    assert llama_bytes(bitnet) == LINEARS // 4 + 32 * 7 * 2 + KEPT
    rounded = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int", "sym": True}
    extra = {"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16}}}
    assert llama_bytes(rounded) == LINEARS // 2 + LINEARS // 128 * 5 // 2 + KEPT
    assert names_of(quantised(LLAMA, {**rounded, **extra}))["mlp.up_proj"] is None
    weight = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
    overall = {"weight": weight, "input_tensors": {"dtype": "fp8_e4m3"}}
    quark = {"quant_method": "quark", "global_quant_config": overall, "exclude": ["lm_head"]}
    assert llama_bytes(quark) == LINEARS + 32 * 7 * 8 + KEPT


@pytest.mark.parametrize("method", ["vptq", "higgs", "spqr", "fp_quant", "something_new"])
def test_unknown_methods_are_refused_by_name(method: str):
    with pytest.raises(UnsupportedError, match=f"quantisation method '{method}' is not covered"):
        quantised(LLAMA, {"quant_method": method})


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "gptq"}, "has no bits"),
        ({"quant_method": "awq", "bits": "four"}, "bits is not usable"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is not two whole numbers"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers is not a list"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({"quant_method": "compressed-tensors"}, "has no config_groups"),
        ({"quant_method": "exl3", "bits": 0}, "must lie between 0 and 16"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "has no quantized_layers"),
        ({"something": 1}, "names no quant_method"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:(": {}}}, "invalid expression"),
    ],
)
def test_unusable_configs_are_told(quantization: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        quantised(LLAMA, quantization)


@pytest.mark.parametrize(
    ("quantization", "value"),
    [
        ({"quant_method": "modelopt", "quant_algo": "W3A1"}, "W3A1"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "af4"}, "af4"),
        (
            compressed({"g": {"targets": ["MyLinear"], "weights": {"num_bits": 4, "group_size": 32}}}),
            "MyLinear",
        ),
        (compressed({"g": {"targets": ["Linear"], "weights": {"num_bits": 1}}}), "1"),
        ({"quant_method": "torchao", "quant_type": "int1_weight_only"}, "int1_weight_only"),
    ],
)
def test_variants_that_are_not_covered_are_named(quantization: dict[str, Any], value: str):
    with pytest.raises(UnsupportedError, match="not covered") as error:
        quantised(LLAMA, quantization)
    assert value in str(error.value.value)


def test_hf_quant_config_alone_and_beside():
    own = config(LLAMA)
    assert own is not None
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    file = {"producer": {"name": "modelopt"}, "quantization": inner}
    spec = read_spec(own, name="x", hf_quant_config=file)
    assert (spec.quantization, spec.kv_scheme) == ("modelopt fp8", "fp8")
    entry = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    newer = {**own, "quantization_config": entry}
    assert names_of(read_spec(newer, name="x", hf_quant_config=file))["mlp.up_proj"] == "nvfp4"


def test_an_unquantised_checkpoint_is_left_alone():
    spec = model(LLAMA)
    assert apply_checkpoint_quantization(spec, None) is spec
    assert apply_checkpoint_quantization(spec, {}) is spec
