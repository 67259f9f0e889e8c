"""Devices given by hand, corrected by hand, and measured."""

from __future__ import annotations

import json

import pytest

from rooflens.errors import InputError, UnsupportedError
from rooflens.hardware import (
    DTYPES,
    MemoryLevel,
    device_by_hand,
    device_from_measurement,
    device_with,
    find_device,
)


@pytest.mark.parametrize(("peak", "bandwidth", "ridge"), [(165e12, 1.0e12, 165), (312e12, 2.0e12, 156)])
def test_the_round_cards_of_the_reference(peak: float, bandwidth: float, ridge: float) -> None:
    device = device_by_hand(peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth)
    assert device.ridge_flops_per_byte("bf16") == pytest.approx(ridge)
    assert device.memory_bytes is None


def test_one_peak_answers_for_every_dtype() -> None:
    device = device_by_hand(peak_flops_per_s=165e12, bandwidth_bytes_per_s=1e12, memory_bytes=24e9)
    assert {device.peak_flops_per_s(dtype) for dtype in DTYPES} == {165e12}
    assert device.peak("fp8").evidence == "given"
    assert (device.memory_bytes, device.memory_evidence) == (24_000_000_000, "given")
    with pytest.raises(InputError):
        device.peak("fp17")
    document = device.to_dict()
    assert document["peaks_flops_per_s"] == {"any": 165e12}
    assert document["ridge_flops_per_byte"] == {"any": 165.0}
    assert [level["name"] for level in document["memory_levels"]] == ["device memory"]


def test_a_peak_given_for_one_dtype_is_for_that_one() -> None:
    device = device_by_hand(peak_flops_per_s=989e12, bandwidth_bytes_per_s=3.35e12, compute_dtype="bf16")
    assert device.peak_flops_per_s("bfloat16") == 989e12
    with pytest.raises(UnsupportedError):
        device.peak_flops_per_s("fp8")


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), True])
@pytest.mark.parametrize("field", ["peak_flops_per_s", "bandwidth_bytes_per_s", "memory_bytes"])
def test_zero_negative_and_endless_figures_are_refused(field: str, bad: float) -> None:
    figures = {"peak_flops_per_s": 1e12, "bandwidth_bytes_per_s": 1e12, "memory_bytes": 1e9}
    with pytest.raises(InputError, match=field.split("_")[0]):
        device_by_hand(**{**figures, field: bad})


def test_a_catalogue_device_with_some_figures_replaced() -> None:
    stock = find_device("rtx-4090")
    device = device_with(stock, memory_bytes=48e9, bandwidth_bytes_per_s=1.1e12)
    assert (device.memory_bytes, device.memory_evidence) == (48_000_000_000, "given")
    assert device.reported_memory_bytes is None
    assert device.bandwidth_evidence == "given"
    assert device.peaks == stock.peaks
    one = device_with(stock, peak_flops_per_s=170e12, compute_dtype="bf16")
    assert one.peak_flops_per_s("bf16") == 170e12
    assert one.peak("fp8") == stock.peak("fp8")
    every = device_with(stock, peak_flops_per_s=170e12)
    assert every.peak_flops_per_s("fp4") == 170e12
    assert device_with(stock) is stock


def test_a_measured_device_keeps_the_vendors_figures_beside() -> None:
    spec = find_device("h100")
    levels = (
        MemoryLevel("L2", bytes=50 * 2**20, bandwidth_bytes_per_s=5.6e12, bandwidth_evidence="measured"),
    )
    device = device_from_measurement(
        spec,
        bandwidth_bytes_per_s=2.95e12,
        peaks={"bf16": 790e12},
        memory_bytes=85.03e9,
        levels=levels,
        source="probe",
    )
    assert device.spec is spec
    assert (device.id, device.name) == (spec.id, spec.name)
    assert device.peak("bf16").evidence == "measured"
    assert device.peak("fp8").evidence == "spec"  # not measured: the vendor's, and its evidence says so
    assert device.bandwidth_bytes_per_s == 2.95e12
    assert device.memory_bytes == 85_030_000_000
    pyramid = {level.name: level for level in device.memory_levels()}
    assert pyramid["L2"].bandwidth_bytes_per_s == 5.6e12
    assert pyramid["device memory"].bandwidth_evidence == "measured"
    document = device.to_dict()
    assert document["spec"]["bandwidth_bytes_per_s"] == 3.35e12
    json.dumps(document, allow_nan=False)


def test_a_measured_device_that_is_in_no_catalogue() -> None:
    levels = [
        MemoryLevel("L3", bytes=32 * 2**20, bandwidth_bytes_per_s=2e11),
        MemoryLevel("L1", bytes=96 * 2**10, bandwidth_bytes_per_s=8e11),
    ]
    figures = {"bandwidth_bytes_per_s": 45e9, "peaks": {"fp32": 3e11, "bf16": 5e11}, "memory_bytes": 25e9}
    device = device_from_measurement(None, **figures, levels=levels, name="this CPU")
    assert device.spec is None
    assert device.ridge_flops_per_byte("bf16") == pytest.approx(5e11 / 45e9)
    assert [level.name for level in device.memory_levels()] == ["L1", "L3", "device memory"]
    with pytest.raises(InputError, match="name"):
        device_from_measurement(None, **figures)
    with pytest.raises(InputError, match="peak"):
        device_from_measurement(None, **{**figures, "peaks": {}}, name="this CPU")
    with pytest.raises(InputError, match="fp9"):
        device_from_measurement(None, **{**figures, "peaks": {"fp9": 1e12}}, name="this CPU")


@pytest.mark.parametrize("figure", ["peak_flops_per_s", "bandwidth_bytes_per_s", "memory_bytes"])
def test_figures_below_one_unit_are_refused(figure: str) -> None:
    figures = {"peak_flops_per_s": 1e12, "bandwidth_bytes_per_s": 1e9, "memory_bytes": 1e9}
    with pytest.raises(InputError, match="too small"):
        device_by_hand(**{**figures, figure: 1e-300})
    assert device_by_hand(**{**figures, figure: 1.0}).name == "by hand"
