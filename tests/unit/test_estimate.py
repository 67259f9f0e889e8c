"""The estimate: its formula, its figures, its interval."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflens
from rooflens.analysis import calibration as cal
from rooflens.analysis.communication import Traffic
from rooflens.analysis.estimate import DECODE, DECODE_1, estimate_s, setting_for
from rooflens.analysis.kernels import ATTENTION, EXPERTS, LINEAR, SMALL, Load, kind_of, load_seconds, overlap
from rooflens.analysis.own_runs import OwnRuns, Residuals
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import decode_step, step_ops
from rooflens.api import read_spec_of
from rooflens.errors import InputError
from rooflens.hardware import find_device

RATES = replace(
    cal.calibration().kernel_rates("nvidia-hbm", "vllm", "16-bit"),
    bandwidth=0.8,
    compute=0.5,
    padding_rows=32,
    sharpness=2.0,
    launch_s=1e-6,
)


def load(kind: str = LINEAR, **fields: float) -> Load:
    base = {"compute_s": 0.0, "weight_s": 0.0, "kv_s": 0.0, "activation_s": 0.0, "rows": 1.0}
    return Load(kind=kind, count=1, **(base | fields))  # type: ignore[arg-type]


def test_a_matrix_of_one_row_streams_its_weights() -> None:
    # sqrt((8e-6 / 0.8)^2 + (0 / 0.5)^2) + 1e-6 = 10e-6 + 1e-6; no padding for one row
    assert load_seconds(load(weight_s=8e-6, compute_s=1e-30), RATES) == pytest.approx(11e-6)


def test_rows_pay_for_the_tile() -> None:
    # 48 rows: 1 + 32 / 48 x 47 / 63 = 1.4974; sqrt(10^2 + (4 x 1.4974 / 0.5)^2) = sqrt(100 + 143.5) us
    padded = 4e-6 * (1 + 32 / 48 * 47 / 63) / 0.5
    expected = math.hypot(10e-6, padded) + 1e-6
    assert load_seconds(load(weight_s=8e-6, compute_s=4e-6, rows=48), RATES) == pytest.approx(expected)


@given(memory=st.floats(1e-9, 1), compute=st.floats(0, 1), sharpness=st.floats(1, 8))
@settings(deadline=None, max_examples=60)
def test_overlap_lies_between_the_longer_and_the_sum(memory: float, compute: float, sharpness: float) -> None:
    seconds = overlap(memory, compute, sharpness)
    assert max(memory, compute) * (1 - 1e-9) <= seconds <= (memory + compute) * (1 + 1e-9)


def test_operators_are_told_apart() -> None:
    ops = step_ops(read_spec_of("Qwen/Qwen3-30B-A3B"), decode_step(sequences=4, context=100), kv_dtype="bf16")
    kinds = {op.name: kind_of(op) for op in ops}
    assert kinds["layers.{i}.attention.qkv_proj"] == LINEAR
    assert kinds["layers.{i}.attention.core"] == ATTENTION
    assert kinds["layers.{i}.mlp.experts.down_proj"] == EXPERTS
    assert kinds["layers.{i}.mlp_norm"] == kinds["embedding"] == SMALL


def test_arrays_and_numbers_agree() -> None:
    spec, device = read_spec_of("Qwen/Qwen3-30B-A3B"), find_device("h100-sxm")
    roof = Roof({"bf16": 989.4e12}, 3.35e12, 450e9)
    setting = setting_for(spec, device, "vllm")
    batches = np.array([1, 3, 64, 500])

    def seconds(batch: object) -> object:
        ops = step_ops(spec, decode_step(sequences=batch, context=1000), kv_dtype="bf16")
        return estimate_s(
            ops,
            roof,
            setting,
            tokens=batch,
            sequences=batch,
            eager=False,
            traffic=Traffic(batch * 4096, 96, 4, 0.0, 0, 1),  # type: ignore[operator]
        )

    whole = seconds(batches)
    assert [seconds(int(batch)) for batch in batches] == pytest.approx(list(whole))  # type: ignore[call-overload]
    assert all(np.diff(whole) > 0)


@pytest.mark.parametrize("device", ["h100-sxm", "rtx-4090", "mi300x", "max-1550", "gaudi2", "t4"])
@pytest.mark.parametrize("engine", ["none", "vllm", "sglang", "llama.cpp", "rooflens"])
def test_low_mid_high_are_in_order_and_over_the_bound(device: str, engine: str) -> None:
    plan = rooflens.plan("Qwen/Qwen2.5-7B-Instruct", device, batch=16, engine=engine)
    for phase in (plan.prefill, plan.decode):
        likely = phase.estimate
        assert phase.bound_s <= likely.low <= likely.mid < likely.high
        assert likely.mid < 30 * phase.bound_s


def test_more_work_never_takes_less_time() -> None:
    times = [rooflens.plan("llama-3.1-8b", "h100-sxm", batch=b).decode.estimate.mid for b in (2, 8, 32, 128)]
    assert times == sorted(times)


def test_llama_cpp_reads_the_weights_once_a_chunk() -> None:
    # 8 sequences of 512 tokens are 8 chunks of llama.cpp, and one step of an engine without a budget
    chunked = rooflens.plan("llama-2-7b", "rtx-4090", batch=8, engine="llama.cpp")
    one = rooflens.plan("llama-2-7b", "rtx-4090", batch=1, engine="llama.cpp")
    assert chunked.prefill.estimate.mid == pytest.approx(8 * one.prefill.estimate.mid, rel=0.02)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("h100-sxm", cal.NVIDIA_HBM),
        ("rtx-4090", cal.NVIDIA_GDDR),
        ("mi300x", cal.AMD),
        ("m2-ultra", cal.APPLE),
        ("arc-b580", cal.INTEL),
        ("epyc-9654", cal.CPU),
        ("tpu-v5e", cal.OTHER),
        ("gb10", cal.UNIFIED),
    ],
)
def test_every_device_has_a_class(device: str, kind: str) -> None:
    assert cal.device_class(find_device(device)) == kind


@pytest.mark.parametrize(
    ("weights", "kind"),
    [(None, "16-bit"), ("fp8", "8-bit"), ("awq", "4-bit"), ("q4_k_m", "gguf-4-bit"), ("q8_0", "gguf-8-bit")],
)
def test_every_format_has_a_class(weights: str | None, kind: str) -> None:
    assert cal.format_class(read_spec_of("Qwen/Qwen2.5-7B-Instruct", weights)) == kind


def test_an_engine_without_figures_takes_the_default() -> None:
    assert cal.engine_class("mlc", cal.NVIDIA_HBM) == cal.engine_class("none", cal.AMD) == cal.DEFAULT
    assert cal.engine_class("ollama", cal.NVIDIA_GDDR) == "llama.cpp"
    assert cal.engine_class("TensorRT-LLM", cal.NVIDIA_HBM) == "tensorrt-llm"


def test_the_table_is_complete_and_plausible() -> None:
    table = json.loads(cal.TABLE.read_text())
    assert set(table["devices"]) == set(cal.DEVICE_CLASSES)
    assert set(table["formats"]) == set(cal.FORMATS)
    assert set(table["engines"]) == {*cal.ENGINES, cal.DEFAULT}
    assert set(table["links"]) == set(cal.LINKS)
    for shares in table["devices"].values():
        assert 0.5 < shares["bandwidth"] < 1
        assert 0.2 < shares["compute"] < 1
        assert 0 < shares["launch_s"] < 30e-6
    for low, high in table["widths"].values():
        assert low < 0 < high
    assert table["provenance"]["rows"] > 1500


def test_a_probe_narrows_the_range_and_raises_the_shares() -> None:
    spec, device = read_spec_of("Qwen/Qwen2.5-7B-Instruct"), find_device("rtx-4090")
    by_kind, probed = (
        setting_for(spec, one, "vllm") for one in (device, replace(device, bandwidth_evidence="measured"))
    )
    assert probed.kernels.bandwidth > by_kind.kernels.bandwidth
    assert probed.widths[DECODE][1] == pytest.approx(0.75 * by_kind.widths[DECODE][1])
    assert "probe" in probed.source


def test_own_runs_shift_and_narrow() -> None:
    spec, device = read_spec_of("Qwen/Qwen2.5-7B-Instruct"), find_device("rtx-4090")
    own = OwnRuns((Residuals("rtx-4090", "vLLM", DECODE_1, (0.10, 0.11, 0.09, 0.10)),))
    plain, tuned = setting_for(spec, device, "vllm"), setting_for(spec, device, "vllm", own)
    assert tuned.shifts[DECODE_1] == pytest.approx(0.10, abs=0.02)
    (low, high), (was_low, was_high) = tuned.widths[DECODE_1], plain.widths[DECODE_1]
    assert high - low < 0.6 * (was_high - was_low)
    assert tuned.widths[DECODE] == plain.widths[DECODE]  # nothing was run at a larger batch
    other = setting_for(spec, device, "sglang", own)
    assert not other.shifts


def test_own_runs_by_hand() -> None:
    # width (-0.12816, 0.12816): sd 0.1, variance 0.01 = 0.008 shared + 0.002 within; one run at 0.2:
    # known = 0.008 / 0.010 = 0.8, shift 0.16; left 0.008 x 0.2 + 0.002 = 0.0036, sd 0.06
    shift, (low, high) = Residuals("d", "e", DECODE, (0.2,)).updated((-0.12816, 0.12816))
    assert shift == pytest.approx(0.16)
    assert (low, high) == pytest.approx((-0.12816 * 0.6, 0.12816 * 0.6))


def test_own_runs_survive_storage() -> None:
    own = OwnRuns((Residuals("rtx-4090", "vllm", DECODE, (0.1, -0.2)),), ("runs.csv",), "2026-01-01")
    assert OwnRuns.from_dict(json.loads(json.dumps(own.to_dict()))) == own


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"schema": "rooflens.calibrate/1"},
        {
            "schema": "rooflens.calibrate/1",
            "residuals": [{"device": "x", "engine": "y", "kind": "z", "logs": []}],
        },
    ],
)
def test_a_damaged_calibration_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InputError, match="calibration"):
        OwnRuns.from_dict(document)
