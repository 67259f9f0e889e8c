"""The account adds up, names what it cannot match, and says what is in the way."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.analysis.costs import Cost
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Op, decode_step, prefill_step, step_ops
from rooflens.bench.knee import account_from
from rooflens.explain import REMARKS, ROWS, Account, MeasuredModule, MeasuredStep, account
from rooflens.models.read import read_model
from rooflens.reading import BatchPoint, read_account, read_knee, read_phases
from rooflens.report.words import words
from rooflens.report.words_account import CHINESE_NEXT, CHINESE_REMARKS, account_words

ROOF = Roof({"bf16": 1000.0}, bandwidth_bytes_per_s=100.0)
PROJECTION = Op("layers.{i}.proj", Cost(flops=50, weight_bytes=100), "bf16", (0, 1))
CORE = Op("layers.{i}.core", Cost(flops=20, kv_read_bytes=40, kv_write_bytes=10), "bf16", (0, 1))
NORM = Op("norm", Cost(weight_bytes=10, activation_bytes=99), "bf16")
HEAD = Op("head", Cost(flops=4000, weight_bytes=100), "bf16")
OPS = (PROJECTION, CORE, NORM, HEAD)

STEP = MeasuredStep(
    phase="decode",
    steps=3,
    sequences=1,
    new_tokens=1,
    context=7,
    clock_s=20.0,
    model_s=17.5,
    sampling_s=0.5,
    scheduling_s=0.6,
    detokenisation_s=0.2,
    queues_s=0.7,
    modules=(
        MeasuredModule("layers.{i}.proj", calls=2, seconds=3.0, dispatches=4),
        MeasuredModule("layers.{i}.core", calls=2, seconds=4.0, dispatches=20),
        MeasuredModule("norm", calls=1, seconds=0.3, dispatches=50),
        MeasuredModule("head", calls=1, seconds=5.0, dispatches=1),
    ),
    module_calls=10,
    loose_dispatches=30,
    dispatch_s=0.1,
    module_call_s=0.02,
    timer_s=0.05,
)


def rows(found: Account) -> dict[str, float]:
    return {row.name: row.seconds for row in found.rows}


def test_the_waterfall_by_hand() -> None:
    found = account(OPS, STEP, ROOF)
    # Two projections: 200 B / 100 B/s = 2 s (100 FLOP take 0.1 s); two cores: 100 B = 1 s; the norm: 10 B
    # = 0.1 s; the head: 4000 FLOP / 1000 FLOP/s = 4 s, longer than its 1 s of bytes.
    expected = {
        "weights": 2.0 + 0.1,
        "kv": 1.0,
        "compute": 4.0,
        # Calls of 0.1 s each: 4 of the projections' (0.4 of a gap of 1.0), 20 of the cores' (2.0 of 3.0), the
        # norm's gap of 0.2 whole, 0.1 of the head's 1.0. Between modules: 17.5 - 12.3 - 6 timers of 0.05 is
        # 4.9, of which 30 x 0.1 + 10 x 0.02 = 3.2 are calls.
        "launch": 0.4 + 2.0 + 0.2 + 0.1 + 3.2,
        "attention": 1.0,
        "matmuls": 0.6 + 0.9,
        "small_operators": 0.0,
        "profiler": 0.3,
        "sampling": 0.5,
        "scheduling": 0.6,
        "detokenisation": 0.2,
        "drafting": 0.0,
        "queues": 0.7,
        "forward": 0.0,
        # 4.9 - 3.2 of the forward pass, and 20 - 17.5 - 2.0 outside of it.
        "unexplained": 1.7 + 0.5,
    }
    assert rows(found) == pytest.approx(expected, abs=1e-12)
    # The bound: 4000 + 100 + 40 FLOP take 4.14 s, all 410 bytes 4.1 s.
    assert found.bound_s == pytest.approx(4.14)
    assert found.roofline_s == pytest.approx(7.1)
    assert found.limited_by == "compute"
    assert (found.mfu, found.mbu) == pytest.approx((4.14 / 20, 4.1 / 20))
    assert found.times_bound == pytest.approx(20 / 4.14)
    assert found.dispatches == 4 + 20 + 50 + 1 + 30
    head = found.modules[-1]
    assert (head.limited_by, head.mfu, head.mbu) == ("compute", 0.8, 0.2)
    assert found.modules[0].gap_s == pytest.approx(1.0)


def test_names_on_one_side_only_are_listed() -> None:
    other = MeasuredModule("layers.{i}.extra", calls=1, seconds=0.5)
    found = account(OPS, replace(STEP, modules=(*STEP.modules[:3], other)), ROOF)
    assert found.only_predicted == ("head",)
    assert found.only_measured == ("layers.{i}.extra",)
    assert sum(rows(found).values()) == pytest.approx(20.0)
    assert "compute" in rows(found)
    assert rows(found)["compute"] == 0.0


def test_a_compiled_step_is_compared_as_one() -> None:
    found = account(OPS, replace(STEP, modules=()), ROOF)
    assert rows(found)["forward"] == pytest.approx(17.5 - 7.1)
    assert read_account(found).key == "forward"
    assert sum(rows(found).values()) == pytest.approx(20.0)
    assert found.only_predicted == ()
    assert any("compared as one" in note for note in found.notes)


def test_faster_than_the_roofline_is_said() -> None:
    quick = (replace(STEP.modules[0], seconds=1.0), *STEP.modules[1:])
    found = account(OPS, replace(STEP, modules=quick, spread=0.5), ROOF)
    assert rows(found)["matmuls"] == pytest.approx(-1.0 + 0.9)
    assert any("layers.{i}.proj" in note and "too low" in note for note in found.notes)
    assert any("50 %" in note for note in found.notes)


def test_steps_left_alone_that_are_much_faster_are_said() -> None:
    assert account(OPS, replace(STEP, whole_s=19.0), ROOF).stands_for_others
    captured = account(OPS, replace(STEP, whole_s=5.0), ROOF)
    assert not captured.stands_for_others
    assert any("4.0 times as long" in note for note in captured.notes)


@settings(max_examples=50, deadline=None)
@given(
    seconds=st.lists(st.just(0.0) | st.floats(1e-9, 10), min_size=4, max_size=4),
    model=st.floats(0, 100),
    clock=st.floats(0.1, 200),
    dispatch=st.floats(0, 1),
)
def test_the_rows_always_add_up(seconds: list[float], model: float, clock: float, dispatch: float) -> None:
    modules = tuple(
        replace(module, seconds=value) for module, value in zip(STEP.modules, seconds, strict=True)
    )
    step = replace(STEP, modules=modules, model_s=model, clock_s=clock, dispatch_s=dispatch)
    found = account(OPS, step, ROOF)
    assert sum(row.seconds for row in found.rows) == pytest.approx(clock, abs=1e-9)
    assert [row.name for row in found.rows] == list(ROWS)
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_account_of_a_real_model_at_its_bound() -> None:
    spec = read_model("Qwen/Qwen2.5-0.5B")
    ops = step_ops(spec, decode_step(sequences=1, context=64), kv_dtype="bf16")
    roof = Roof({"bf16": 900e9}, bandwidth_bytes_per_s=50e9)
    modules = tuple(MeasuredModule(op.name, op.count, float(op.total.moved_bytes) / 50e9) for op in ops)
    model_s = sum(module.seconds for module in modules)
    measured = MeasuredStep("decode", 1, 1, 1, 64, model_s, model_s, modules=modules)
    found = account(ops, measured, roof)
    # 494,032,768 parameters x 2 B, all read but for the token table's other rows; KV 12 KiB a token x 65.
    assert found.clock_s == pytest.approx((494_032_768 * 2 + 65 * 12_288) / 50e9, rel=1e-4)
    assert found.share("weights") > 0.99
    assert found.unexplained_share == pytest.approx(0, abs=1e-9)
    assert found.mbu == pytest.approx(1.0, rel=1e-4)
    assert read_account(found).key == "weights"
    assert found.to_dict()["schema"] == "rooflens.account/1"


def made(
    phase: str = "decode", *, mfu: float = 0.02, mbu: float = 0.3, clock: float = 1.0, **parts: float
) -> Account:
    """An account with given shares of a clock; the rest is weights."""
    shares = dict.fromkeys(ROWS, 0.0) | parts
    shares["weights"] += 1 - sum(shares.values())
    empty = account(OPS, replace(STEP, phase=phase), ROOF)
    new = tuple(replace(row, seconds=shares[row.name] * clock, share=shares[row.name]) for row in empty.rows)
    return replace(empty, rows=new, clock_s=clock, mfu=mfu, mbu=mbu, bound_s=clock / 2)


def test_what_is_in_the_way() -> None:
    assert read_account(made(kv=0.1)).key == "weights"
    assert read_account(made(kv=0.6)).key == "kv"
    # The roofline is under 70 % of the clock: then the largest gap counts.
    launch = read_account(made(launch=0.3, matmuls=0.2))
    assert launch.key == "launch"
    assert "launching 105 operators, 30 %" in launch.sentence
    assert "2.0 times its bound" in launch.sentence
    assert "graph" in launch.next
    lost = read_account(made(attention=0.4, unexplained=0.2))
    assert lost.key == "attention"
    assert "Not explained: 20 %" in lost.sentence
    assert read_account(made(unexplained=0.5)).key == "unexplained"
    json.dumps(lost.to_dict(), allow_nan=False)


def test_both_phases_together() -> None:
    healthy = read_phases(made("prefill", mfu=0.6), made(mfu=0.02, mbu=0.8))
    assert healthy is not None
    assert healthy.key == "healthy"
    assert "60 %" in healthy.sentence
    low = read_phases(made("prefill", mfu=0.2), made(mfu=0.01, launch=0.4))
    assert low is not None
    assert (low.key, "graphs" in low.next) == ("launch_bound", True)
    small = read_phases(made("prefill", mfu=0.2), made(mfu=0.01, matmuls=0.4))
    assert small is not None
    assert (small.key, "more sequences" in small.next) == ("both_low", True)
    mixed = read_phases(made("prefill", mfu=0.2, attention=0.5), made(mfu=0.4, mbu=0.9))
    assert mixed is not None
    assert mixed.key == "mixed"
    assert read_phases(None, made()) is None


def test_the_knee_before_the_ridge_gets_its_cause() -> None:
    first = BatchPoint(1, made(clock=1.0))
    for cause, row in (("kv_reads", "kv"), ("reachable_peak", "compute"), ("overhead", "scheduling")):
        # 2.0 s at batch 16, of which 1.0 is new and all of it in this row.
        late = BatchPoint(16, made(clock=2.0, **{row: 0.5}))
        reading = read_knee([late, BatchPoint(8, made(clock=1.2)), first], ridge_batch=153)
        assert reading is not None
        assert reading.key == cause
        assert "batch 16" in reading.sentence
        assert "153" in reading.sentence
        assert reading.figures["cause_share"] == pytest.approx(1.0)
    at = read_knee([first, BatchPoint(256, made(clock=2.0))], ridge_batch=153)
    assert at is not None
    assert at.key == "at_the_ridge"
    none = read_knee([first, BatchPoint(64, made(clock=1.4))], ridge_batch=153)
    assert none is not None
    assert none.key == "no_knee"
    assert read_knee([first], ridge_batch=153) is None


def test_the_knee_is_told_in_chinese() -> None:
    pytest.importorskip("torch")
    from rooflens.report.tables.account import reading_sentence

    say = account_words(words("zh"))
    first = BatchPoint(1, made(clock=1.0))
    late = BatchPoint(16, made(clock=2.0, kv=0.5))
    for points, ridge, told in (
        ([first, late], 153.0, ("批次 16", "批次 153", "批次 1 ", "100 %", "KV 缓存的读取")),
        ([first, BatchPoint(256, made(clock=2.0))], 153.0, ("批次 256", "批次 153", "脊点")),
        ([first, BatchPoint(256, made(clock=2.0))], None, ("批次 256", "批次 未知")),
        ([first, BatchPoint(64, made(clock=1.4))], None, ("批次 64", "1.5 倍", "批次 未知")),
    ):
        reading = read_knee(points, ridge_batch=ridge)
        assert reading is not None
        sentence = reading_sentence(reading, say)
        assert all(part in sentence for part in told), sentence
        assert reading.key in CHINESE_NEXT


def test_remarks_are_told_in_both_languages() -> None:
    assert set(REMARKS) == set(CHINESE_REMARKS)
    measured = replace(STEP, modules=(), spread=0.5, clock_s=20.0, whole_s=10.0)
    found = account(OPS, measured, ROOF)
    assert [remark.key for remark in found.remarks] == ["spread", "watching", "whole"]
    chinese = [CHINESE_REMARKS[remark.key].format(**remark.figures) for remark in found.remarks]
    assert "50 %" in chinese[0]
    assert "2.0 倍" in chinese[1]
    assert found.to_dict()["notes"] == list(found.notes)
    assert account_from(found.to_dict()) == found


def test_what_a_step_in_one_call_takes_around_its_operators_is_launching() -> None:
    around = replace(STEP, loose_dispatches=0, module_calls=0, around_call_s=1.5)
    # 17.5 - 12.3 - 6 timers of 0.05 is 4.9: 1.5 of it is known, the rest stays unexplained.
    found, without = account(OPS, around, ROOF), account(OPS, replace(around, around_call_s=0.0), ROOF)
    assert found.seconds("launch") - without.seconds("launch") == pytest.approx(1.5)
    assert found.seconds("unexplained") == pytest.approx(without.seconds("unexplained") - 1.5)


def test_a_prefill_that_samples_nothing_has_no_head() -> None:
    spec = read_model("Qwen/Qwen2.5-0.5B")
    step = prefill_step(sequences=1, prompt=32, last_chunk=False)
    ops = step_ops(spec, step, kv_dtype="bf16")
    modules = tuple(MeasuredModule(op.name, op.count, 1e-3) for op in ops if op.name != "lm_head")
    measured = MeasuredStep("prefill", 1, 1, 32, 0, 1.0, 0.5, modules=modules)
    found = account(ops, measured, Roof({"bf16": 900e9}, bandwidth_bytes_per_s=50e9))
    assert found.only_predicted == ("lm_head",)


def test_every_row_can_be_said_in_both_languages() -> None:
    for language in ("en", "zh"):
        say = account_words(words(language))
        assert all(say(f"row.{name}") for name in ROWS)
    assert set(ROWS) - {"unexplained"} <= set(CHINESE_NEXT)
