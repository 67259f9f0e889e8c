"""Files: the right kind by ending, whole or not at all, rows that a spreadsheet reads."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

import rooflens
from rooflens.cli.output import to_document
from rooflens.errors import InputError
from rooflens.report.files import save_rows, write_answer, write_whole
from rooflens.report.rows import answer_rows, flat, to_csv
from rooflens.report.words import words

SAY = words("en")


def write(result, command, path):
    write_answer(result, command, path, SAY, document=lambda: to_document(result, command))


def read_csv(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def plan():
    return rooflens.plan("llama-2-7b", "a100-sxm-80", batch=32)


def test_json_is_the_document(tmp_path, plan):
    write(plan, "plan", tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")) == plan.to_dict()


def test_csv_of_a_plan_is_one_row(tmp_path, plan):
    write(plan, "plan", tmp_path / "plan.csv")
    (row,) = read_csv(tmp_path / "plan.csv")
    assert float(row["decode.bound_s"]) == plan.decode.bound_s
    assert row["memory.fits"] == "true"
    assert row["memory.weights_bytes"] == str(2 * 6_738_415_616)
    assert row["workload.max_model_len"] == ""
    assert "schema" not in row
    assert "model.schema" not in row


def test_csv_of_a_comparison_has_a_row_per_combination(tmp_path):
    result = rooflens.compare("llama-2-7b", ["t4", "a100-sxm-80"], weights=["fp16", "fp8"])
    write(result, "compare", tmp_path / "compare.csv")
    rows = read_csv(tmp_path / "compare.csv")
    assert [(row["device"], row["weights"]) for row in rows] == [
        ("t4", "fp16"), ("t4", "fp8"), ("a100-sxm-80", "fp16"), ("a100-sxm-80", "fp8")
    ]  # fmt: skip
    assert rows[1]["plan.decode.bound_s"] == ""
    assert "fp8" in rows[1]["error.what"]


def test_csv_of_a_sweep_has_its_columns(tmp_path):
    result = rooflens.sweep("llama-2-7b", "a100-sxm-80", batch=[1, 2, 4], context=2048)
    write(result, "sweep", tmp_path / "sweep.csv")
    rows = read_csv(tmp_path / "sweep.csv")
    assert [row["batch"] for row in rows] == ["1", "2", "4"]
    assert float(rows[2]["kv_s"]) == result["kv_s"][2]


def test_csv_of_a_roofline_has_its_points(tmp_path):
    result = rooflens.roofline(peak=165e12, bandwidth=1e12, intensities=[1, 1000])
    write(result, "roofline", tmp_path / "roofline.csv")
    rows = read_csv(tmp_path / "roofline.csv")
    assert [row["regime"] for row in rows] == ["memory", "compute"]
    assert {row["ridge_flops_per_byte"] for row in rows} == {"165.0"}


def test_csv_of_devices_has_a_row_each(tmp_path):
    write(rooflens.devices(), "devices", tmp_path / "devices.csv")
    assert [row["id"] for row in read_csv(tmp_path / "devices.csv")] == [one.id for one in rooflens.devices()]


def test_rows():
    document = {"schema": "x/1", "a": {"b": 1, "schema": "y/1", "c": [1, 2]}, "d": None, "e": [{"f": 1}]}
    assert flat(document) == {"a.b": 1, "a.c": "1; 2", "d": None}
    assert answer_rows({"schema": "x/1", "points": [{"p": 1}, {"p": 2}], "q": {"r": 3}}) == [
        {"q.r": 3, "p": 1},
        {"q.r": 3, "p": 2},
    ]
    assert to_csv([{"a": 1, "b": True}, {"c": 'x "y", z'}]) == 'a,b,c\n1,true,\n,,"x ""y"", z"\n'


def test_save_rows(tmp_path):
    save_rows([{"a": 1}], tmp_path / "rows.csv")
    save_rows([{"a": "解码"}], tmp_path / "rows.json")
    assert (tmp_path / "rows.csv").read_text() == "a\n1\n"
    assert json.loads((tmp_path / "rows.json").read_text(encoding="utf-8")) == [{"a": "解码"}]
    with pytest.raises(InputError, match=r"allowed: \.json, \.csv"):
        save_rows([], tmp_path / "rows.xlsx")


@pytest.mark.parametrize("name", ["plan", "plan.", "plan.xyz", "plan.jpeg", ".png"])
def test_unknown_endings_are_refused_before_anything_is_counted(tmp_path, plan, name):
    def never():
        raise AssertionError

    with pytest.raises(InputError, match=r"\.json, \.csv, \.png, \.svg, \.pdf, \.html"):
        write_answer(plan, "plan", tmp_path / name, SAY, document=never)
    assert list(tmp_path.iterdir()) == []


def test_answers_without_a_chart_say_so(tmp_path):
    with pytest.raises(InputError, match=r"allowed: \.json, \.csv$"):
        write(rooflens.inspect("llama-2-7b"), "inspect", tmp_path / "model.png")


def test_endings_in_capitals(tmp_path, plan):
    write(plan, "plan", tmp_path / "PLAN.JSON")
    assert (tmp_path / "PLAN.JSON").exists()


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "answer.json"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="no space left on device"):
        write_whole(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_replaced_and_links_are_followed(tmp_path):
    real = tmp_path / "real.csv"
    real.write_text("old")
    link = tmp_path / "link.csv"
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="no such file or directory"):
        write_whole(tmp_path / "missing" / "answer.json", b"")
    with pytest.raises(InputError, match="folder"):
        write_whole(tmp_path, b"")
