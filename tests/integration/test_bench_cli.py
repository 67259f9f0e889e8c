"""``rooflens bench``: figures of every grid, what is skipped and why, and going on after an interruption."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rooflens.bench import grid  # noqa: E402
from rooflens.bench.answers import CutShortError  # noqa: E402
from rooflens.bench.cases import GRIDS, SIZES, Case  # noqa: E402
from rooflens.bench.fit import blocks_of, why_not  # noqa: E402
from rooflens.cli.main import main  # noqa: E402
from rooflens.runtime import NativeBackend  # noqa: E402

torch.set_num_threads(1)
RATES = ["--peak", "1e12", "--bandwidth", "20e9"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *args, "--lang", "en"])
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def points(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    code, out, _ = call(capsys, *args, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["finished"]
    assert all(point["status"] == "done" for point in document["points"]), document["points"]
    found: list[dict[str, Any]] = document["points"]
    return found


def test_baseline(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = points(capsys, "baseline", tiny)
    assert len(rows) == len(GRIDS["baseline"]["small"])
    for row in rows:
        assert 0 < row["queue_s"] < row["ttft_s"]
        assert min(row["tpot_s"], row["prefill_step_s"], row["decode_step_s"], row["tokens_per_s"]) > 0


def test_memory_is_what_the_shape_says(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    # 2 layers, keys and values of 2 heads of 16 features in fp32: 2 x 2 x 2 x 16 x 4 = 512 bytes per token.
    for row in points(capsys, "memory", tiny, "--dtype", "fp32"):
        tokens = row["prompt"] + row["output"] - 1  # the last token is never kept
        assert row["kv_needed_bytes"] == 512 * row["batch"] * tokens
        blocks = row["batch"] * -(-tokens // 16)
        assert row["kv_peak_bytes"] <= 512 * 16 * blocks <= row["kv_total_bytes"]
        assert row["per_step"][0]["weights_bytes"] == row["weights_bytes"]


def test_the_batch_curve_has_its_bound_and_its_knee(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "batch", tiny, *RATES, "--json")
    document = json.loads(out)
    assert code == 0
    assert [point["batch"] for point in document["points"]] == [1, 2, 4, 8]
    bounds = [point["bound_s"] for point in document["points"]]
    assert bounds == sorted(bounds)
    assert document["reading"]["sentence"]


def test_without_roofs_the_curve_is_measured_alone(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "batch", tiny)
    assert code == 0
    assert "rooflens probe --quick" in " ".join(out.split())


def test_a_prefix_hit_computes_less(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    none, half, whole = points(capsys, "prefix", tiny)
    assert none["hit_share"] == 0
    assert half["hit_share"] == 0.5
    # Of a wholly cached prompt the last token is computed again: its block of 16 is copied or recomputed.
    assert 1 - 16 / 256 <= whole["hit_share"] < 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [("baseline", "time to first token"), ("memory", "KV cache in blocks"), ("prefix", "new prompt")],
)
def test_every_kind_has_a_chart(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: str
) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    path = tmp_path / "bench.svg"
    code, _, _ = call(capsys, kind, tiny, "-o", str(path))
    assert code == 0
    assert words in path.read_text()


@pytest.mark.parametrize("name", ["bench.json", "bench.csv", "bench.svg"])
def test_files(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name.endswith("svg"):
        pytest.importorskip("altair")
        pytest.importorskip("vl_convert")
    path = tmp_path / name
    code, _, _ = call(capsys, "batch", tiny, *RATES, "-o", str(path))
    assert code == 0
    if name.endswith("json"):
        assert json.loads(path.read_text())["schema"] == "rooflens.bench/1"
    elif name.endswith("csv"):
        assert [row["batch"] for row in csv.DictReader(path.open())] == ["1", "2", "4", "8"]
    else:
        assert path.read_text().startswith("<svg")


def test_what_does_not_fit_is_skipped_with_both_numbers(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (Case(1, 1, 16, 4), Case(1, 1, 600, 4))
    monkeypatch.setitem(GRIDS["baseline"], "small", cases)
    code, out, _ = call(capsys, "baseline", tiny)
    assert code == 0
    assert "604 tokens exceed the context of 512" in " ".join(out.split())


def test_the_ledger_refuses_more_sequences_than_fit(tiny: str) -> None:
    backend = NativeBackend(tiny, device="cpu", dtype="fp32")
    case = Case(64, 64, 400, 100)
    gib = 2**30
    assert why_not(backend, case, capacity=64 * gib) is None
    # 2 GiB x 0.9 less weights, a step's activations and the framework: room for some, not for 10,000.
    reason = why_not(backend, replace(case, batch=10_000), capacity=2 * gib)
    assert reason is not None
    assert "10,000 sequences of 500 tokens" in reason
    assert blocks_of(case) == 64 * 32 + 1  # 500 tokens in blocks of 16


def test_an_interrupted_run_goes_on(
    tiny: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ran = grid.run_case, []

    def cut(backend: Any, kind: Any, case: Case, **named: Any) -> dict[str, Any]:
        if len(ran) == 2:
            ran.append(None)
            raise CutShortError("interrupted")
        ran.append(case)
        return real(backend, kind, case, **named)

    monkeypatch.setattr(grid, "run_case", cut)
    code, out, _ = call(capsys, "baseline", tiny)
    assert code == 1
    assert "2 of 4 cases" in out
    assert len(list((home / "benches").glob("*.json"))) == 1
    code, out, _ = call(capsys, "baseline", tiny)
    assert code == 0
    assert "2 cases are from the interrupted run" in " ".join(out.split())
    assert [case for case in ran if case is not None] == list(GRIDS["baseline"]["small"])
    assert not list((home / "benches").glob("*.json"))


def test_a_failing_case_is_told_and_the_others_run(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rooflens.errors import CapacityError

    real = grid.run_case

    def fails(backend: Any, kind: Any, case: Case, **named: Any) -> dict[str, Any]:
        if case.batch == 4:
            raise CapacityError("a step does not fit in memory")
        return real(backend, kind, case, **named)

    monkeypatch.setattr(grid, "run_case", fails)
    code, out, _ = call(capsys, "baseline", tiny, "--json")
    assert code == 0
    states = [point["status"] for point in json.loads(out)["points"]]
    assert sorted(set(states)) == ["done", "failed"]


def test_random_weights_are_benched_too(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert points(capsys, "prefix", str(Path(tiny) / "config.json"), "--random-weights")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["baseline", "-o", "x.txt"], ".json, .csv"),
        (["batch", "--device-spec", "no-such-device"], "no-such-device"),
        (["baseline", "--size", "huge"], "huge"),
    ],
)
def test_bad_input(tiny: str, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    code, _, err = call(capsys, args[0], tiny, *args[1:])
    assert code == 2
    assert message in err


def test_grids_grow() -> None:
    for sizes in GRIDS.values():
        assert list(sizes) == list(SIZES)
        counts = [len(cases) for cases in sizes.values()]
        assert counts == sorted(counts)
        for cases in sizes.values():
            assert len(set(cases)) == len(cases)
