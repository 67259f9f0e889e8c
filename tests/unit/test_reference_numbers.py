"""The numbers that must come out: arithmetic from first principles, written next to each literal."""

from __future__ import annotations

from typing import Any

import pytest

import rooflens
from rooflens.analysis.plan import Plan
from rooflens.models.spec import ModelSpec
from rooflens.units import GIB, KIB

LLAMA = "meta-llama/Llama-2-7b-hf"
A100 = "a100-sxm-80"


def by_hand(peak: float, bandwidth: float, memory: float | None = None) -> dict[str, Any]:
    return {"peak": peak, "bandwidth": bandwidth, "memory": memory}


def eight_b() -> ModelSpec:
    return rooflens.dense(params=8e9, kv_bytes_per_token=128 * KIB)


# 1. The roofline itself


@pytest.mark.parametrize(
    ("device", "dtype", "peak", "bandwidth", "ridge", "memory"),
    [
        ("t4", "fp16", 65e12, 320e9, 203, 16e9),
        ("rtx-4090", "bf16", 165e12, 1008e9, 164, 24e9),
        ("a100-pcie-80", "bf16", 312e12, 1935e9, 161, 80e9),
        ("a100-sxm-80", "bf16", 312e12, 2039e9, 153, 80e9),
        ("h100-sxm", "bf16", 989e12, 3350e9, 295, 80e9),
        ("b200-sxm", "bf16", 2250e12, 8000e9, 281, 180e9),
    ],
)
def test_catalogue_ridge_points(
    device: str, dtype: str, peak: float, bandwidth: float, ridge: int, memory: float
) -> None:
    found = rooflens.find_device(device)
    assert found.peak_flops_per_s(dtype) == pytest.approx(peak, rel=2e-3)  # 165.2 and 989.4 in full
    assert found.bandwidth_bytes_per_s == bandwidth
    assert round(found.ridge_flops_per_byte(dtype)) == ridge
    assert found.memory_bytes == memory


@pytest.mark.parametrize(("peak", "bandwidth", "ridge"), [(165e12, 1.0e12, 165), (312e12, 2.0e12, 156)])
def test_round_cards_given_by_hand(peak: float, bandwidth: float, ridge: float) -> None:
    assert rooflens.roofline(**by_hand(peak, bandwidth)).ridge_flops_per_byte == ridge


@pytest.mark.parametrize(
    ("intensity", "tflops", "percent", "regime"),
    [
        (1, 1.0, 0.6, "memory"),
        (10, 10.0, 6.1, "memory"),
        (165, 165.0, 100, "compute"),
        (1000, 165.0, 100, "compute"),
    ],
)
def test_attainable_rate_of_the_round_4090(
    intensity: float, tflops: float, percent: float, regime: str
) -> None:
    (point,) = rooflens.roofline(**by_hand(165e12, 1.0e12), intensities=[intensity]).points
    assert point.attainable_flops_per_s == tflops * 1e12
    assert round(point.share_of_peak * 100, 1) == percent
    assert point.regime == regime


@pytest.mark.parametrize(("intensity", "percent"), [(1, 0.65), (32, 21)])
def test_share_of_peak_on_the_a100(intensity: float, percent: float) -> None:
    (point,) = rooflens.roofline(A100, intensities=[intensity]).points
    assert point.share_of_peak * 100 == pytest.approx(percent, abs=0.1)


# 2. Llama-2-7B


def llama(device: str = A100, **settings: Any) -> Plan:
    return rooflens.plan(LLAMA, device, **settings)


def test_weights_and_cache_rate() -> None:
    found = rooflens.inspect(LLAMA)
    assert found.weights_bytes == 2 * 6_738_415_616
    assert found.kv_bytes_per_token == 2 * 32 * 4096 * 2 == 512 * KIB


def test_ledger_of_32_sequences_of_2048_tokens() -> None:
    ledger = llama(batch=32, prompt=2048, context=2048).ledger
    assert ledger.row("kv_cache") == 65_536 * 512 * KIB == 32 * GIB
    assert ledger.row("kv_cache") / ledger.row("weights") == pytest.approx(2.4, abs=0.2)
    assert ledger.row("activations") == 65_536 * 11_008 * 2  # 1.4 GB
    assert ledger.row("overhead") == 1.5e9
    assert ledger.total_bytes == pytest.approx(48 * GIB, rel=0.02)
    shares = {row.name: row.bytes / ledger.total_bytes for row in ledger.rows}
    expected = {"weights": 0.28, "kv_cache": 0.67, "activations": 0.03, "overhead": 0.03}
    assert shares == pytest.approx(expected, abs=0.02)
    assert ledger.fits


def test_activation_of_one_token_is_22_kb() -> None:
    # 11008 x 2 B; a decode step of 32 holds 0.7 MB of them.
    assert llama(prompt=1, output=1).ledger.row("activations") == 22_016
    assert llama(batch=32, prompt=1, output=1).ledger.row("activations") == 32 * 22_016


def test_from_batch_32_to_1_only_cache_and_activations_shrink() -> None:
    many, one = (llama(batch=n, prompt=2048, context=2048).ledger for n in (32, 1))
    for name, factor in (("weights", 1), ("overhead", 1), ("kv_cache", 32), ("activations", 32)):
        assert many.row(name) == factor * one.row(name)


def test_one_decode_step_at_batch_1() -> None:
    # Every weight but the token table (a lookup) streams once: 2 x (6.738e9 - 0.131e9) B / 2.039e12.
    step = llama(context=0).decode
    assert step.times.weights_s == pytest.approx(2 * (6_738_415_616 - 131_072_000) / 2.039e12, rel=1e-4)
    # All 13.5 GB of the checkpoint, as a model known by its size alone: 6.6 ms, 150 tok/s.
    size_only = rooflens.dense(params=6_738_415_616, kv_bytes_per_token=512 * KIB, dtype="fp16")
    step = rooflens.plan(size_only, A100, context=0).decode
    assert step.bound_s * 1e3 == pytest.approx(6.6, abs=0.05)
    assert step.tokens_per_s == pytest.approx(150, rel=0.02)
    assert step.flops == 2 * 6_738_415_616  # 13.5 GFLOP
    assert step.times.compute_s * 1e3 == pytest.approx(0.043, abs=0.0005)
    assert step.times.compute_s < 0.01 * step.bound_s


def test_arithmetic_of_batch_32_stays_hidden() -> None:
    step = llama(batch=32, context=0).decode
    # 32 x 13.2 GFLOP / 312 TFLOP/s = 1.36 ms; the table cuts 1.38 (32 x 0.043) to 1.3.
    assert step.times.compute_s * 1e3 == pytest.approx(1.3, abs=0.1)
    assert step.times.compute_s < step.times.weights_s


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("model", [LLAMA, "meta-llama/Llama-2-13b-hf"])
def test_decode_intensity_is_about_the_batch(model: str, batch: int) -> None:
    step = rooflens.plan(model, A100, batch=batch, context=0).decode
    assert step.intensity_flops_per_byte == pytest.approx(batch, rel=0.02)


def test_batch_that_reaches_the_ridge() -> None:
    assert llama().ridge_batch == pytest.approx(153, abs=0.5)


def test_sequences_of_2048_tokens_that_fit() -> None:
    # (80e9 - 13.48e9 - 1.5e9) / 2^30 = 60.6: "about 65" counts the cache's GiB as GB.
    assert llama(prompt=1, context=2048).ledger.max_sequences == 60
    assert (80 - 13.5 - 1.5) / 1 == 65


def test_cache_reads_at_batch_1_and_32() -> None:
    one = llama(context=2000).decode
    assert one.times.kv_s * 1e3 == pytest.approx(0.5, abs=0.02)  # 2000 x 512 KiB = 1.05 GB
    assert one.times.kv_s / one.times.weights_s == pytest.approx(0.07, abs=0.01)
    many = llama(batch=32, context=2000).decode
    assert many.times.kv_s * 2.039e12 == pytest.approx(33.5e9, rel=0.01)
    assert many.bound_s * 1e3 == pytest.approx(22, abs=1)


def test_prefill_of_2000_tokens() -> None:
    phase = llama(prompt=2000).prefill
    # 27.5 TFLOP over 13.2 GB of weights and 1.05 GB of cache written.
    assert phase.intensity_flops_per_byte == pytest.approx(2000, rel=0.06)
    assert phase.limited_by == "compute"


@pytest.mark.parametrize(
    ("device", "rate"), [("rtx-4090", 75), ("a100-pcie-80", 143), ("a100-sxm-80", 150), ("h100-sxm", 248)]
)
def test_batch_1_ceilings_on_other_cards(device: str, rate: float) -> None:
    assert 1 / llama(device).decode.bound_s == pytest.approx(rate, rel=0.015)
    # Without the lookup's exception, as the table has it: bandwidth over all weight bytes.
    assert rooflens.find_device(device).bandwidth() / 13_476_831_232 == pytest.approx(rate, rel=0.01)


def test_the_h100_gains_its_bandwidth_and_not_its_peak() -> None:
    ratio = llama(A100).decode.bound_s / llama("h100-sxm").decode.bound_s
    assert ratio == pytest.approx(3350 / 2039)
    assert ratio == pytest.approx(1.65, abs=0.01)


def test_llama_does_not_fit_a_t4_with_2048_tokens() -> None:
    # 13.48 + 1.07 + 1.5 GB of 16.
    plan = llama("t4", prompt=1, context=2048)
    assert plan.fits is False
    assert plan.ledger.deficit_bytes > 0
    changed = {name for remedy in plan.remedies for name, _ in remedy.settings}
    assert changed >= {"context", "weights", "tp"}


def test_tinyllama_on_a_t4() -> None:
    assert rooflens.inspect("TinyLlama/TinyLlama-1.1B-Chat-v1.0").weights_bytes == pytest.approx(
        2.2e9, rel=0.01
    )
    size_only = rooflens.dense(params=1.1e9, dtype="fp16")
    step = rooflens.plan(size_only, "t4").decode
    assert step.bound_s * 1e3 == pytest.approx(6.9, abs=0.05)
    assert step.tokens_per_s == pytest.approx(145, rel=0.01)


def test_tinyllama_runs_in_fp16_on_a_t4_and_says_so() -> None:
    plan = rooflens.plan("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "t4")
    assert plan.rates.compute_dtype == "fp16"
    assert any("bf16" in note and "fp16" in note for note in plan.notes)


def test_llama_2_13b() -> None:
    found = rooflens.inspect("meta-llama/Llama-2-13b-hf")
    assert found.weights_bytes == pytest.approx(26e9, rel=0.002)
    assert found.kv_bytes_per_token == 800 * KIB
    size_only = rooflens.dense(params=13_015_864_320, kv_bytes_per_token=800 * KIB, dtype="fp16")
    assert rooflens.plan(size_only, A100, context=0).decode.tokens_per_s == pytest.approx(78, abs=0.5)
    ledger = rooflens.plan("meta-llama/Llama-2-13b-hf", A100, batch=32, prompt=1, context=2048).ledger
    assert ledger.row("kv_cache") == 50 * GIB
    # 50 (GiB) + 26 (GB) = 76 of 80 in the table's mixed units.
    assert 50 + 26 == 76


def test_llama_3_8b_at_batch_32() -> None:
    step = rooflens.plan("meta-llama/Llama-3.1-8B-Instruct", A100, batch=32, context=2000).decode
    read = step.times.kv_s * 2.039e12
    assert read == pytest.approx(8e9, rel=0.06)  # a quarter of Llama-2-7B's
    assert read * 4 == pytest.approx(llama(batch=32, context=2000).decode.times.kv_s * 2.039e12)
    assert step.bound_s * 1e3 == pytest.approx((16 + 8) / 2.039, rel=0.05)


@pytest.mark.parametrize(
    ("weights", "size_gb", "step_ms", "ceiling", "intensity", "ridge"),
    [("fp16", 13.5, 6.6, 150, 1, 153), ("int8", 6.7, 3.3, 300, 2, 77), ("int4", 3.4, 1.65, 600, 4, 38)],
)
def test_weight_quantisation(
    weights: str, size_gb: float, step_ms: float, ceiling: float, intensity: float, ridge: float
) -> None:
    assert llama(weights=weights).ledger.row("weights") / 1e9 == pytest.approx(size_gb, abs=0.05)
    step = llama(weights=weights, context=0).decode
    # The table streams all weights; the token table's 2 % is a lookup.
    assert step.bound_s * 1e3 == pytest.approx(step_ms, rel=0.025)
    assert step.tokens_per_s == pytest.approx(ceiling, rel=0.035)
    assert step.intensity_flops_per_byte == pytest.approx(intensity, rel=0.02)
    assert llama(weights=weights).ridge_batch == pytest.approx(ridge, abs=0.6)
    size_only = rooflens.dense(
        params=6_738_415_616, weights_bytes=6_738_415_616 * {"fp16": 2, "int8": 1, "int4": 0.5}[weights]
    )
    exact = rooflens.plan(size_only, A100, context=0).decode
    assert exact.bound_s * 1e3 == pytest.approx(step_ms, rel=0.005)
    assert exact.tokens_per_s == pytest.approx(ceiling, rel=0.01)


# 3. An 8e9-parameter model on the H100


def test_prefill_of_the_8b_model() -> None:
    phase = rooflens.plan(eight_b(), "h100-sxm", prompt=2000).prefill
    assert phase.flops == 2000 * 16e9 == 32e12
    assert phase.bound_s * 1e3 == pytest.approx(32, abs=0.5)
    assert phase.limited_by == "compute"


def test_decode_of_the_8b_model() -> None:
    step = rooflens.plan(eight_b(), "h100-sxm", context=0).decode
    assert step.times.weights_s * 1e3 == pytest.approx(4.8, abs=0.03)
    assert step.times.compute_s * 1e3 == pytest.approx(0.016, abs=0.0005)
    assert step.tokens_per_s == pytest.approx(208, rel=0.01)


def test_decode_of_the_8b_model_at_batch_64() -> None:
    bare = rooflens.plan(rooflens.dense(params=8e9), "h100-sxm", batch=64).decode
    assert bare.times.compute_s * 1e3 == pytest.approx(1.0, abs=0.05)
    assert bare.bound_s * 1e3 == pytest.approx(4.8, abs=0.03)
    assert bare.tokens_per_s == pytest.approx(13_300, rel=0.01)
    plan = rooflens.plan(eight_b(), "h100-sxm", batch=64, prompt=1, context=4096)
    assert plan.ledger.row("kv_cache") == 64 * 512 * 2**20  # 34 GB
    assert plan.decode.bound_s * 1e3 == pytest.approx(15, abs=0.1)
    assert plan.decode.tokens_per_s == pytest.approx(4270, rel=0.005)


def test_balance_point_of_the_8b_model() -> None:
    assert rooflens.plan(eight_b(), "h100-sxm").ridge_batch == pytest.approx(300, rel=0.02)


@pytest.mark.parametrize("batch", [1, 64, 512])
def test_attention_over_the_cache_has_an_intensity_that_no_batch_changes(batch: int) -> None:
    from rooflens.analysis.step import decode_step, step_ops
    from rooflens.models.read import read_model

    spec = read_model("meta-llama/Llama-3.1-8B-Instruct")
    ops = step_ops(spec, decode_step(sequences=batch, context=100_000), kv_dtype="bf16")
    (core,) = (op for op in ops if op.name.endswith("attention.core"))
    # 2 FLOP x 32 query heads per (K + V) element of 8 KV heads in 2 bytes: the group size of 4.
    assert core.cost.flops / core.cost.kv_read_bytes == pytest.approx(4, rel=0.001)


def test_the_free_form_calculator() -> None:
    model = rooflens.dense(params=7e9, weights_bytes=14e9)
    step = rooflens.plan(model, **by_hand(312e12, 2e12)).decode
    assert step.bound_s * 1e3 == pytest.approx(7.00, abs=0.001)
    assert step.limited_by == "memory"
    assert step.times.weights_s > step.times.kv_s
