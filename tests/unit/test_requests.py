"""Request lengths: fixed, spread, or from a file; and what the cache of many of them holds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rooflens import api
from rooflens.analysis.requests import Requests, observed_requests, spread_requests
from rooflens.analysis.serving import overflow_share
from rooflens.errors import InputError, NotFoundError
from rooflens.interop.lengths import read_lengths


def test_a_spread_keeps_its_mean() -> None:
    spread = spread_requests(prompt=1000, output=200, prompt_std=500, output_std=100)
    points = [computed + cached for computed, cached in spread.prompt_points()]
    assert len(points) == 8
    assert sum(points) / 8 == pytest.approx(1000, rel=0.01)
    assert points == sorted(points)
    assert Requests(1000, 200).prompt_points() == ((1000, 0),)
    assert Requests(1000, 200, shared_prefix=0.9).prompt_points() == ((100, 900),)


def test_what_is_held_at_a_random_moment() -> None:
    """Against drawing: a request is met in proportion to its output's length, anywhere along it."""
    rng = random.Random(5)
    pairs = [(rng.randint(10, 2000), rng.randint(1, 400), 1.0) for _ in range(500)]
    known = observed_requests(pairs)
    weights = [output for _, output, _ in pairs]
    drawn = []
    for prompt, output, _ in rng.choices(pairs, weights, k=40_000):
        drawn.append(prompt + rng.random() * output)
    assert known.mean_context == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert known.full_context == max(prompt + output for prompt, output, _ in pairs)
    fixed = Requests(100, 60)
    assert fixed.mean_context == 130
    assert fixed.context_variance == pytest.approx(60**2 / 12)


def test_the_cache_overflows_half_the_time_when_it_holds_just_the_mean() -> None:
    requests = Requests(900, 200)  # 1000 at a random moment
    assert overflow_share(requests, 100, 100_000) == pytest.approx(0.5)
    assert overflow_share(requests, 50, 100_000) == 0  # even all at full length fit
    assert 0 < overflow_share(requests, 99, 100_000) < 0.5
    assert overflow_share(requests, 100, None) == 0


def test_files_of_lengths(tmp_path: Path) -> None:
    table = tmp_path / "lengths.csv"
    table.write_text("input_len,output_len,count\n100,10,3\n200,30,1\n", encoding="utf-8")
    assert read_lengths(table) == [(100, 10, 3.0), (200, 30, 1.0)]
    known = observed_requests(read_lengths(table))
    assert (known.prompt, known.output) == (125, 15)
    lines = tmp_path / "lengths.jsonl"
    lines.write_text('{"prompt": 100, "output": 10}\n\n[200, 30]\n', encoding="utf-8")
    assert read_lengths(lines) == [(100, 10, 1.0), (200, 30, 1.0)]
    whole = tmp_path / "lengths.json"
    whole.write_text(json.dumps([[7, 8], {"prompt_tokens": 9, "completion_tokens": 10}]), encoding="utf-8")
    assert read_lengths(whole) == [(7, 8, 1.0), (9, 10, 1.0)]


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "prompt,output\n100,0\n", "row 2: an output length"),
        ("a.csv", "prompt,output\nmany,10\n", "row 2: a prompt length"),
        ("a.csv", "tokens\n100\n", "row 2 has no prompt length"),
        ("a.csv", "prompt,output\n", "no request lengths"),
        ("a.json", "{}", "not a list"),
        ("a.json", "[3]", "row 1 is no request"),
        ("a.jsonl", "{", "cannot be read"),
        ("a.csv", "prompt,output,count\n1,1,nan\n", "row 2: a count"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, text: str, match: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=match):
        read_lengths(path)
    with pytest.raises(NotFoundError):
        read_lengths(tmp_path / "none.csv")


def test_lengths_and_spread_reach_the_serving(tmp_path: Path) -> None:
    table = tmp_path / "lengths.csv"
    table.write_text("prompt,output\n100,50\n4000,50\n", encoding="utf-8")
    served = api.serving("llama-3.1-8b", "h100-sxm", rate=5, engine="vllm", lengths=table)
    assert served.requests is not None
    assert served.requests.prompt == 2050
    fixed, spread = (
        api.serving(
            "llama-3.1-8b", "h100-sxm", rate=8, engine="vllm", prompt=2000, output=100, prompt_std=std
        )
        for std in (0, 1500)
    )
    assert spread.ttft_quantiles_s is not None
    assert fixed.ttft_quantiles_s is not None
    assert spread.ttft_quantiles_s[2] > 1.2 * fixed.ttft_quantiles_s[2]
    with pytest.raises(InputError, match="both given"):
        api.serving("llama-3.1-8b", "h100-sxm", rate=5, lengths=table, prompt_std=3)
    with pytest.raises(InputError):
        api.serving("llama-3.1-8b", "h100-sxm", rate=5, output_std=-1)
