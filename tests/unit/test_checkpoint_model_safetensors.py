"""safetensors against their config: every layout that tools write, and everything that can be odd."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import safetensors_bytes

import rooflens
from rooflens.errors import InputError, NotFoundError, RooflensError
from rooflens.models.accounting import count_parameters, weights_bytes
from rooflens.models.checkpoint.safetensors_header import DTYPE_BITS
from rooflens.models.families.registry import read_spec
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.models.stored import Finding, StoredWeights
from rooflens.models.tensors import checkpoint_tensors
from rooflens.units import BITS_PER_BYTE

Tensors = dict[str, tuple[str, tuple[int, ...]]]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 320, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16",
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 64, "vocab_size": 320, "max_position_embeddings": 4096,
    "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []},
}  # fmt: skip


def plain(config: dict[str, Any], dtype: str = "BF16") -> Tensors:
    """The checkpoint of an unquantised model of this config."""
    fields = {k: v for k, v in config.items() if k not in ("quantization_config", "quantization")}
    return {name: (dtype, shape) for name, shape in checkpoint_tensors(read_spec(fields, name="x"))}


def nbytes(tensors: Tensors) -> int:
    return sum(prod(shape) * DTYPE_BITS[dtype] // BITS_PER_BYTE for dtype, shape in tensors.values())


def write(folder: Path, config: dict[str, Any] | None, tensors: Tensors, *, shards: int = 1) -> Path:
    """A directory with a config and weights, in numbered shards with an index if asked for."""
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    where = {}
    for number in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        table, end = {}, 0
        for name in names[number::shards]:
            dtype, shape = tensors[name]
            size = prod(shape) * DTYPE_BITS[dtype] // BITS_PER_BYTE
            table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
            where[name] = file
            end += size
        (folder / file).write_bytes(safetensors_bytes(table, end))
    if shards > 1:
        index = {"metadata": {"total_size": nbytes(tensors)}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def stored(spec: ModelSpec) -> StoredWeights:
    assert spec.stored is not None
    return spec.stored


def found(spec: ModelSpec, kind: str) -> list[Finding]:
    return [finding for finding in stored(spec).findings if finding.kind == kind]


def exact(spec: ModelSpec, tensors: Tensors) -> None:
    """Every byte of the files is a byte of the model, and of its description."""
    assert weights_bytes(spec) == stored(spec).model_bytes == stored(spec).tensor_bytes == nbytes(tensors)


# The layouts, one function a tool: the tensors of an [out, in] matrix called ``module``.
Layout = Callable[[str, int, int], Tensors]
GROUP = 128


def awq(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.qweight": ("I32", (columns, rows // 8)),
        f"{module}.qzeros": ("I32", (columns // GROUP, rows // 8)),
        f"{module}.scales": ("F16", (columns // GROUP, rows)),
    }


def gptq(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.qweight": ("I32", (columns // 8, rows)),
        f"{module}.qzeros": ("I32", (columns // GROUP, rows // 8)),
        f"{module}.scales": ("F16", (columns // GROUP, rows)),
        f"{module}.g_idx": ("I32", (columns,)),
    }


def packed(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.weight_packed": ("I32", (rows, columns // 8)),
        f"{module}.weight_scale": ("BF16", (rows, columns // GROUP)),
        f"{module}.weight_shape": ("I64", (2,)),
    }


def fp8_block(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.weight": ("F8_E4M3", (rows, columns)),
        f"{module}.weight_scale_inv": ("F32", (ceil(rows / 128), ceil(columns / 128))),
    }


def fp8_channel(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.weight": ("F8_E4M3", (rows, columns)),
        f"{module}.weight_scale": ("BF16", (rows, 1)),
    }


def nvfp4(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.weight": ("U8", (rows, columns // 2)),
        f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
        f"{module}.weight_scale_2": ("F32", ()),
        f"{module}.input_scale": ("F32", ()),
    }


def nf4(module: str, rows: int, columns: int) -> Tensors:
    blocks = rows * columns // 64
    return {
        f"{module}.weight": ("U8", (rows * columns // 2, 1)),
        f"{module}.weight.absmax": ("U8", (blocks,)),
        f"{module}.weight.quant_map": ("F32", (16,)),
        f"{module}.weight.nested_absmax": ("F32", (ceil(blocks / 256),)),
        f"{module}.weight.nested_quant_map": ("F32", (256,)),
        f"{module}.weight.quant_state.bitsandbytes__nf4": ("U8", (87,)),
    }


def bnb_int8(module: str, rows: int, columns: int) -> Tensors:
    return {
        f"{module}.weight": ("I8", (rows, columns)),
        f"{module}.SCB": ("F32", (rows,)),
        f"{module}.weight_format": ("U8", ()),
    }


def mlx(module: str, rows: int, columns: int, *, bits: int = 4) -> Tensors:
    return {
        f"{module}.weight": ("U32", (rows, columns * bits // 32)),
        f"{module}.scales": ("BF16", (rows, columns // 64)),
        f"{module}.biases": ("BF16", (rows, columns // 64)),
    }


def quantised(layout: Layout, *, everything: bool = False) -> Tensors:
    """The Llama with its layers' matrices in a layout; head and token table too if ``everything``."""
    made: Tensors = {}
    for name, (dtype, shape) in plain(LLAMA).items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and (".layers." in name or everything):
            made |= layout(module, *shape)
        else:
            made[name] = (dtype, shape)
    return made


BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
INT4_GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
FP8_ROW = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def config_groups(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


# (layout, its config, bytes beside the weights that the tool's usual layout does not have, bits a weight)
LAYOUTS: dict[str, tuple[Layout, dict[str, Any], int, str]] = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}, 0, "awq"),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}, 0, "gptq"),
    # weight_shape, two 64-bit numbers for each of 14 matrices
    "packed": (packed, config_groups(INT4_GROUP), 14 * 16, "compressed-tensors"),
    "fp8 block": (fp8_block, BLOCK, 0, "fp8"),
    "fp8 channel": (fp8_channel, config_groups(FP8_ROW, {"num_bits": 8, "type": "float", "dynamic": True}), 0,
                    "compressed-tensors"),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, 0,
              "modelopt nvfp4"),
    # the state of each matrix as JSON, 87 B here
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                  "bnb_4bit_use_double_quant": True}, 14 * 87, "bitsandbytes"),
    # weight_format, one byte for each matrix
    "bnb int8": (bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}, 14, "bitsandbytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_quantised_layouts(name: str, tmp_path: Path) -> None:
    layout, quantization, aside, label = LAYOUTS[name]
    tensors = quantised(layout)
    spec = read_model(write(tmp_path / "m", {**LLAMA, "quantization_config": quantization}, tensors))
    exact(spec, tensors)
    assert spec.quantization == label
    assert count_parameters(spec).total == count_parameters(read_spec(LLAMA, name="x")).total
    assert stored(spec).config_bytes == nbytes(tensors) - aside
    assert stored(spec).findings == ()
    assert len(spec.groups) == 1


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_mlx_packs_whole_words(bits: int, tmp_path: Path) -> None:
    """MLX stores everything packed in 32-bit words: a header's elements are not the model's weights."""
    tensors = quantised(lambda *args: mlx(*args, bits=bits), everything=True)
    config = {**LLAMA, "quantization": {"bits": bits, "group_size": 64}}
    spec = read_model(write(tmp_path / "m", config, tensors))
    exact(spec, tensors)
    assert stored(spec).config_bytes == nbytes(tensors)
    assert stored(spec).findings == ()
    total = count_parameters(spec).total
    assert total == count_parameters(read_spec(LLAMA, name="x")).total
    packed_words = next(row for row in stored(spec).types if row.name == "U32")
    assert packed_words.elements < total  # what a count of elements would take for parameters
    assert weights_bytes(spec) < packed_words.elements * 32 // bits * 2  # and never 4 B a weight


def test_packed_weights_of_which_the_config_says_nothing(tmp_path: Path) -> None:
    tensors = quantised(lambda *args: mlx(*args, bits=4), everything=True)
    spec = read_model(write(tmp_path / "m", LLAMA, tensors))
    exact(spec, tensors)
    assert spec.quantization == "4-bit packed"
    assert found(spec, "packing")[0].count == 16  # 14 in layers, the table, the head
    assert found(spec, "packing")[0].text.startswith("the config names no quantisation, but 16 tensors")


def test_matrices_quantised_otherwise_than_the_config_says(tmp_path: Path) -> None:
    tensors = quantised(awq)
    module = "model.layers.1.mlp.down_proj"
    tensors = {k: v for k, v in tensors.items() if not k.startswith(module)}
    tensors[f"{module}.weight"] = ("F16", (256, 512))
    tensors = {k: v for k, v in tensors.items() if not k.startswith("lm_head")} | awq("lm_head", 320, 256)
    config = {**LLAMA, "torch_dtype": "float16", "quantization_config": LAYOUTS["awq"][1]}
    spec = read_model(write(tmp_path / "m", config, tensors))
    exact(spec, tensors)
    texts = [finding.text for finding in found(spec, "packing")]
    assert texts == [
        "quantised by the config but not in the files, 1: 'model.layers.1.mlp.down_proj.weight'",
        "quantised in the files but not by the config, 1: 'lm_head.qweight'",
    ]


def test_mxfp4_experts(tmp_path: Path) -> None:
    tensors: Tensors = {}
    for name, (dtype, shape) in plain(GPT_OSS).items():
        if name.endswith(("gate_up_proj", "down_proj")) and ".experts." in name:
            experts, columns, rows = shape  # stored [in, out] in 16 bits, [out, in] in blocks
            tensors[f"{name}_blocks"] = ("U8", (experts, rows, columns // 32, 16))
            tensors[f"{name}_scales"] = ("U8", (experts, rows, columns // 32))
        else:
            tensors[name] = (dtype, shape)
    spec = read_model(write(tmp_path / "m", GPT_OSS, tensors))
    exact(spec, tensors)
    assert stored(spec).config_bytes == nbytes(tensors)
    assert stored(spec).findings == ()
    assert next(row for row in stored(spec).components if row.name == "experts").tensors == 2 * 6


def test_experts_stacked_and_apart(tmp_path: Path) -> None:
    """Whoever saves a model anew may stack the experts that were apart, or take stacked ones apart."""
    config = {
        **LLAMA, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 64,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    }  # fmt: skip
    apart = plain(config)
    stacked = {k: v for k, v in apart.items() if ".experts." not in k}
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        stacked[f"{prefix}gate_up_proj"] = ("BF16", (4, 128, 256))
        stacked[f"{prefix}down_proj"] = ("BF16", (4, 256, 64))
    for number, tensors in enumerate((apart, stacked)):
        spec = read_model(write(tmp_path / str(number), config, tensors))
        exact(spec, tensors)
        assert stored(spec).findings == ()


def test_names_wherever_the_language_model_is(tmp_path: Path) -> None:
    tensors = {k.removeprefix("model."): v for k, v in plain(LLAMA).items()}
    exact(read_model(write(tmp_path / "a", LLAMA, tensors)), tensors)
    tensors = {f"language_model.{k}": v for k, v in plain(LLAMA).items()}
    exact(read_model(write(tmp_path / "b", LLAMA, tensors)), tensors)


def test_components_and_types(tmp_path: Path) -> None:
    tensors = plain(LLAMA)
    tensors["model.norm.weight"] = ("F32", (256,))
    spec = read_model(write(tmp_path / "m", LLAMA, tensors))
    exact(spec, tensors)
    # bf16: table and head 320 x 256; a layer's attention 256 x (256 + 128 + 128 + 256), its feed-forward
    # 3 x 256 x 512 and two norms of 256; the last norm in fp32.
    assert {row.name: row.bytes for row in stored(spec).components} == {
        "embedding": 2 * 320 * 256,
        "attention": 2 * 2 * 256 * 768,
        "mlp": 2 * 2 * 3 * 256 * 512,
        "norms": 2 * 4 * 256 + 4 * 256,
        "head": 2 * 320 * 256,
    }
    assert [(row.name, row.tensors) for row in stored(spec).types] == [("BF16", 20), ("F32", 1)]
    assert found(spec, "dtype")[0].tensors == ("model.norm.weight",)
    document = rooflens.inspect(spec).to_dict()
    assert document["checkpoint"]["components"][0]["name"] == "embedding"
    assert document["evidence"]["weights"] == "exact"
    json.dumps(document, allow_nan=False)
    assert rooflens.inspect("Qwen/Qwen2.5-7B").to_dict()["checkpoint"] is None


def test_a_tied_table_stored_twice(tmp_path: Path) -> None:
    config = {**LLAMA, "tie_word_embeddings": True}
    tensors = plain(LLAMA)
    spec = read_model(write(tmp_path / "m", config, tensors))
    exact(spec, tensors)
    assert count_parameters(spec).total == count_parameters(read_spec(config, name="x")).total
    assert found(spec, "duplicate")[0].bytes == 2 * 320 * 256
    assert "a duplicate of the token table" in found(spec, "loaded")[0].text  # it is 7 % of this model

    tensors.pop("model.embed_tokens.weight")  # saved under the head's name alone
    spec = read_model(write(tmp_path / "n", config, tensors))
    exact(spec, tensors)
    assert stored(spec).findings == ()


def test_files_that_hold_another_amount_than_is_loaded(tmp_path: Path) -> None:
    """3.7 G parameters of 16 bits that load as 12.81 GiB: the gap is said, with what may be behind it."""
    tensors = plain(LLAMA)
    upcast: Tensors = {k: ("F32" if "mlp" in k else kind, shape) for k, (kind, shape) in tensors.items()}
    upcast["model.layers.0.self_attn.q_proj.lora_A.weight"] = ("BF16", (16, 256))
    upcast["model.embed_tokens_copy.weight"] = ("BF16", (320, 256))
    spec = read_model(write(tmp_path / "m", LLAMA, upcast))
    extra = 2 * 2 * 3 * 256 * 512  # the feed-forward, two more bytes a weight
    gap = found(spec, "loaded")[0]
    assert gap.bytes == extra == weights_bytes(spec) - nbytes(tensors)
    for suspect in ("parts kept in fp32", "an adapter", "tensors of the token table's shape"):
        assert suspect in gap.text
    assert weights_bytes(spec) == stored(spec).model_bytes
    assert {row.name for row in stored(spec).components} >= {"adapters", "unknown"}

    few: Tensors = {k: ("F32" if "norm" in k else kind, shape) for k, (kind, shape) in tensors.items()}
    assert not found(read_model(write(tmp_path / "n", LLAMA, few)), "loaded")  # well below 5 %


def test_a_config_without_a_dtype_takes_the_files(tmp_path: Path) -> None:
    config = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
    for written, dtype in (("F32", "fp32"), ("F16", "fp16")):
        spec = read_model(write(tmp_path / written, {**config, "torch_dtype": None}, plain(LLAMA, written)))
        assert spec.dtype == dtype
        assert not found(spec, "loaded")
        assert not found(spec, "dtype")


def test_missing_and_unknown_tensors(tmp_path: Path) -> None:
    tensors = plain(LLAMA)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    tensors |= {
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (32,)),
        "model.layers.0.self_attn.k_proj.k_scale": ("F32", ()),
        "model.layers.0.mystery.weight": ("BF16", (10,)),
        "model.layers.2.self_attn.q_proj.weight": ("BF16", (256, 256)),
        "mtp.fc.weight": ("BF16", (256, 512)),
    }
    spec = read_model(write(tmp_path / "m", LLAMA, tensors))
    assert found(spec, "missing")[0].tensors == ("model.layers.1.mlp.up_proj",)
    assert found(spec, "unknown")[0].tensors == ("model.layers.0.mystery.weight",)
    rows = {row.name: row.bytes for row in stored(spec).components}
    assert rows["tables"] == 4 * 32 + 4
    assert rows["mtp"] == 2 * (256 * 256 + 256 * 512)
    assert count_parameters(spec).mtp == 256 * 256 + 256 * 512
    assert stored(spec).model_bytes == nbytes(tensors) - rows["tables"] - rows["mtp"] - rows["unknown"]


@pytest.mark.parametrize(
    ("field", "wrong", "note"),
    [
        ("head_dim", 32, "head_dim 32 is refuted by the shapes of the weights: 64"),
        ("intermediate_size", 1024, "intermediate_size 1024 is refuted"),
        ("vocab_size", 300, "vocab_size 300 is refuted by the shapes of the weights: 320"),
        ("num_key_value_heads", 4, "num_key_value_heads 4 is refuted by the shapes of the weights: 2"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_shapes_decide_where_one_field_is_wrong(
    field: str, wrong: int, note: str, nested: bool, tmp_path: Path
) -> None:
    tensors = plain(LLAMA)
    config = {**LLAMA, field: wrong}
    if nested:
        config = {"model_type": "mistral3", "text_config": {**config, "model_type": "mistral"}}
        tensors = {f"language_model.{k}": v for k, v in tensors.items()}
    spec = read_model(write(tmp_path / "m", config, tensors))
    assert any(note in text for text in spec.notes)
    assert weights_bytes(spec) == stored(spec).model_bytes == nbytes(tensors)


def test_shapes_that_no_field_explains_are_refused(tmp_path: Path) -> None:
    tensors = plain(LLAMA)
    tensors["model.layers.1.self_attn.o_proj.weight"] = ("BF16", (256, 300))
    with pytest.raises(InputError, match=r"o_proj\.weight' is \[256, 300\].*makes it \[256, 256\]"):
        read_model(write(tmp_path / "a", LLAMA, tensors))
    with pytest.raises(InputError, match=r"more do not fit either.*name config\.json"):
        read_model(write(tmp_path / "b", {**LLAMA, "hidden_size": 512}, plain(LLAMA)))
    assert read_model(tmp_path / "b" / "config.json").hidden_size == 512  # by the config alone


def test_towers_are_measured(tmp_path: Path) -> None:
    tensors = plain(LLAMA) | {
        "vision_tower.blocks.0.weight": ("BF16", (64, 64)),
        "multi_modal_projector.linear.weight": ("BF16", (256, 64)),
    }
    spec = read_model(write(tmp_path / "m", LLAMA, tensors))
    exact(spec, tensors)
    assert count_parameters(spec).components == {"vision": 64 * 64, "projector": 256 * 64}
    assert [finding.kind for finding in stored(spec).findings] == ["component", "component"]


def test_shards_and_single_files(tmp_path: Path) -> None:
    tensors = plain(LLAMA)
    folder = write(tmp_path / "m", LLAMA, tensors, shards=3)
    for path in (folder, *sorted(folder.glob("*.safetensors"))):
        spec = read_model(path)
        exact(spec, tensors)
        assert stored(spec).files == 3
    next(iter(folder.glob("*2-of-*.safetensors"))).unlink()
    with pytest.raises(NotFoundError, match=r"1 of 3 files.*or name its config\.json to go by that alone"):
        read_model(folder)
    alone = write(tmp_path / "n", None, tensors)
    with pytest.raises(InputError, match=r"model\.safetensors has no config\.json beside it"):
        read_model(alone)


def test_adapters_and_pickles_leave_the_config(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", LLAMA, plain(LLAMA))
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    spec = read_model(folder)
    assert spec.stored is None
    assert any("adapter_model.safetensors is not the model's weights" in note for note in spec.notes)
    (folder / "adapter_model.safetensors").rename(folder / "pytorch_model.bin")
    assert read_model(folder).stored is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
        ((2**40).to_bytes(8, "little") + b"{}", "header"),
    ],
)
def test_damaged_files(data: bytes, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", LLAMA, plain(LLAMA))
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(data)
    with pytest.raises(RooflensError, match=message):
        read_model(folder)
    path.write_bytes(raw[: len(raw) - 100])
    with pytest.raises(InputError, match="cut off"):
        read_model(folder)
