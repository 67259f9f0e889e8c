"""Weight files on the command line: full models for inspect and plan, and errors in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_cli_json import document, run

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # the builders of small files

from gguf_models import converted, model_bytes, tensors_of, write_model

import rooflens

ROWS = {"name", "tensors", "elements", "bytes"}


def test_inspect_shows_the_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(write_model(tmp_path, "deepseek3"))
    got = document(capsys, "inspect", path)
    assert got == json.loads(json.dumps(rooflens.inspect(path).to_dict()))
    held = got["checkpoint"]
    assert set(held) == {
        "format", "evidence", "files", "file_bytes", "tensor_bytes", "model_bytes", "config_bytes",
        "components", "types", "findings",
    }  # fmt: skip
    assert held["evidence"] == "exact: from the file's header"
    assert all(set(row) == ROWS for row in held["components"] + held["types"])
    assert all(set(x) == {"kind", "text", "count", "bytes", "tensors"} for x in held["findings"])
    assert got["weights_bytes"] == held["model_bytes"]

    code, out, _ = run(capsys, "inspect", path)
    assert code == 0
    for words in ("Stored weights  gguf, one file", "routed experts", "kv_b_proj as attn_k_b and attn_v_b"):
        assert words in out
    code, out, _ = run(capsys, "inspect", path, "--lang", "zh")
    assert "存储的权重" in out


def test_plan_reads_what_the_file_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(write_model(tmp_path, "llama"))
    got = document(capsys, "plan", path, "--device", "rtx-4090")
    held = got["model"]["checkpoint"]
    assert got["memory"]["weights_bytes"] == held["model_bytes"]
    got = document(capsys, "plan", path, "--device", "rtx-4090", "--engine", "llama.cpp")
    table = next(row["bytes"] for row in held["components"] if row["name"] == "embedding")
    assert got["memory"]["weights_bytes"] == held["model_bytes"] - table  # llama.cpp leaves it with the CPU


def test_a_file_of_another_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3", file="sha256-0123456789abcdef")  # as ollama keeps them
    got = document(capsys, "inspect", str(tmp_path / "sha256-0123456789abcdef"))
    assert got["model_type"] == "qwen3"


def test_errors_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = converted()["llama"]
    raw = model_bytes(model["metadata"], tensors_of(model))
    path = tmp_path / "model.gguf"
    for data, words in (
        (raw[:-1000], "cut off"),
        (raw[:100], "cut off or damaged"),
        (model_bytes(model["metadata"] | {"general.architecture": "novel"}, {}), "'novel' is not covered"),
        (model_bytes(model["metadata"] | {"llama.block_count": 10**9}, {}), "llama.block_count"),
        (model_bytes(model["metadata"], {}), "lacks 29 matrices"),
    ):
        path.write_bytes(data)
        code, out, err = run(capsys, "inspect", str(path))
        assert (code, out) == (2, "")
        assert words in err
        assert "Traceback" not in err
        assert err.count("\n") == 1
        code, out, err = run(capsys, "plan", str(path), "--device", "h100", "--json")
        assert code == 2
        assert words in json.loads(err)["error"]["what"]
