"""The arithmetic guard: SMs x clock x FLOP per clock per SM, for every figure that can be checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rooflens.hardware import Device, Peak, check_peaks, devices, find_device
from rooflens.hardware.guard import check_formula, check_rates
from rooflens.hardware.tables import read_rows

CHECKED = [device for device in devices() if check_peaks(device)]
CASES = [(device, peak.dtype) for device in CHECKED for peak in device.peaks if check_rates(device)]


@pytest.mark.parametrize("device", CHECKED, ids=lambda device: device.id)
def test_every_peak_agrees_with_the_arithmetic(device: Device) -> None:
    for check in check_peaks(device):
        assert check.ok, f"{check.dtype}: {check.peak_flops_per_s:.4g} is {check.residual:+.1%} off"


@pytest.mark.parametrize("device", [d for d in devices() if d.check_formula], ids=lambda device: device.id)
def test_every_formula_reads_and_its_residual_is_the_one_printed(device: Device) -> None:
    check = check_formula(device)
    assert check is not None
    if device.check_residual is not None:
        # The printed residual compares with the "vs" figure, which the table rounds: up to 0.3 %.
        assert check.residual == pytest.approx(device.check_residual, abs=0.0035)
    # The formula is about this device: its SM count and clock are among the factors.
    assert device.clock_hz is not None
    assert f"{device.clock_hz / 1e6:g}" in (device.check_formula or "")


def test_the_guard_covers_the_cards_people_buy() -> None:
    for device in devices():
        if device.vendor in ("NVIDIA", "AMD", "Intel") and device.kind == "gpu" and device.id != "h20":
            assert {check.dtype for check in check_rates(device)} == set(device.peaks_flops_per_s), device.id


def test_a_number_of_known_formulas() -> None:
    # 132 SMs x 1830 MHz x 4096 FLOP per clock per SM = 989.4e12
    h100 = check_formula(find_device("h100-sxm"))
    assert h100 is not None
    assert h100.expected_flops_per_s == pytest.approx(132 * 1830e6 * 4096)
    # 128 SMs x 2520 MHz x 512, fp32 accumulate = 165.2e12
    rtx = check_formula(find_device("rtx-4090"))
    assert rtx is not None
    assert (rtx.dtype, rtx.expected_flops_per_s) == ("fp16", pytest.approx(128 * 2520e6 * 512))
    # 2 engines x 256 x 256 multipliers x 2 FLOP x 1650 MHz = 432.5e12
    gaudi = check_formula(find_device("gaudi2"))
    assert gaudi is not None
    assert gaudi.expected_flops_per_s == pytest.approx(2 * 256 * 256 * 2 * 1650e6)


@pytest.mark.parametrize(("device", "dtype"), CASES, ids=lambda value: getattr(value, "id", value))
def test_a_sparse_figure_in_any_cell_is_caught(device: Device, dtype: str) -> None:
    doubled = tuple(
        Peak(peak.dtype, peak.flops_per_s * (2 if peak.dtype == dtype else 1), peak.evidence)
        for peak in device.peaks
    )
    broken = [check for check in check_peaks(replace(device, peaks=doubled)) if not check.ok]
    assert {check.dtype for check in broken} == {dtype}


@pytest.mark.parametrize(
    ("name", "dtype", "sparse"), [("rtx-4090", "bf16", 330.3), ("a100", "bf16", 624), ("h100", "bf16", 1979)]
)
def test_the_well_known_sparse_figures_are_caught(name: str, dtype: str, sparse: float) -> None:
    device = replace(find_device(name), peaks=(Peak(dtype, sparse * 1e12, "spec"),))
    assert any(not check.ok for check in check_peaks(device))


def test_each_device_has_one_set_of_rates() -> None:
    named = [device for row in read_rows("rates.csv") for device in row["devices"].split("|")]
    assert len(named) == len(set(named))
    assert set(named) <= {device.id for device in devices()}
