"""Records survive a round trip; damaged, foreign and doctored ones are refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measure_support import CPU, figure, make_record

from rooflens.errors import InputError, NotFoundError
from rooflens.measure import storage
from rooflens.measure.records import Measurement, ProbeRecord
from rooflens.measure.storage import (
    check_writable,
    data_home,
    is_this_machine,
    latest_probe,
    load_probe,
    require_this_machine,
    save_probe,
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path / "home"))


def test_rates_and_times_follow_from_the_samples() -> None:
    samples = tuple(0.01 * n for n in range(1, 12))  # median 0.06, p10 0.02, p90 0.10
    rate = Measurement("x", "bytes_per_s", 6e9, samples, 1, True, "m")
    assert rate.value == pytest.approx(1e11)
    assert (rate.low, rate.high) == (pytest.approx(6e10), pytest.approx(3e11))
    each = Measurement("x", "s", 100, samples, 1, True, "m")  # 100 operations a call
    assert each.value == pytest.approx(6e-4)
    assert (each.low, each.high) == (pytest.approx(2e-4), pytest.approx(1e-3))


def test_round_trip(tmp_path: Path) -> None:
    record = make_record()
    path = save_probe(record, tmp_path / "probe.json")
    assert load_probe(path) == record
    document = json.loads(path.read_text())
    assert document["schema"] == "rooflens.probe/1"
    assert document == record.to_dict()
    assert [item["name"] for item in document["measurements"]] == [item.name for item in record.measurements]
    assert not list(tmp_path.glob("*.part"))


def test_default_file_is_named_by_time_and_device() -> None:
    path = save_probe(make_record())
    assert path == data_home() / "probes" / "20261130T040506123456Z-cpu-test-cpu.json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"schema": "rooflens.probe/1", "cre', "cut off"),
        ("[]", "JSON object"),
        ('{"schema": "rooflens.probe/2"}', "another version"),
        ('{"schema": "rooflens.plan/1"}', "not a probe record"),
        ('{"schema": 1}', "not a probe record"),
        ("{}", "not a probe record"),
        ('{"schema": "rooflens.probe/1"}', "lacks a field"),
        ("<!DOCTYPE html><html>", "web page"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_probe(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load_probe(tmp_path / "none.json")


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    node: Any = document
    for key in parents:
        node = node[int(key) if key.isdigit() else key]
    node[int(last) if last.isdigit() else last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("measurements.0.value", 2e11, "does not follow"),
        ("measurements.0.samples_s", [0.01, -0.01], "cannot be read"),
        ("measurements.0.samples_s", [], "cannot be read"),
        ("measurements.0.samples_s", "0.01", "cannot be read"),
        ("measurements.0.unit", "GB/s", "does not follow"),
        ("measurements.0.amount_per_call", 0, "does not follow"),
        ("measurements.0", 7, "cannot be read"),
        ("measurements.1.name", "memory.read", "lacks a field"),
        ("device.name", None, "lacks a field"),
        ("activity", None, "lacks a field"),
        ("duration_s", "long", "lacks a field"),
    ],
)
def test_damaged_fields_are_refused(path: str, value: Any, message: str) -> None:
    document = make_record().to_dict()
    _set(document, path, value)
    with pytest.raises(InputError, match=message):
        ProbeRecord.from_dict(document)


def test_data_home_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ROOFLENS_HOME")
    monkeypatch.setattr(storage.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(storage.sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_home() == tmp_path / "data" / "rooflens"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert data_home() == tmp_path / ".local" / "share" / "rooflens"
    monkeypatch.setattr(storage.sys, "platform", "darwin")
    assert data_home() == tmp_path / "Library" / "Application Support" / "rooflens"


def test_unwritable_places_are_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none" / "probe.json", tmp_path / "file" / "probe.json", tmp_path):
        with pytest.raises(InputError, match="cannot write the probe record"):
            check_writable(path)
    check_writable(tmp_path / "probe.json")
    assert not (tmp_path / "probe.json").exists()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_probe(make_record(), tmp_path / "probe.json")
    before = path.read_text()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(InputError, match="no space left"):
        save_probe(make_record(mode="full"), path)
    assert path.read_text() == before
    assert [item.name for item in tmp_path.iterdir()] == ["probe.json"]


def test_latest_is_the_newest_of_this_machine() -> None:
    assert latest_probe(cpu=CPU) is None
    save_probe(make_record(created="2026-11-30T01:00:00.000000Z"))
    save_probe(make_record(created="2026-11-30T03:00:00.000000Z", mode="full"))
    other = {"cpu": {"name": "Other CPU", "machine_cores": 4, "memory_total_bytes": 16 * 10**9}}
    save_probe(make_record(created="2026-11-30T04:00:00.000000Z", environment=other))
    cut_short = make_record().measurements[:1]
    save_probe(make_record(created="2026-11-30T05:00:00.000000Z", measurements=cut_short, finished=False))
    latest = latest_probe(cpu=CPU)
    assert latest is not None
    assert (latest.mode, latest.created[11:13]) == ("full", "03")


def test_an_accelerators_record_goes_before_the_cpus() -> None:
    from dataclasses import replace

    record = make_record()
    gpu = replace(record.device, target="cuda:0", kind="cuda", name="Some GPU", threads=None)
    save_probe(make_record(created="2026-11-30T01:00:00.000000Z", device=gpu))
    save_probe(make_record(created="2026-11-30T03:00:00.000000Z"))
    latest = latest_probe(cpu=CPU)
    assert latest is not None
    assert latest.device.target == "cuda:0"


def test_a_damaged_newest_record_is_told_not_passed_over() -> None:
    save_probe(make_record(created="2026-11-30T01:00:00.000000Z"))
    path = save_probe(make_record(created="2026-11-30T03:00:00.000000Z"))
    path.write_text(path.read_text()[:500])
    with pytest.raises(InputError, match="cut off"):
        latest_probe(cpu=CPU)


def test_records_of_other_machines_are_told() -> None:
    assert is_this_machine(make_record(), cpu=CPU)
    other = make_record(environment={"cpu": {"name": "Other CPU", "machine_cores": 96}})
    with pytest.raises(InputError, match=r"another machine.*Other CPU, 96 cores.*Test CPU, 4 cores"):
        require_this_machine(other, cpu=CPU)


def test_figures_under_a_name() -> None:
    record = make_record(
        measurements=(figure("a.b", "s", 1, 1), figure("a.b.c", "s", 1, 1), figure("ab", "s", 1, 1))
    )
    assert [item.name for item in record.under("a")] == ["a.b", "a.b.c"]
    assert record.find("ab") is not None
    assert record.find("a") is None
