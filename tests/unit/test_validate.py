"""Measurements against bound and estimate: the shipped data is sound; bad rows are told one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflens import api
from rooflens.analysis.cases import Kind, bound_terms, kind_of_row, terms_of
from rooflens.analysis.validate import Validation
from rooflens.errors import InputError, NotFoundError
from rooflens.interop.exceptions import known_exceptions
from rooflens.interop.measured_models import measured_device, measured_model
from rooflens.interop.measurements import load_measurements, read_measurements
from rooflens.models.accounting import count_parameters

DATA = Path(__file__).parents[1] / "data" / "measurements" / "measurements.csv"
HEAD = "row_id,device,n_devices,tp,engine,model,weight_format,batch,input_len,output_len,metric,value,flags\n"


@pytest.fixture(scope="module")
def published() -> Validation:
    return api.validate(DATA)


def test_no_unflagged_row_of_the_data_beats_the_bound(published: Validation) -> None:
    assert [one.to_dict() for one in published.beating] == []
    assert len(published.judged) > 2000


def test_errors_and_coverage_are_what_the_accuracy_page_claims(published: Validation) -> None:
    whole = {group.kind: group for group in published.groups() if group.by == "all"}
    assert whole["decode, batch 1"].median_abs_error < 0.13
    assert whole["decode, batched"].median_abs_error < 0.17
    assert whole["TPOT, served"].median_abs_error < 0.17
    assert whole["prefill"].median_abs_error < 0.30
    for group in whole.values():
        assert 0.75 <= group.coverage <= 0.95, group  # fitted rows: more than of unseen ones


def test_what_is_left_out_is_counted_by_name(published: Validation) -> None:
    counted = dict(published.skipped)
    assert counted["device is not in the catalogue: RTX PRO 6000 Blackwell"] == 6  # two cards have that name
    document = published.to_dict()
    assert document["rows"] == len(DATA.read_text().splitlines()) - 1
    assert (
        document["judged"] + document["flagged"] + len(document["problems"]) + sum(counted.values())
        == document["rows"]
    )


def test_exceptions_are_rows_of_the_data_with_a_reason() -> None:
    rows = {row.row_id for row in load_measurements(DATA).rows}
    assert set(known_exceptions()) <= rows
    assert all(len(why) > 20 for why in known_exceptions().values())


def validate(tmp_path: Path, *rows: str) -> Validation:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return api.validate(path)


GOOD = "good,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,6.6,"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,0,", "above zero"),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,nan,", "not a finite number"),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,6.6 ms,", "not a plain number"),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_s,6.6,", "not one of"),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,0,512,128,tpot_ms,6.6,", "batch is 0"),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,1.5,128,tpot_ms,6.6,", "input_len is 1.5"),
        ("a,H100 SXM 80GB,4,2,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,6.6,", "is not n_devices 4"),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,0,128,ttft_ms,6.6,", "input_len is 0"),
        ("a,,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,6.6,", "device is empty"),
        (
            "a,H100 SXM 80GB,1,1,vLLM,llama-2-7b,,1,4000,500,tpot_ms,9,",
            "more than the model's context of 4096",
        ),
        ("a,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,6.6,,,", "more fields"),
        ("good,H100 SXM 80GB,1,1,vLLM,llama-3.1-8b,,1,512,128,tpot_ms,6.6,", "appears twice"),
    ],
)
def test_a_bad_row_is_told_and_the_rest_is_judged(tmp_path: Path, row: str, why: str) -> None:
    result = validate(tmp_path, GOOD, row)
    assert len(result.judged) == 1
    (problem,) = result.problems
    assert why in problem[2]
    assert problem[1] == 3


def test_a_row_faster_than_possible_is_named_with_its_unit(tmp_path: Path) -> None:
    result = validate(tmp_path, GOOD, GOOD.replace("good", "fast").replace("6.6", "0.0066"))
    (fast,) = result.beating
    assert fast.case.row.row_id == "fast"
    assert "seconds" in fast.hint()
    assert not result.sound


def test_flags_silence_but_are_counted(tmp_path: Path) -> None:
    flagged = GOOD.replace("good", "odd").replace("6.6,", "0.5,cached_prompt")
    result = validate(tmp_path, GOOD, flagged)
    assert result.sound
    assert result.to_dict()["flagged_beating_bound"] == 1


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "device,model,metric\n"])
def test_a_file_without_the_columns_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="lacks the column"):
        read_measurements(text.splitlines(keepends=True))


def test_unknown_names_are_skipped_not_looked_up(tmp_path: Path) -> None:
    result = validate(
        tmp_path,
        GOOD.replace("llama-3.1-8b", "nobody/nothing"),
        GOOD.replace("H100 SXM 80GB", "H900").replace("good", "other"),
    )
    assert not result.judged
    assert {why for why, _ in result.skipped} == {
        "no bundled model has this name: nobody/nothing",
        "device is not in the catalogue: H900",
    }


def row(**fields: str):  # type: ignore[no-untyped-def]
    names = HEAD.strip().split(",")
    base = dict(zip(names, GOOD.split(","), strict=True)) | fields
    (made,) = read_measurements([HEAD, ",".join(base[name] for name in names) + "\n"]).rows
    return made


def test_times_of_the_metrics() -> None:
    assert row(metric="decode_tok_s", value="100", batch="4").seconds == 0.04  # 4 tokens a step
    assert row(metric="prefill_tok_s", value="1024", batch="2").seconds == 1.0  # 2 x 512 tokens
    assert row(metric="output_tok_s", value="512", batch="4").seconds == 1.0  # 4 x 128 tokens


def test_terms_of_the_metrics() -> None:
    # a static batch: all prompts, then 127 steps at a mean context of 512 + 63.5
    prefill, decode = terms_of(row(metric="output_tok_s", batch="4"))
    assert (prefill.times, prefill.sequences, prefill.new_tokens) == (1, 4, 512)
    assert (decode.times, decode.new_tokens, decode.context) == (127, 1, 512 + 63.5)
    # a served token: one step, and its share of the other 15 requests' prompts
    step, mixed = terms_of(row(batch="16"))
    assert (step.times, step.sequences, mixed.times, mixed.role) == (1, 16, 15 / 128, "mix")
    assert [term.sequences for term in bound_terms(row(batch="16"))] == [1]
    # llama.cpp: 2048 tokens are four chunks of 512 whose mean context is 768
    (chunk,) = terms_of(row(metric="prefill_tok_s", engine="llama.cpp", input_len="2048"))
    assert (chunk.times, chunk.new_tokens, chunk.context) == (4, 512, 768)


def test_kinds_of_the_metrics() -> None:
    assert kind_of_row(row()) is Kind.DECODE_1
    assert kind_of_row(row(batch="8")) is Kind.SERVED_TPOT
    assert kind_of_row(row(batch="8", metric="ttft_ms")) is Kind.SERVED_TTFT
    assert kind_of_row(row(metric="ttft_ms")) is Kind.PREFILL
    assert kind_of_row(row(batch="8", metric="output_tok_s")) is Kind.DECODE


@pytest.mark.parametrize(
    ("name", "billions"),
    [("openai/gpt-oss-120b", 116.8), ("tiiuae/falcon-180B", 179.5), ("EleutherAI/gpt-j-6b", 6.05),
     ("meta-llama/Meta-Llama-3.1-405B", 405.9)],
)  # fmt: skip
def test_relatives_of_bundled_models_have_their_published_sizes(name: str, billions: float) -> None:
    assert count_parameters(measured_model(name, "")).total / 1e9 == pytest.approx(billions, rel=0.002)


def test_names_of_measurements() -> None:
    assert measured_device("Apple M3 Max 30c").id == "m3-max"
    with pytest.raises(NotFoundError):
        measured_device("H900 9c")
    assert measured_model("Qwen/Qwen3-32B", "fp8").quantization == "fp8"
    assert measured_model("llama-2-7b", "GGUF Q4_K_M").quantization == "q4_k_m"
