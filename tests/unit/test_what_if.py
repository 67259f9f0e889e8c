"""Techniques by name: each is a transformation of the plan, and they add up."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import rooflens
from rooflens.analysis.what_if import FORMS, technique_of
from rooflens.cli.plan import plan as command
from rooflens.errors import RooflensError

ALL = [
    "weights=fp8", "kv=fp8", "batch=16", "chunk=2048", "prefix=0.5", "draft=4:0.7:0.1", "ngram=2:40%",
    "tp=2,dp=2", "device=h200-sxm", "split", "offload=2GB", "nvme=2GB", "eager", "unfused",
]  # fmt: skip


def test_every_form_is_a_technique() -> None:
    forms = {form.split("=")[0].split(",")[0] for form in FORMS}
    assert {name.split("=")[0] for name in ALL} | {"experts"} == forms


def test_techniques_add_up() -> None:
    plan = rooflens.plan("llama-2-7b", "h100-sxm", batch=8, techniques=["weights=fp8", "kv=fp8"])
    assert plan.what_if is not None
    first, second = plan.what_if.steps
    both = rooflens.plan("llama-2-7b", "h100-sxm", batch=8, weights="fp8", kv_dtype="fp8")
    assert second.outcome.memory_bytes == both.ledger.total_bytes
    assert plan.what_if.now.memory_bytes == plan.ledger.total_bytes
    assert first.outcome.tpot_s < plan.what_if.now.tpot_s
    assert second.outcome.tpot_s < first.outcome.tpot_s
    product = first.tpot_gain * second.tpot_gain
    assert product == pytest.approx(plan.what_if.now.tpot_s / second.outcome.tpot_s)


def test_each_alone_is_priced_and_one_without_gain_says_so() -> None:
    for name in ALL:
        plan = rooflens.plan("llama-2-7b", "h100-sxm", batch=4, prompt=1024, techniques=[name])
        assert plan.what_if is not None
        (step,) = plan.what_if.steps
        document = json.loads(json.dumps(step.to_dict(), allow_nan=False))
        assert document["technique"] == name
        if name in ("eager", "unfused", "nvme=2GB"):
            assert step.tpot_gain <= 1.001
            assert step.ttft_gain <= 1.001
    sparse = rooflens.plan("Qwen/Qwen3-30B-A3B", "h100-sxm", techniques=["experts=host"])
    assert sparse.what_if is not None
    assert sparse.what_if.steps[0].memory_saved_bytes > 50e9


@pytest.mark.parametrize(
    "name",
    [
        "magic", "weights", "weights=", "batch=0", "batch=x", "prefix=2", "draft=4", "draft=4:2",
        "ngram=2:0.4:0.1", "device=none-such", "tp=2,zp=3", "tp=0", "experts=disk", "offload=much",
        "split=2", "weights=none-such", "experts=host",
    ],
)  # fmt: skip
def test_what_is_no_technique(name: str) -> None:
    with pytest.raises(RooflensError):
        rooflens.plan("llama-2-7b", "h100-sxm", techniques=[name])
    if name not in ("weights=none-such", "experts=host"):
        with pytest.raises(RooflensError):
            technique_of(name)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table(lang: str) -> None:
    done = CliRunner().invoke(
        command,
        ["llama-2-7b", "-d", "h100-sxm", "--try", "weights=fp8", "--try", "chunk=2048", "--lang", lang],
    )
    assert done.exit_code == 0, done.output
    assert "+ weights=fp8" in done.output
    assert "+ chunk=2048" in done.output
