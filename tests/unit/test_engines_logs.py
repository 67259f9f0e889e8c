"""The engines' ledgers against start-up logs: the thresholds, and the page made from them."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS, TOKENS, FAR = 0.01, 0.03, 0.10
BYTES_PER_TOKEN = 0.005


@cache
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_ledgers", ROOT / "benchmarks" / "engine_ledgers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_ledgers"] = module
    spec.loader.exec_module(module)
    return module


@cache
def compared(name: str) -> list[Any]:
    return list(benchmark().compare_all(name))


FILES = ("engine_logs.csv", "held_out.csv")


@pytest.mark.parametrize("name", FILES)
def test_weights_are_within_a_percent_or_say_why(name: str) -> None:
    for item in compared(name):
        if item.weights is not None:
            assert abs(item.weights.difference) <= WEIGHTS or item.reason, item
    assert median(benchmark().differences(compared(name), "weights")) <= WEIGHTS


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("figure", ["given_tokens", "predicted_tokens", "predicted_pool", "concurrency"])
def test_tokens_are_close_in_the_median_and_never_far_without_a_reason(name: str, figure: str) -> None:
    assert median(benchmark().differences(compared(name), figure)) <= TOKENS
    for item in compared(name):
        found = getattr(item, figure)
        if found is not None and abs(found.difference) > FAR:
            assert item.reason, item


@pytest.mark.parametrize("name", FILES)
def test_cache_bytes_per_token_are_within_half_a_percent(name: str) -> None:
    """Pool over tokens with the pool given: the inverse of the tokens."""
    for item in compared(name):
        for found in (item.given_tokens, item.cache):
            if found is not None:
                assert abs(found.difference) <= BYTES_PER_TOKEN or item.reason, item


FAILURES = {
    "L060": "151936 vocabulary entries and 8 KV heads",
    "L073": "No available memory for the cache blocks",
    "L075": "max seq len (29000) is larger than the maximum number of tokens",
    "L080": "max seq len (131072) is larger than the maximum number of tokens",
    "L098": "needs 23.25 GiB of KV cache, larger than the available 22.50 GiB",
    "L101": "larger than the maximum number of tokens that can be stored in KV cache (2368)",
}


def test_failed_starts_fail_for_the_right_reason_and_no_other_does() -> None:
    seen = {}
    for item in compared("engine_logs.csv"):
        if item.failure or item.logged_failure:
            seen[item.row] = item.failure
    assert set(seen) == set(FAILURES)
    for row, words in FAILURES.items():
        assert words in seen[row], (row, seen[row])
    assert not [item.row for item in compared("held_out.csv") if item.failure]


def test_every_row_is_compared_or_said_not_to_be() -> None:
    names = {row["row"] for row in benchmark().rows()}
    done = {item.row for item in compared("engine_logs.csv")}
    assert done | set(benchmark().cases()["not_compared"]) == names


def test_the_page_is_current() -> None:
    assert benchmark().PAGE.read_text() == benchmark().render(), "run python benchmarks/engine_ledgers.py"
