"""``rooflens doctor``: what is here, in a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflens.cli import doctor
from rooflens.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", *args])
    assert not exit_.value.code
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table(capsys: pytest.CaptureFixture[str], lang: str) -> None:
    out = call(capsys, "--lang", lang)
    assert "rooflens probe --quick" in out
    assert "Rooflens" in out


def test_the_json_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(call(capsys, "--json"))
    assert document["schema"] == "rooflens.doctor/1"
    assert any(device["kind"] == "cpu" for device in document["devices"])
    assert document["probe"]["created"] is None
    assert set(document["extras"]) == set(doctor.EXTRAS)
    assert document["bundled_models"] > 100


def test_a_missing_library_is_named_with_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    out = " ".join(call(capsys, "--lang", "en").split())
    assert "missing torch, tokenizers, jinja2, safetensors, gguf: `pip install 'rooflens[runtime]'`" in out
    assert "not installed" in out


def test_a_damaged_probe_is_told_and_ends_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "probes"
    folder.mkdir()
    (folder / "20260101T000000Z-cpu-x.json").write_text("{")
    assert json.loads(call(capsys, "--json"))["probe"]["problem"]
