"""Plans say what the data sheet claims and what was measured, apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rooflens
from rooflens.analysis.measured import measured_rates
from rooflens.hardware import find_device


def test_published_measurements_stand_beside_the_data_sheet() -> None:
    bandwidth, gemm = measured_rates(find_device("h100-sxm"), "bf16")
    assert (bandwidth.spec, bandwidth.low, bandwidth.high) == (3.35e12, 2.914e12, 3.102e12)
    assert (gemm.spec, gemm.low, gemm.high) == (989.4e12, 787e12, 794.5e12)
    assert bandwidth.to_dict()["low_share"] == pytest.approx(0.87, abs=0.01)  # 2914 / 3350


def test_fp8_and_16_bit_rates_are_told_apart() -> None:
    assert measured_rates(find_device("h100-sxm"), "fp8")[1].low == 1402.6e12
    assert measured_rates(find_device("h100-sxm"), "fp16")[1].low == 787e12  # the same units as bf16


def test_nothing_measured_is_nothing_said() -> None:
    assert measured_rates(find_device("rtx-4090"), "bf16") == ()
    assert rooflens.plan("llama-2-7b", "rtx-4090").to_dict()["device"]["measured"] == {}


def test_an_own_probe_is_compared_with_the_data_sheet() -> None:
    spec = find_device("rtx-4090")
    own = replace(spec, bandwidth_bytes_per_s=0.92 * 1008e9, bandwidth_evidence="measured", spec=spec)
    bandwidth = measured_rates(own, "bf16")[0]
    assert bandwidth.low / bandwidth.spec == pytest.approx(0.92)
    assert "probe" in bandwidth.source


def test_the_plan_carries_both() -> None:
    device = rooflens.plan("llama-3.1-8b", "h100-sxm").to_dict()["device"]
    assert device["bandwidth_bytes_per_s"] == 3.35e12
    assert device["measured"]["bandwidth_bytes_per_s"]["high"] == 3.102e12
