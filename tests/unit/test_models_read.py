"""The one door: what counts as a path, a bundled name, fields; caching; and every way to be refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.accounting import count_parameters, kv_sequence_bytes, weights_bytes
from rooflens.models.bundled import (
    CONFIG,
    QUANT_CONFIG,
    bare_names,
    bundled_models,
    find_bundled,
    match_bundled,
    near_bundled,
    normalised,
)
from rooflens.models.families.registry import FAMILIES
from rooflens.models.free_form import dense
from rooflens.models.json_input import read_json_object
from rooflens.models.read import clear_model_cache, read_model
from rooflens.models.tensors import checkpoint_tensors

FIELDS: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 96,
    "torch_dtype": "float16",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    clear_model_cache()


def write(path: Path, fields: dict[str, Any] | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fields if isinstance(fields, bytes) else json.dumps(fields).encode())
    return path


# --- bundled ------------------------------------------------------------------------------------------


def test_there_are_many_and_each_is_whole() -> None:
    models = bundled_models()
    assert len(models) >= 60
    assert len({normalised(model.id) for model in models}) == len(models)
    for model in models:
        assert model.fidelity
        assert model.source
        assert read_json_object(model.directory / CONFIG)["model_type"]


def test_names_written_down_are_unique() -> None:
    seen: dict[str, str] = {}
    for model in bundled_models():
        for name in (model.id, *model.aliases, *model.siblings):
            assert seen.setdefault(normalised(name), model.id) == model.id, name


@pytest.mark.parametrize("model", bundled_models(), ids=lambda model: model.id)
def test_a_bundled_model_is_read_or_its_architecture_is_not_covered(model: Any) -> None:
    model_type = read_json_object(model.directory / CONFIG)["model_type"]
    if model_type not in FAMILIES:
        with pytest.raises(UnsupportedError, match=f"'{model_type}'"):
            read_model(model.id)
        return
    spec = read_model(model.id)
    assert spec.name == model.id
    assert count_parameters(spec).total > 0
    assert weights_bytes(spec) > 0


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen/qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen2.5 7B Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen2.5:7b", "Qwen/Qwen2.5-7B"),
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("Llama2_7B", "meta-llama/Llama-2-7b-hf"),
        ("smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpt2", "openai-community/gpt2"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
    ],
)
def test_names_that_people_write(name: str, model_id: str) -> None:
    model = find_bundled(name)
    assert model is not None
    assert model.id == model_id


@pytest.mark.parametrize("name", ["someone/llama-2-7b", "llama-27b", "llama", "", "/", "gpt2/"])
def test_names_that_only_look_alike(name: str) -> None:
    assert find_bundled(name) is None


def test_a_sibling_is_answered_under_its_own_name_with_a_note() -> None:
    match = match_bundled("llama-2-7b-chat")
    assert match is not None
    assert (match.model.id, match.sibling) == ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf")
    spec = read_model("meta-llama/Llama-2-7b-chat-hf")
    assert spec.name == "meta-llama/Llama-2-7b-chat-hf"
    assert any("meta-llama/Llama-2-7b-hf" in note for note in spec.notes)


def test_a_copy_that_is_not_the_published_file_says_so() -> None:
    assert any("bundled config" in note for note in read_model("gpt2").notes)
    assert not any("bundled config" in note for note in read_model("Qwen/Qwen3-0.6B").notes)


@pytest.mark.parametrize("tail", ["", "/", "/tree/main", "/blob/main/config.json"])
def test_the_address_of_a_models_page(tail: str) -> None:
    assert read_model(f"https://huggingface.co/Qwen/Qwen3-0.6B{tail}") is read_model("Qwen/Qwen3-0.6B")


def test_bare_names() -> None:
    assert bare_names("meta-llama/Meta-Llama-3.1-8B-hf") == (
        "Meta-Llama-3.1-8B-hf",
        "Meta-Llama-3.1-8B",
        "Llama-3.1-8B",
    )


def test_near_names() -> None:
    assert "Qwen/Qwen2.5-7B-Instruct" in near_bundled("Qwen/Qwen2.5-7B-Instrct")
    assert near_bundled("zzzzzz") == []


# --- paths and fields ---------------------------------------------------------------------------------


def test_a_folder_a_file_and_fields_are_the_same_model(tmp_path: Path) -> None:
    config = write(tmp_path / "my-model" / CONFIG, FIELDS)
    loose = write(tmp_path / "loose.json", FIELDS)
    # 96 x 48 twice, 2 layers of 4 x 48 x 48 + 3 x 48 x 40 + 2 x 48, and the last norm
    total = 2 * 96 * 48 + 2 * (4 * 48 * 48 + 3 * 48 * 40 + 2 * 48) + 48
    for source, name in (
        (config, "my-model"),
        (config.parent, "my-model"),
        (str(config.parent), "my-model"),
        ("my-model", "my-model"),
        ("./my-model/", "my-model"),
        (loose, "loose"),
        (FIELDS, "llama"),
        ({**FIELDS, "_name_or_path": "me/mine"}, "me/mine"),
    ):
        spec = read_model(source)
        assert spec.name == name
        assert count_parameters(spec).total == total


def test_the_hubs_cache_folder_has_the_repositorys_name(tmp_path: Path) -> None:
    config = write(tmp_path / "models--me--mine" / "snapshots" / "0123abcd" / CONFIG, FIELDS)
    assert read_model(config).name == "me/mine"


def test_a_spec_goes_through() -> None:
    spec = dense(8e9)
    assert read_model(spec) is spec


def test_an_existing_path_goes_before_a_bundled_name(tmp_path: Path) -> None:
    write(tmp_path / "gpt2" / CONFIG, FIELDS)
    assert read_model("gpt2").model_type == "llama"
    shutil.rmtree(tmp_path / "gpt2")
    (tmp_path / "gpt2").mkdir()  # an empty folder is no model
    assert read_model("gpt2").model_type == "gpt2"


def test_modelopts_file_is_read_from_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "quantised"
    write(folder / CONFIG, FIELDS)
    plain = weights_bytes(read_model(folder))
    algo = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write(
        folder / QUANT_CONFIG, {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": algo}
    )
    spec = read_model(folder)
    assert spec.quantization is not None
    assert weights_bytes(spec) < plain


def test_a_second_call_returns_the_same_spec_until_the_file_changes(tmp_path: Path) -> None:
    config = write(tmp_path / "model" / CONFIG, FIELDS)
    first = read_model(config)
    assert read_model(config) is first
    assert read_model("Qwen/Qwen3-0.6B") is read_model("qwen3-0.6b")
    write(config, {**FIELDS, "num_hidden_layers": 3})
    os.utime(config, ns=(1, 1))
    assert len(read_model(config).layers) == 3


# --- refusals -----------------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (LFS, "Git LFS pointer"),
        (b'{"model_type": "llama", "hidden_size": 48', "cut off|not valid JSON"),
        (b"", "empty"),
        (b"[1, 2]", "JSON object"),
        (b"{}", "model_type"),
        (json.dumps({"metadata": {}, "weight_map": {}}).encode(), "index of a checkpoint"),
        (json.dumps({**FIELDS, "num_hidden_layers": None}).encode(), "num_hidden_layers"),
        (json.dumps({**FIELDS, "hidden_size": -48}).encode(), "hidden_size"),
        (json.dumps({**FIELDS, "vocab_size": 0}).encode(), "vocab_size"),
        (json.dumps({**FIELDS, "num_attention_heads": 7}).encode(), "does not divide into 7 heads"),
    ],
)
def test_files_that_hold_no_model(content: bytes, message: str, tmp_path: Path) -> None:
    config = write(tmp_path / "bad" / CONFIG, content)
    for source in (config, config.parent, str(config)):
        with pytest.raises(RooflensError, match=message) as caught:
            read_model(source)
        assert caught.value.exit_code == 2
        assert "\n" not in caught.value.sentence()


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config.json and no weights") as caught:
        read_model(tmp_path)
    assert caught.value.next is not None
    write(tmp_path / "params.json", {"dim": 4096})
    with pytest.raises(InputError, match="vendor's own form"):
        read_model(tmp_path)


@pytest.mark.parametrize("name", ["./nothing", "nothing.json", "/no/such/folder", "~/no-such-folder-here"])
def test_a_path_that_is_not_there(name: str) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read_model(name)


@pytest.mark.parametrize("name", ["", "   "])
def test_no_name(name: str) -> None:
    with pytest.raises(InputError, match="no name"):
        read_model(name)


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(NotFoundError) as caught:
        read_model("qwen2.5-7b-instrukt")
    assert caught.value.next is not None
    assert "Qwen/Qwen2.5-7B-Instruct" in caught.value.next


@pytest.mark.parametrize("name", ["no such model", "x" * 5000, "a/b/c", "\0", "../../x y", "model@main"])
def test_odd_names_are_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(RooflensError) as caught:
        read_model(name)
    assert caught.value.exit_code == 2


# --- four numbers -------------------------------------------------------------------------------------


def test_a_model_of_four_numbers() -> None:
    spec = dense(8e9, active_params=2e9, kv_bytes_per_token=131072)
    count = count_parameters(spec)
    assert (count.total, count.active) == (8 * 10**9, 2 * 10**9)
    assert weights_bytes(spec) == 16 * 10**9  # two bytes each
    assert kv_sequence_bytes(spec, context=1000, kv_dtype="bf16") == 1000 * 131072
    assert weights_bytes(dense(8e9, weights_bytes=4.5e9)) == 45 * 10**8
    assert weights_bytes(dense(8e9, dtype="fp32")) == 32 * 10**9
    with pytest.raises(UnsupportedError, match="no tensors"):
        list(checkpoint_tensors(spec))


@pytest.mark.parametrize(
    ("params", "others", "field"),
    [
        (0, {}, "params"),
        (-1e9, {}, "params"),
        (float("nan"), {}, "params"),
        (float("inf"), {}, "params"),
        (8e9, {"active_params": 0}, "active_params"),
        (8e9, {"active_params": 9e9}, "active_params"),
        (8e9, {"kv_bytes_per_token": -1}, "kv_bytes_per_token"),
        (8e9, {"weights_bytes": 0}, "weights_bytes"),
        (8e9, {"dtype": "fp17"}, "dtype"),
        (True, {}, "params"),
    ],
)
def test_numbers_that_describe_no_model(params: float, others: dict[str, Any], field: str) -> None:
    with pytest.raises(RooflensError, match=field):
        dense(params, **others)
