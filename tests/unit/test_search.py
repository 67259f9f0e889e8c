"""Search: what it keeps meets every limit, what it says of the rest is true, its lines start engines."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rooflens import api
from rooflens.analysis.launch import Launch, command_line
from rooflens.analysis.search_result import SearchResult
from rooflens.cli.options import parse_rate
from rooflens.cli.search import parse_prices
from rooflens.cli.search import search as command
from rooflens.errors import InputError

PRICES = {"h100-sxm": 2.5, "l40s": 0.9, "rtx-4090": 0.4}


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return api.search(
        "llama-3.1-8b", list(PRICES), rate=5, ttft=0.5, tpot=0.04, prompt=1000, output=200, prices=PRICES
    )


def test_options_meet_every_limit_and_are_ranked(found: SearchResult) -> None:
    assert found.options
    prices = [option.price_per_hour or 0 for option in found.options]
    assert prices == sorted(prices)
    for option in found.options:
        assert option.ttft_s <= 0.5
        assert option.tpot_s <= 0.04
        assert option.max_rate_per_s > 5
        assert option.devices <= 8
        assert option.price_per_hour == pytest.approx(PRICES[option.device] * option.devices)
        assert option.why


def test_prices_by_hand(found: SearchResult) -> None:
    # 0.4 an hour at 5 x 200 tokens a second: 3.6e6 tokens an hour, 0.111 a million
    first = found.options[0]
    assert first.price_per_million_tokens(found.goal) == pytest.approx((first.price_per_hour or 0) / 3.6)


def test_an_option_is_what_serving_says(found: SearchResult) -> None:
    option = next(one for one in found.options if one.replicas == 1)
    own = None if option.weights in ("bf16", "fp16") else option.weights
    served = api.serving(
        "llama-3.1-8b", option.device, rate=5, count=option.tp, weights=own, kv_dtype=option.kv_dtype,
        engine="vllm", prompt=1000, output=200, max_model_len=1200, max_sequences=option.max_sequences,
        max_batched_tokens=option.budget,
    )  # fmt: skip
    assert option.tpot_s == pytest.approx(served.tpot_s, rel=0.03)
    assert option.ttft_s == pytest.approx(served.ttft_s, rel=0.10)
    assert option.max_rate_per_s == pytest.approx(served.max_rate_per_s, rel=0.03)


def test_the_front_is_not_beaten(found: SearchResult) -> None:
    for one in found.options:
        if one.pareto:
            assert not any(
                (other.price_per_hour or 0) < (one.price_per_hour or 0)
                and other.tpot_s < one.tpot_s
                and other.max_rate_per_s > one.max_rate_per_s
                for other in found.options
            )
    assert found.options[0].pareto


def test_tighter_limits_leave_fewer() -> None:
    counts = [
        api.search("llama-3.1-8b", ["l40s"], rate=5, tpot=tpot, prompt=1000, output=200).feasible
        for tpot in (0.01, 0.02, 0.04)
    ]
    assert counts == sorted(counts)


def test_an_infeasible_search_says_which_limit_kills() -> None:
    fine = api.search("llama-3.1-8b", ["l40s"], rate=5, prompt=1000, output=200)
    least = min(option.tpot_s for option in fine.options)
    result = api.search("llama-3.1-8b", ["l40s"], rate=5, tpot=0.95 * least, prompt=1000, output=200)
    killer = next(one for one in result.constraints if one.name == "tpot")
    if result.feasible == 0:
        assert killer.fails_alone > 0
        assert killer.passes_relaxed
        assert killer.best is not None
        assert killer.best > 0.95 * least
        assert result.nearest is not None
        assert dict(result.nearest.over)["tpot"] > 1


def test_what_does_not_fit_is_memorys_fault() -> None:
    result = api.search("llama-3.1-70b", ["t4"], rate=1, weights=[None], kv_dtypes=[None], max_devices=2)
    assert result.options == ()
    memory = next(one for one in result.constraints if one.name == "memory")
    assert memory.fails == result.tried
    assert result.nearest is None


def test_a_million_configurations_are_tried_at_once() -> None:
    result = api.search(
        "llama-3.1-8b", ["h100-sxm", "l40s"], rate=50, prompt=1000, output=200, max_devices=64
    )
    assert result.tried > 400_000
    assert len(result.options) <= 60


def test_the_json_has_no_surprises(found: SearchResult) -> None:
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["schema"] == "rooflens.search/1"
    assert document["price_source"] == "given by the user"
    assert {"command", "why", "pareto", "price_per_hour"} <= set(document["options"][0])


LAUNCH = Launch("vllm", "owner/model", "fp8", "fp8", 2, 1, 4, 4096, 64, 8192)


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("vllm", "vllm serve owner/model --quantization fp8 --kv-cache-dtype fp8 --tensor-parallel-size 2 "
         "--data-parallel-size 4 --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 8192"),
        ("sglang", "python -m sglang.launch_server --model-path owner/model --quantization fp8 "
         "--kv-cache-dtype fp8_e4m3 --tp 2 --dp 4 --context-length 4096 --max-running-requests 64 "
         "--chunked-prefill-size 8192"),
    ],
)  # fmt: skip
def test_lines_of_serving_engines(engine: str, line: str) -> None:
    from dataclasses import replace

    assert command_line(replace(LAUNCH, engine=engine)) == line


def test_lines_of_other_engines() -> None:
    llama = Launch("llama.cpp", "owner/model", "q4_k_m", "q8_0", 1, 1, 1, 2048, 4, 512)
    assert command_line(llama) == (
        "llama-server -m model-Q4_K_M.gguf -ngl 999 -c 8192 -np 4 --cache-type-k q8_0 --cache-type-v q8_0"
    )
    own = Launch("rooflens", "owner/model", None, None, 1, 1, 1, 2048, 4, 512)
    assert command_line(own).startswith("rooflens serve owner/model --max-model-len 2048")
    awq = Launch("vllm", "owner/model", "awq", None, 1, 1, 1, 2048, 4, 512)
    assert command_line(awq).startswith(
        "vllm serve owner/model-AWQ --max-model-len"
    )  # needs its own checkpoint


def test_what_the_command_line_reads() -> None:
    assert parse_rate("5/s") == parse_rate("300/min") == parse_rate("5") == 5
    assert parse_prices("a=1, b=2.5") == {"a": 1.0, "b": 2.5}
    for bad in ("5/week", "x/s", "0/s", "-1", "nan"):
        with pytest.raises(InputError):
            parse_rate(bad)
    for bad in ("a", "=1", "a=x", "a=-1"):
        with pytest.raises(InputError):
            parse_prices(bad)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_both_outcomes_print(lang: str) -> None:
    runner = CliRunner()
    arguments = ["llama-3.1-8b", "-d", "l40s", "--rate", "5/s", "--ttft", "500ms", "--lang", lang]
    good = runner.invoke(command, [*arguments, "--tpot", "40ms"])
    assert good.exit_code == 0, good.output
    assert "vllm serve" in good.output
    bad = runner.invoke(command, [*arguments, "--tpot", "1ms"], standalone_mode=False)
    assert bad.return_value == 1
    assert "l40s" in bad.output


@pytest.mark.parametrize("asked", [{"rate": 0}, {"rate": 1, "ttft": 0}, {"rate": 1, "tpot": -1}])
def test_what_cannot_be_asked(asked: dict[str, float]) -> None:
    with pytest.raises(InputError):
        api.search("llama-3.1-8b", ["l40s"], **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no devices"):
        api.search("llama-3.1-8b", [], rate=1)


def test_the_front_is_drawn(found: SearchResult) -> None:
    pytest.importorskip("altair")
    from rooflens.report.charts.search import search_chart
    from rooflens.report.words import words

    for dark in (False, True):
        document = search_chart(found, words("en"), dark=dark).to_dict()
        assert "rtx-4090" in json.dumps(document)
    empty = api.search("llama-3.1-8b", ["l40s"], rate=5, tpot=1e-4)
    with pytest.raises(InputError, match="nothing to draw"):
        search_chart(empty, words("zh"))
