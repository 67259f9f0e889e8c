"""A few own runs tighten the estimate, are kept, and are used when asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import rooflens
from rooflens import api
from rooflens.errors import InputError, NotFoundError

HEAD = "row_id,device,engine,model,batch,input_len,output_len,metric,value,flags\n"


def runs(tmp_path: Path, factor: float, *more: str) -> Path:
    """Decode of three models at batch 1 on an H100, ``factor`` times as slow as the likely time."""
    lines = []
    for number, model in enumerate(("llama-3.1-8b", "llama-2-7b", "Qwen/Qwen2.5-14B")):
        mid = rooflens.plan(model, "h100-sxm", engine="vllm", context=575).decode.estimate.mid
        lines.append(f"r{number},h100-sxm,vLLM,{model},1,512,128,tpot_ms,{mid * factor * 1e3},\n")
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + "".join(lines) + "".join(f"{line}\n" for line in more))
    return path


def test_runs_move_and_narrow_the_range(tmp_path: Path) -> None:
    (one,) = api.calibrate([runs(tmp_path, 1.2)], save=False).tightened
    assert one.shift == pytest.approx(1.2, rel=0.02)
    assert one.after < 0.75 * one.before
    assert one.narrower_by > 0.3
    assert one.to_dict()["narrower_by"] == one.narrower_by


def test_what_is_saved_is_used_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path / "home"))
    with pytest.raises(NotFoundError, match="no calibration"):
        api.plan("llama-3.1-8b", "h100-sxm", runs="latest")
    result = api.calibrate([runs(tmp_path, 1.2)])
    assert result.path is not None
    assert Path(result.path).is_file()
    plain, tuned = (api.plan("llama-3.1-8b", "h100-sxm", engine="vllm", runs=own) for own in (None, "latest"))
    was, now = plain.decode.estimate, tuned.decode.estimate
    assert now.mid == pytest.approx(1.2 * was.mid, rel=0.02)
    assert now.high / now.low < 0.75 * was.high / was.low
    assert tuned.prefill.estimate == plain.prefill.estimate  # no prefill was measured
    other = api.plan("llama-3.1-8b", "h200-sxm", engine="vllm", runs=result.path)
    assert other.decode.estimate == api.plan("llama-3.1-8b", "h200-sxm", engine="vllm").decode.estimate


def test_useless_rows_are_named_and_left_out(tmp_path: Path) -> None:
    path = runs(
        tmp_path,
        1.1,
        "f,h100-sxm,vLLM,llama-2-7b,1,512,128,tpot_ms,9,noisy",
        "b,h100-sxm,vLLM,llama-2-7b,1,512,128,tpot_ms,0.01,",
        "u,h900,vLLM,llama-2-7b,1,512,128,tpot_ms,9,",
    )
    result = api.calibrate([path], save=False)
    assert len(result.tightened[0].residuals.logs) == 3
    assert [row for row, _ in result.unusable] == ["1 rows", "f", "b"]


def test_nothing_usable_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + "b,h100-sxm,vLLM,llama-2-7b,1,512,128,tpot_ms,0.01,\n")
    with pytest.raises(InputError, match="no run can be used"):
        api.calibrate([path], save=False)
    with pytest.raises(InputError, match="no runs"):
        api.calibrate([])
    with pytest.raises(NotFoundError, match="does not exist"):
        api.plan("llama-2-7b", "h100-sxm", runs=tmp_path / "none.json")
