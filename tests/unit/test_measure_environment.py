"""The environment and the neighbours, read from captured trees and tool outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rooflens.hardware.shell import Output
from rooflens.measure.activity import Activity, ActivityMeter, Snapshot, between, noise, snapshot
from rooflens.measure.environment import (
    available_memory_bytes,
    cpu_clock_hz,
    fingerprint,
    nvidia_state,
)

STAT = "cpu  1000 0 500 8000 100 0 50 350 0 0\ncpu0 1 2 3 4\n"


def _process(root: Path, pid: int, name: str, user: int, system: int) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    # Fields 14 and 15 are user and system time; the name may hold spaces and parentheses.
    (folder / "stat").write_text(f"{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 9\n")


def test_snapshot_of_a_captured_tree(tmp_path: Path) -> None:
    _process(tmp_path, 7, "a (b) c", 120, 30)
    (tmp_path / "proc/stat").write_text(STAT)
    taken = snapshot(tmp_path)
    assert taken is not None
    # In ticks of 10 ms: busy 1000 + 500 + 50, stolen 350, everything 10,000.
    assert (taken.busy_s, taken.stolen_s, taken.total_s) == pytest.approx((15.5, 3.5, 100.0))
    assert taken.processes == {7: ("a (b) c", pytest.approx(1.5))}
    assert snapshot(tmp_path / "none") is None


def test_what_others_did_is_the_rest() -> None:
    start = Snapshot(0.0, 100.0, 1.0, 1000.0, 50.0, {7: ("old", 10.0), 8: ("idle", 5.0)})
    end = Snapshot(10.0, 130.0, 3.0, 1040.0, 65.0, {7: ("old", 22.0), 8: ("idle", 5.0), 9: ("new", 2.0)})
    activity = between(start, end, load_average=1.5)
    # 30 s busy less 15 s of our own, over 10 s; 2 of 40 s stolen.
    assert activity.others_cores == pytest.approx(1.5)
    assert activity.stolen_share == pytest.approx(0.05)
    assert activity.processes == (("old", pytest.approx(1.2)), ("new", pytest.approx(0.2)))
    assert Activity.from_dict(json.loads(json.dumps(activity.to_dict()))) == activity


def test_noise_names_the_number_and_the_next_action() -> None:
    assert noise(Activity(0.0, 0.05, 0.0), [("memory.read", 0.05)]) == []
    busy, stolen, wide = noise(
        Activity(0.0, 1.5, 0.05, (("train", 1.4),)), [("memory.read", 0.4), ("memory.copy", 0.05)]
    )
    assert busy == "other processes used 1.50 cores meanwhile (train 1.40): stop them and measure again"
    assert "gave 5.0 %" in stolen
    assert "1 of 2 figures vary by more than 10 %" in wide
    assert "memory.read, 40 %" in wide
    # Without processor accounts the load average has to do.
    assert "load average was 3.00" in noise(Activity(3.0))[0]
    assert noise(Activity(None)) == []


def test_the_meter_leaves_this_process_out() -> None:
    meter = ActivityMeter()
    sum(range(200_000))
    activity = meter.stop()
    assert activity.others_cores is None or activity.others_cores >= 0


def test_clock_and_memory_of_a_captured_tree(tmp_path: Path) -> None:
    for cpu, khz in ((0, 2_400_000), (1, 3_100_000)):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    assert cpu_clock_hz(root=tmp_path) == 3.1e9
    assert available_memory_bytes(root=tmp_path) == 600 * 1024
    assert cpu_clock_hz(root=tmp_path / "none") is None
    assert available_memory_bytes(root=tmp_path / "none") is None


def test_clock_from_cpuinfo(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\ncpu MHz\t\t: 2596.106\n")
    assert cpu_clock_hz(root=tmp_path) == pytest.approx(2.596106e9)


def test_the_fingerprint_is_json_and_names_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    environment = fingerprint(threads=2)
    text = json.dumps(environment, allow_nan=False)
    assert environment["variables"]["OMP_NUM_THREADS"] == "2"
    assert "hunter2" not in text
    assert environment["torch"] is None
    assert json.loads(text) == environment


def test_the_fingerprint_of_an_empty_tree_is_null(tmp_path: Path) -> None:
    environment = fingerprint(root=tmp_path)
    for name in ("governor", "boost", "clock_hz", "transparent_huge_pages", "on_battery"):
        assert environment[name] is None


def test_settings_of_a_captured_tree(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "sys/class/power_supply/AC/type": "Mains",
        "sys/class/power_supply/AC/online": "0",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    environment = fingerprint(root=tmp_path)
    assert environment["governor"] == "powersave"
    assert environment["transparent_huge_pages"] == "madvise"
    assert environment["on_battery"] is True


NVIDIA = (
    "550.54.15, 700.00, 121.33, 1980, 1980, 2619, 34, 3, Enabled, Disabled, Enabled, 0x0000000000000001\n"
)
APPS = "4242, /usr/bin/python3, 1024\n"


def test_nvidia_state() -> None:
    def runner(command: Sequence[str]) -> Output:
        assert "--id=GPU-abc" in command
        return Output(text=APPS if "compute-apps" in command[2] else NVIDIA, ok=True)

    state = nvidia_state("GPU-abc", runner=runner)
    assert state is not None
    assert state["driver_version"] == "550.54.15"
    assert state["power_limit_w"] == 700
    assert state["clocks_sm_hz"] == 1.98e9
    assert state["ecc_mode_current"] == "Enabled"
    assert state["other_processes"] == [{"name": "python3", "bytes": 1024 * 2**20}]


def test_nvidia_state_with_unknown_fields_or_without_the_tool() -> None:
    text = "550.54.15, [N/A], [N/A], 1980, 1980, 2619, 34, [N/A], [N/A], [N/A], Enabled, 0x0\n"
    state = nvidia_state(
        "0", runner=lambda command: Output(text=text if "query-gpu" in command[2] else "", ok=True)
    )
    assert state is not None
    assert state["power_limit"] is None
    assert state["ecc_mode_current"] is None
    assert state["other_processes"] == []
    assert nvidia_state("0", runner=lambda command: Output(installed=False)) is None
