"""Search: what it keeps meets every limit, what it says of the rest is true, its lines start engines."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rooflens import api
from rooflens.analysis.search_result import SearchResult
from rooflens.cli.options import parse_rate
from rooflens.cli.search import parse_prices
from rooflens.cli.search import search as command
from rooflens.errors import InputError

PRICES = {"h100-sxm": 2.5, "l40s": 0.9, "rtx-4090": 0.4}


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return api.search(
        "llama-3.1-8b",
        list(PRICES),
        rate=5,
        ttft=0.5,
        tpot=0.04,
        prompt=1000,
        output=200,
        prices=PRICES,
        price_source="none",
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
        paid = sum(PRICES[pool.device] * pool.devices for pool in option.pools)
        assert option.price_per_hour == pytest.approx(paid)
        assert option.why


def test_prices_by_hand(found: SearchResult) -> None:
    # 0.4 an hour at 5 x 200 tokens a second: 3.6e6 tokens an hour, 0.111 a million
    first = found.options[0]
    assert first.price_per_million_tokens(found.goal) == pytest.approx((first.price_per_hour or 0) / 3.6)


def test_an_option_is_what_serving_says(found: SearchResult) -> None:
    option = next(one for one in found.options if one.replicas == 1 and len(one.pools) == 1)
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
    assert document["prices"]["l40s"] == {
        "per_hour": 0.9, "currency": "USD", "source": "given by the user", "date": None, "provider": None,
        "spot": False,
    }  # fmt: skip
    assert {"command", "why", "pareto", "price_per_hour"} <= set(document["options"][0])


def test_what_the_command_line_reads() -> None:
    assert parse_rate("5/s") == parse_rate("300/min") == parse_rate("5") == 5
    assert parse_prices("a=1, b=2.5") == {"a": 1.0, "b": 2.5}
    for bad in ("5/week", "x/s", "0/s", "-1", "nan"):
        with pytest.raises(InputError):
            parse_rate(bad)
    for bad in ("a", "=1", "a=x", "a=-1"):
        with pytest.raises(InputError):
            parse_prices(bad)


def test_the_price_is_said_with_date_and_source() -> None:
    result = api.search("llama-3.1-8b", ["rtx-4090"], rate=5, price_source="snapshot")
    price = dict(result.prices)["rtx-4090"]
    assert price.date == "2026-09-20"
    assert "akash" in price.source
    assert result.options[0].price_per_hour == pytest.approx(price.per_hour * result.options[0].devices)


def test_energy_by_hand(found: SearchResult) -> None:
    # 450 W at 5 x 200 tokens a second: 0.45 J a token, 450,000 J = 0.125 kWh a million
    option = next(one for one in found.options if one.watts == 450)
    assert option.kwh_per_million_tokens(found.goal) == pytest.approx(0.125)
    assert option.to_dict(found.goal)["tdp_joules_per_output_token"] == pytest.approx(0.45)


def test_pools_of_their_own_and_of_different_devices_are_tried() -> None:
    result = api.search(
        "llama-3.1-8b", ["h100-sxm", "l40s"], rate=40, ttft=0.5, tpot=0.03, prompt=2000, output=100,
        prices={"h100-sxm": 4.0, "l40s": 0.8}, price_source="none",
    )  # fmt: skip
    split = [one for one in result.options if len(one.pools) == 2]
    assert any(one.pools[0].device != one.pools[1].device for one in split)
    for one in split:
        assert [pool.role for pool in one.pools] == ["prefill", "decode"]
        assert one.devices <= 8
        assert one.ttft_s <= 0.5
        assert one.transfer_s
        lines = one.commands
        assert len(lines) == sum(pool.instances for pool in one.pools) + 1  # and what joins them
    without = api.search(
        "llama-3.1-8b", ["h100-sxm", "l40s"], rate=40, ttft=0.5, tpot=0.03, prompt=2000, output=100,
        split=False, price_source="none",
    )  # fmt: skip
    assert all(len(one.pools) == 1 for one in without.options)
    assert without.tried < result.tried


def test_layouts_of_experts_only_for_models_that_have_them() -> None:
    from rooflens.analysis.search_units import layouts_of

    dense, sparse = (api.read_spec_of(name) for name in ("llama-3.1-8b", "Qwen/Qwen3-30B-A3B"))
    assert all(layout.ep == 1 for layout in layouts_of(dense, 8, "vllm"))
    assert any(layout.ep > 1 and layout.dp > 1 for layout in layouts_of(sparse, 8, "vllm"))
    for spec in (dense, sparse):
        found = layouts_of(spec, 8, "vllm")
        assert all(layout.devices <= 8 for layout in found)
        assert any(layout.pp > 1 for layout in found)
        assert len(set(found)) == len(found)
    assert [layout.devices for layout in layouts_of(dense, 8, "rooflens")] == [1]


def test_every_option_says_why_it_is_not_better(found: SearchResult) -> None:
    assert found.options[0].reasons[0].key == "cheapest"
    for option in found.options[1:]:
        keys = {reason.key for reason in option.reasons}
        assert keys & {"price", "price.same", "devices", "devices.same"}
        assert keys & {"token", "first", "carries", "dominated"}
        assert "near" in keys
        assert keys & {"fewer", "fewer.enough", "fewer.memory", "least"}


def test_goodput_of_an_option_is_a_share(found: SearchResult) -> None:
    for option in found.options:
        assert option.goodput is not None
        assert 0 < option.goodput.share <= 1
        assert option.goodput.per_s == pytest.approx(5 * option.goodput.share)


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
