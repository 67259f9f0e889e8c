"""Roofs, device, flags, comparison and lab rows from a record with round figures."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from measure_support import cube, figure, linear, make_record
from rich.console import Console

from rooflens.errors import InputError
from rooflens.hardware import find_device
from rooflens.measure.checks import against_spec, sanity_flags
from rooflens.measure.lab import batch_knee, exercises, matmul_against_copy
from rooflens.measure.records import ProbeRecord
from rooflens.measure.roofs import compare, linear_work, probe_device, roofs
from rooflens.report.tables.probe import probe_report
from rooflens.report.words import words


def test_roofs_by_hand() -> None:
    found = roofs(make_record())
    assert found.read_bytes_per_s == pytest.approx(1e11)  # 1e9 B / 10 ms
    assert found.copy_bytes_per_s == pytest.approx(8e10)  # 1.6e9 B / 20 ms
    assert found.peaks == pytest.approx({"bf16": 1e12, "fp32": 250e9})
    assert found.ridge_flops_per_byte("bf16") == pytest.approx(10)  # 1e12 / 1e11
    assert found.ridge_flops_per_byte("int8") is None
    assert [(c.name, c.bytes, c.bytes_per_s) for c in found.caches] == [
        ("L1", 131072, pytest.approx(4e11)),  # the point between the levels belongs to neither
        ("L2", 4194304, pytest.approx(2e11)),
    ]
    assert found.dispatch_s == pytest.approx({"tiny_op": 5e-6, "parallel_region": 5e-6})  # 8 - 3 us


def test_the_read_roof_is_the_fastest_reader() -> None:
    skinny = linear(1, 2**25 / 1.2e11)  # 120 GB/s of weights
    wide = linear(64, 2**25 / 9e11)  # more than eight rows: not a read
    found = roofs(make_record(measurements=(*make_record().measurements, skinny, wide)))
    assert found.read_bytes_per_s == pytest.approx(1.2e11)


def test_peaks_are_the_best_of_all_moments() -> None:
    burst = figure("burst.bf16", "flops_per_s", 1e12, 0.8, dtype="bf16")
    sustained = figure("sustained.bf16", "flops_per_s", 1e12, 2.0, dtype="bf16")
    found = roofs(make_record(measurements=(*make_record().measurements, burst, sustained)))
    assert found.peaks["bf16"] == pytest.approx(1.25e12)
    assert found.sustained == pytest.approx({"bf16": 0.5e12})


def test_the_device_as_measured() -> None:
    device = probe_device(make_record())
    assert device.name == "Test CPU (4 threads)"
    assert device.bandwidth_bytes_per_s == pytest.approx(1e11)
    assert device.peaks_flops_per_s == pytest.approx({"bf16": 1e12, "fp32": 250e9})
    assert device.bandwidth_evidence == "measured"
    assert device.memory_bytes == 16 * 10**9
    assert device.spec is None
    levels = {level.name: level.bandwidth_bytes_per_s for level in device.memory_levels()}
    assert levels["L1"] == pytest.approx(4e11)
    assert levels["L2"] == pytest.approx(2e11)


def _of(spec: str, *, bandwidth: float, bf16: float) -> ProbeRecord:
    record = make_record()
    device = replace(record.device, target="cuda:0", kind="cuda", name=spec, spec=spec, threads=None)
    read = figure("memory.read", "bytes_per_s", bandwidth, 1.0)
    return replace(record, device=device, measurements=(read, cube("bf16", 4096, bf16)))


def test_the_data_sheet_stays_beside_the_measurement() -> None:
    device = probe_device(_of("h100-sxm", bandwidth=3.0e12, bf16=780e12))
    assert device.spec is not None
    assert device.spec.bandwidth_bytes_per_s == find_device("h100-sxm").bandwidth_bytes_per_s
    assert device.bandwidth_bytes_per_s == pytest.approx(3.0e12)
    assert device.peak("bf16").evidence == "measured"
    assert device.peak("fp8").evidence == "spec"


@pytest.mark.parametrize(
    ("bandwidth", "bf16", "flagged"),
    [
        (0.90, 0.80, {}),
        (1.05, 1.10, {}),  # the limits themselves are allowed
        (1.06, 0.80, {"read bandwidth": "cache"}),
        (0.49, 0.80, {"read bandwidth": "throttled"}),
        (0.90, 1.11, {"bf16 rate": "variant"}),
        (0.90, 0.49, {"bf16 rate": "throttled"}),
    ],
)
def test_figures_far_from_the_data_sheet_are_flagged(
    bandwidth: float, bf16: float, flagged: dict[str, str]
) -> None:
    spec = find_device("h100-sxm")
    assert spec.bandwidth_bytes_per_s is not None
    record = _of(
        "h100-sxm",
        bandwidth=bandwidth * spec.bandwidth_bytes_per_s * (1 - 1e-9),
        bf16=bf16 * spec.peaks_flops_per_s["bf16"] * (1 - 1e-9),
    )
    flags = {flag.figure: flag for flag in sanity_flags(record)}
    assert set(flags) == set(flagged)
    for figure_name, word in flagged.items():
        assert word in flags[figure_name].sentence()
        assert f"{flags[figure_name].ratio * 100:.0f} %" in flags[figure_name].sentence()
    ratios = {row.figure: row.ratio for row in against_spec(roofs(record), spec)}
    assert ratios == pytest.approx({"read bandwidth": bandwidth, "bf16 rate": bf16})


def test_an_interrupted_record_makes_no_device() -> None:
    record = make_record()
    with pytest.raises(InputError, match="has no matrix-multiply rate"):
        probe_device(replace(record, measurements=record.measurements[:2]))
    with pytest.raises(InputError, match="has no bandwidth"):
        probe_device(replace(record, measurements=record.measurements[2:]))
    assert replace(record, measurements=()).to_dict()["roofs"]["read_bytes_per_s"] is None


def test_comparison_takes_what_both_measured_alike() -> None:
    before = make_record()
    faster = figure("memory.read", "bytes_per_s", 1e9, 0.005, threads=4)
    elsewhere = figure("memory.copy", "bytes_per_s", 1e9, 0.005, threads=2)
    rows = compare(before, replace(before, measurements=(faster, elsewhere)))
    assert rows == [("memory.read", pytest.approx(1e11), pytest.approx(2e11))]


@pytest.mark.parametrize("change", [{"threads": 2}, {"name": "Other"}, {"kind": "cuda"}, {"memory_bytes": 1}])
def test_incompatible_runs_are_not_compared(change: dict[str, object]) -> None:
    before = make_record()
    after = replace(before, device=replace(before.device, **change))
    with pytest.raises(InputError, match="not comparable"):
        compare(before, after)


def test_matmul_against_copy_by_hand() -> None:
    exercise = matmul_against_copy(make_record())
    assert exercise is not None
    matmul, copy = (dict(zip(exercise.columns, row, strict=True)) for row in exercise.rows)
    # 2 x 2048^3 FLOP over 3 x 2048^2 x 2 B: 682.67 FLOP/B; at 1 TFLOP/s 17.2 ms and 1.46 GB/s.
    assert matmul["flops_per_byte"] == pytest.approx(2048 / 3)
    assert matmul["s"] == pytest.approx(2 * 2048**3 / 1e12)
    assert matmul["bytes_per_s"] == pytest.approx(6 * 2048**2 / (2 * 2048**3 / 1e12))
    assert copy["bytes_per_s"] == pytest.approx(8e10)
    assert "683 FLOP per byte, above the ridge of 10.0" in exercise.sentence
    assert "100 % of the bf16 peak" in exercise.sentence


def _sweep(knee: int) -> ProbeRecord:
    """Floor 0.4 ms, then time grows with m from ``knee`` on."""
    points = [linear(m, 4e-4 * max(1.0, m / knee)) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    return make_record(measurements=(*make_record().measurements, *points))


def test_the_knee_where_the_roofline_puts_it() -> None:
    # 2 m / 2 B per weight: the ridge of 10 FLOP/B is reached at m = 10. Here time grows from 10 on.
    exercise = batch_knee(_sweep(10))
    assert exercise is not None
    assert "near m = 10.0" in exercise.sentence
    assert "from m = 16 on: as the roofline says" in exercise.sentence
    first = dict(zip(exercise.columns, exercise.rows[0], strict=True))
    assert first["m"] == 1
    assert first["bytes_per_s"] == pytest.approx((2**25 + 2 * 8192) / 4e-4)  # weights, one input, one output


def test_an_early_knee_gets_its_cause() -> None:
    exercise = batch_knee(_sweep(2))
    assert exercise is not None
    assert "from m = 4 on: earlier, since skinny matrices reach only" in exercise.sentence


def test_no_knee_at_all() -> None:
    exercise = batch_knee(_sweep(1000))
    assert exercise is not None
    assert "up to m = 256 it does not" in exercise.sentence


def test_exercises_need_their_measurements() -> None:
    assert [item.name for item in exercises(make_record())] == ["matmul_against_copy"]
    assert [item.name for item in exercises(_sweep(10))] == ["matmul_against_copy", "batch_knee"]
    assert exercises(replace(make_record(), measurements=())) == []
    two_points = make_record(measurements=(*make_record().measurements, linear(1, 1e-3), linear(8, 1e-3)))
    assert batch_knee(two_points) is None


def test_linear_work_counts_each_matrix_once() -> None:
    # 2 x 8 x 4096^2 FLOP; 2 B x (4096^2 weights + 8 x (4096 + 4096) inputs and outputs).
    assert linear_work(linear(8, 1.0)) == (2 * 8 * 4096**2, 2 * 4096**2 + 8 * 8192 * 2)


def test_a_wide_batch_may_be_the_peak() -> None:
    # 2 x 256 x 4096^2 FLOP in 5 ms: 1.72 TFLOP/s, above the cube's 1 TFLOP/s.
    record = make_record(measurements=(*make_record().measurements, linear(256, 5e-3)))
    assert roofs(record).peaks["bf16"] == pytest.approx(2 * 256 * 4096**2 / 5e-3)
    page = Console(file=StringIO(), width=120)
    page.print(probe_report(record, words("en")))
    assert re.search(r"bf16 +1\.72 TFLOP/s .*256x4096x4096", page.file.getvalue())  # type: ignore[attr-defined]


def test_threads_that_wait_for_a_held_core_are_told() -> None:
    assert make_record().noise == []
    held = figure("dispatch.region_all_threads", "s", 1, 8e-3)
    record = make_record(measurements=(*make_record().measurements[:-1], held))
    assert "wait for one another for 8.00 ms where work of 3.00 µs" in record.noise[0]
