"""A model that fits in the caches is not bound by the memory behind them."""

from __future__ import annotations

import pytest

import rooflens
from rooflens.analysis.on_chip import cache_bytes
from rooflens.hardware import find_device


def test_caches_by_hand() -> None:
    # A100: 40 MiB of L2 and 108 x 164 KiB of shared memory
    assert cache_bytes(find_device("a100-sxm-80")) == pytest.approx(40 * 2**20 + 108 * 164 * 2**10, rel=0.2)


def test_a_small_model_on_a_large_cache_is_not_bound_by_memory() -> None:
    # 135e6 parameters at 8.5 bits are 143 MB; an MI300X keeps 256 MB in its last-level cache alone
    plan = rooflens.plan("smollm2-135m", "mi300x", weights="q8_0", context=128)
    assert plan.decode.bound_s < plan.decode.bytes / 5.3e12
    assert any("fit in the" in note for note in plan.notes)
    assert plan.decode.estimate.low >= plan.decode.bound_s


def test_a_large_model_is() -> None:
    plan = rooflens.plan("llama-2-7b", "mi300x", context=128)
    assert plan.decode.bound_s == pytest.approx(plan.decode.bytes / 5.3e12)
    assert not any("fit in the" in note for note in plan.notes)
