"""Advice: for each case the techniques that help, and plainly those that do not."""

from __future__ import annotations

import json

import pytest

import rooflens
from rooflens.analysis.advice import Advice
from rooflens.analysis.advice_text import ACTS_ON, WHY
from rooflens.analysis.plan import Plan
from rooflens.report.words import Words
from rooflens.report.words_advice import CHINESE, CHINESE_ACTS_ON, ENGLISH, reason


def advice(plan: Plan) -> dict[str, Advice]:
    return {one.technique: one for one in plan.advice}


def test_batch_1_decode_is_told_to_batch_quantise_and_speculate() -> None:
    found = advice(rooflens.plan("llama-2-7b", "a100-sxm-80"))
    for technique in ("continuous_batching", "weight_quantisation", "speculative_decoding"):
        gain = found[technique].decode_gain
        assert gain is not None
        assert gain > 1.5, technique
    assert not found["phase_split"].gains  # nobody else's prompt is in the way
    assert not found["offload"].gains


def test_compute_bound_prefill_gains_little_from_small_weights() -> None:
    plan = rooflens.plan("llama-2-7b", "a100-sxm-80", batch=4, prompt=2048, output=16)
    quantised = advice(plan)["weight_quantisation"]
    assert quantised.prefill_gain is not None
    assert quantised.prefill_gain < 1.05


def test_a_long_context_is_told_to_quantise_the_cache() -> None:
    short = advice(rooflens.plan("llama-2-7b", "a100-sxm-80", batch=1, context=128))["kv_quantisation"]
    long = advice(rooflens.plan("llama-2-7b", "a100-sxm-80", batch=24, context=4000))["kv_quantisation"]
    assert short.decode_gain is not None
    assert long.decode_gain is not None
    assert short.decode_gain < 1.02 < 1.2 < long.decode_gain
    assert long.memory_saved_bytes == 24 * 4000 * 2**19 // 2


def test_what_makes_it_fit_comes_first() -> None:
    plan = rooflens.plan("llama-2-13b", "rtx-4090")  # 26 GB on 24 GB
    assert plan.fits is False
    assert plan.advice[0].fits is True
    assert {one.technique for one in plan.advice if one.fits} >= {
        "weight_quantisation",
        "offload",
        "tensor_parallel",
    }


def test_gains_are_ranked_and_the_rest_says_so() -> None:
    found = rooflens.plan("Qwen/Qwen3-30B-A3B", "h100-sxm", count=2, batch=16).advice
    gaining = [one.gains for one in found]
    assert gaining == sorted(gaining, reverse=True)
    for one in found:
        if one.change is None:
            assert not one.gains
            assert one.to_dict()["why"].startswith(("No gain here", "The catalogue has no"))
    assert {"expert_parallel", "tensor_parallel"} <= set(
        advice(rooflens.plan("Qwen/Qwen3-30B-A3B", "h100-sxm", count=2))
    )


def test_the_json_is_the_contract() -> None:
    document = rooflens.plan("llama-2-7b", "a100-sxm-80").to_dict()
    for item in json.loads(json.dumps(document, allow_nan=False))["advice"]:
        assert {
            "technique",
            "acts_on",
            "change",
            "decode_gain",
            "prefill_gain",
            "memory_saved_bytes",
            "why",
        } <= set(item)
        assert item["acts_on"] == ACTS_ON[item["technique"]]
        assert "{" not in item["why"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "ollama", "rooflens"])
def test_every_engine_gets_advice_in_its_own_formats(engine: str) -> None:
    plan = rooflens.plan("Qwen/Qwen2.5-7B-Instruct", "rtx-4090", engine=engine)
    change = advice(plan)["weight_quantisation"].change
    assert change is not None
    assert (
        change.split()[1] in ("q8_0", "q4_k_m")
        if engine in ("llama.cpp", "ollama", "rooflens")
        else ("fp8", "awq")
    )


def test_a_free_form_model_gets_none() -> None:
    assert rooflens.plan(rooflens.dense(params=8e9, kv_bytes_per_token=131072), "h100-sxm").advice == ()


def test_both_languages_say_everything() -> None:
    assert set(ENGLISH) == {key for key in CHINESE if not key.startswith("why.")}
    assert {f"why.{key}" for key in WHY} == {key for key in CHINESE if key.startswith("why.")}
    assert set(ACTS_ON) <= set(ENGLISH)
    assert set(ACTS_ON) == set(CHINESE_ACTS_ON)
    for key, text in WHY.items():
        fields = {part.partition("}")[0] for part in text.split("{")[1:]}
        assert fields == {part.partition("}")[0] for part in CHINESE[f"why.{key}"].split("{")[1:]}, key
    for one in rooflens.plan("llama-2-7b", "a100-sxm-80").advice:
        for language, phrases in (("en", ENGLISH), ("zh", CHINESE)):
            assert reason(one, Words(language, phrases))  # type: ignore[arg-type]


def test_offloading_makes_a_model_run_and_says_how_slowly() -> None:
    plan = rooflens.plan("llama-2-13b", "rtx-4090", engine="vllm")
    found = advice(plan)
    host, drive = found["offload"], found["nvme_offload"]
    assert host.fits
    assert drive.fits
    assert host.decode_gain is drive.decode_gain is None  # it did not run before: there is nothing to compare
    # The same bytes over 31.5 GB/s of PCIe and from 7 GB/s of drive
    assert host.facts["bytes"] == drive.facts["bytes"]
    assert "7 GB/s" in WHY["nvme_offload"]
    fits = advice(rooflens.plan("llama-2-7b", "a100-sxm-80"))
    assert not fits["nvme_offload"].gains
    assert not fits["offload"].gains


def test_experts_in_the_hosts_memory_read_only_what_is_visited() -> None:
    plan = rooflens.plan("Qwen/Qwen3-30B-A3B", "rtx-4090")  # 61 GB on 24 GB
    found = advice(plan)
    assert found["host_experts"].fits
    one, all_of_them = (
        rooflens.plan("Qwen/Qwen3-30B-A3B", "rtx-4090", batch=batch).advice for batch in (1, 64)
    )
    from rooflens.units import parse_duration

    times = [
        parse_duration(next(a for a in part if a.technique == "host_experts").facts["tpot"], field="tpot")
        for part in (one, all_of_them)
    ]
    # 8 of 128 experts for one token, nearly all of them for 64
    assert times[1] > 10 * times[0]
    assert not advice(rooflens.plan("Qwen/Qwen3-30B-A3B", "h100-sxm"))["host_experts"].gains
    assert "host_experts" not in advice(rooflens.plan("llama-2-7b", "rtx-4090"))


def test_speculation_says_from_which_batch_it_stops_paying() -> None:
    found = advice(rooflens.plan("llama-2-7b", "a100-sxm-80", prompt=64, output=16, context=16))
    draft = found["speculative_decoding"]
    until = int(draft.facts["until"].replace(",", "").rstrip("+"))
    assert 8 < until < 4096
    assert draft.to_dict()["stops_at"] == draft.facts["until"]
    before, after = (
        advice(rooflens.plan("llama-2-7b", "a100-sxm-80", prompt=64, output=16, context=16, batch=batch))
        for batch in (max(1, until // 2), min(2048, until * 2))
    )
    assert before["speculative_decoding"].gains
    gain = after["speculative_decoding"].tpot_gain
    assert gain is not None
    assert gain < before["speculative_decoding"].tpot_gain  # type: ignore[operator]
    assert found["ngram_decoding"].gains


def test_other_layouts_have_the_same_devices() -> None:
    plan = rooflens.plan("llama-3.1-8b", "l40s", count=8, batch=64, engine="vllm")
    other = advice(plan)["other_layout"]
    assert other.gains  # eight ways over PCIe is too many for 8e9 parameters
    assert other.change is not None
    product = 1
    for part in other.change.split(", "):
        product *= int(part.split()[1])
    assert product == 8
    assert "other_layout" not in advice(rooflens.plan("llama-3.1-8b", "l40s"))
