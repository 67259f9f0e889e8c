"""Prefill and decode pools: what each carries, the transfer, and what settles."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import rooflens
from rooflens import api
from rooflens.analysis.communication import Network
from rooflens.analysis.pools import transfer_of
from rooflens.cli.plan import plan as command
from rooflens.errors import InputError
from rooflens.hardware import find_device

CASE = {"engine": "vllm", "prompt": 2000, "output": 200, "max_model_len": 4096, "remedies": False}


def planned(**asked):  # type: ignore[no-untyped-def]
    plan = rooflens.plan("llama-3.1-8b", "l40s", count=4, dp=4, **{**CASE, **asked})
    assert plan.pools is not None
    return plan, plan.pools


def test_the_transfer_by_hand() -> None:
    h100, l40s = find_device("h100-sxm"), find_device("l40s")
    # 2000 tokens of 128 KiB: 262 MB; over a network of 50 GB/s 5.24 ms
    sent = transfer_of(
        2000 * 131072, h100, l40s, source_devices=1, target_devices=1, devices=5, network=Network()
    )
    assert sent.way == "network"
    assert sent.seconds == pytest.approx(2000 * 131072 / 50e9)
    # Two H100s to two others in the same node: both links at once.
    inside = transfer_of(1e9, h100, h100, source_devices=2, target_devices=2, devices=4, network=Network())
    assert inside.way == "link"
    assert inside.seconds == pytest.approx(1e9 / (2 * 450e9))
    apart = transfer_of(1e9, h100, h100, source_devices=2, target_devices=2, devices=12, network=Network())
    assert apart.way == "network"


def test_pools_carry_what_their_phases_take() -> None:
    _, pools = planned(prefill_device="h100-sxm", rate=10)
    alone = rooflens.plan("llama-3.1-8b", "h100-sxm", **CASE)
    assert pools.prefill.max_rate_per_s == pytest.approx(1 / alone.prefill.estimate.mid, rel=0.01)
    assert pools.max_rate_per_s == min(pools.prefill.max_rate_per_s, pools.decode.max_rate_per_s)
    assert pools.decode.busy == pytest.approx(10 / pools.decode.max_rate_per_s)
    # Little: the running are those that arrive while one decodes.
    assert pools.running == pytest.approx(10 * 200 * pools.tpot_s, rel=0.02)
    assert pools.devices == 5
    together = api.serving("llama-3.1-8b", "l40s", count=4, dp=4, rate=10, **CASE)
    assert pools.tpot_s < together.tpot_s  # no prompts in between
    assert pools.ttft_s > pools.transfer.seconds


def test_balance_says_how_many_of_one_feed_the_other() -> None:
    _, pools = planned(prefill_device="h100-sxm")
    per_prefill = pools.prefill.max_rate_per_s / pools.prefill.devices
    per_decode = pools.decode.max_rate_per_s / pools.decode.devices
    assert pools.balanced_ratio == pytest.approx(per_decode / per_prefill)
    # With about that many of each neither waits for the other.
    count = round(pools.balanced_ratio * 4) or 1
    _, balanced = planned(prefill_device="h100-sxm", prefill_count=count, prefill_tp=1)
    ratio = balanced.prefill.max_rate_per_s / balanced.decode.max_rate_per_s
    assert ratio == pytest.approx(count / (pools.balanced_ratio * 4))


def test_too_much_never_settles() -> None:
    _, pools = planned(prefill_device="h100-sxm", rate=10_000)
    assert not pools.stable
    assert pools.ttft_s is pools.tpot_s is None


def test_goodput_of_pools() -> None:
    _, loose = planned(prefill_device="h100-sxm", rate=15, ttft=5.0, tpot=0.2)
    _, tight = planned(prefill_device="h100-sxm", rate=15, ttft=0.08, tpot=0.2)
    assert loose.goodput.share > 0.99
    assert tight.goodput.share < 0.9


def test_the_document_and_the_table() -> None:
    arguments = [
        "llama-3.1-8b", "-d", "h100-sxm", "--prefill-count", "2", "--prefill-tp", "1", "--rate", "5/s",
        "--engine", "vllm", "--prompt", "1000",
    ]  # fmt: skip
    runner = CliRunner()
    done = runner.invoke(command, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    pools = json.loads(done.output)["pools"]
    assert (pools["prefill"]["devices"], pools["prefill"]["instances"], pools["devices"]) == (2, 2, 3)
    assert pools["transfer"]["way"] == "link"
    for lang in ("en", "zh"):
        shown = runner.invoke(command, [*arguments, "--lang", lang])
        assert "TTFT" in shown.output
        assert "2 x h100-sxm" in shown.output


@pytest.mark.parametrize(
    "asked",
    [
        {"prefill_count": 3, "prefill_tp": 2}, {"prefill_count": 0}, {"prefill_tp": 0},
        {"prefill_count": 1, "concurrency": 4}, {"prefill_device": "t4", "weights": "bf16"},
    ],
)  # fmt: skip
def test_pools_that_cannot_be(asked: dict[str, object]) -> None:
    with pytest.raises(InputError):
        planned(**asked)
