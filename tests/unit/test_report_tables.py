"""Tables: the right numbers under the right heads, within 80 columns, plain when piped, in both languages."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

import rooflens
from rooflens import units
from rooflens.hardware import device_by_hand, devices, find_device
from rooflens.models.bundled import bundled_models
from rooflens.report.tables import compare, device, inspect, local, plan, roofline, sweep
from rooflens.report.tables import devices as devices_table
from rooflens.report.tables.layout import Bar, console, show
from rooflens.report.words import words

LANGUAGES = ("en", "zh")
ESCAPE = "\x1b"


def text_of(renderable, *, width: int = 80, color: bool | None = False) -> str:
    out = io.StringIO()
    show(renderable, on=console(file=out, width=width, color=color))
    return out.getvalue()


def line_with(text: str, start: str) -> str:
    return next(line.strip() for line in text.splitlines() if line.strip().startswith(start))


@pytest.fixture(scope="module")
def fitting():
    return rooflens.plan("llama-2-7b", "a100-sxm-80", batch=32, prompt=1920, output=128)


@pytest.fixture(scope="module")
def too_large():
    return rooflens.plan("llama-2-7b", "t4", batch=4, prompt=1920, output=128)


@pytest.fixture(scope="module")
def answers(fitting, too_large):
    """Every kind of answer, as (renderer, result)."""
    five = ("t4", "rtx-4090", "a100-pcie-80", "a100-sxm-80", "h100-sxm")
    return {
        "plan": (plan.plan_report, fitting),
        "plan too large": (plan.plan_report, too_large),
        "plan tp": (plan.plan_report, rooflens.plan("qwen2.5-7b-instruct", "h100-sxm", count=4, tp=2, dp=2)),
        "plan by hand": (
            plan.plan_report,
            rooflens.plan(rooflens.dense(params=8e9), peak=165e12, bandwidth=1e12),
        ),
        "inspect": (inspect.inspect_report, rooflens.inspect("llama-2-7b", context=2048)),
        "inspect windows": (inspect.inspect_report, rooflens.inspect("gemma-2-9b")),
        "devices": (devices_table.devices_report, devices()),
        "compare": (compare.compare_report, rooflens.compare("llama-2-7b", five)),
        "compare both": (
            compare.compare_report,
            rooflens.compare("llama-2-7b", ("a100-sxm-80", "t4"), weights=("fp16", "int8", "fp8"), batch=2),
        ),
        "sweep": (sweep.sweep_report, rooflens.sweep("llama-2-7b", "a100-sxm-80", context=2048)),
        "roofline": (
            roofline.roofline_report,
            rooflens.roofline("a100-sxm-80", model="llama-2-7b", intensities=[1, 10, 165, 1000]),
        ),
    }


ANSWERS = (
    "plan", "plan too large", "plan tp", "plan by hand", "inspect", "inspect windows", "devices", "compare",
    "compare both", "sweep", "roofline",
)  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [80, 100])
def test_fits_the_width_and_is_plain(answers, name, lang, width):
    render, result = answers[name]
    text = text_of(render(result, words(lang)), width=width)
    assert text.strip()
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert ESCAPE not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "None" not in text
    assert "nan" not in text.split()


@pytest.mark.parametrize("name", ANSWERS)
def test_narrow_terminals_lose_no_figure(answers, name):
    """At 60 columns words wrap and figures may fold, but nothing is cut off."""
    render, result = answers[name]
    text = text_of(render(result, words("en")), width=60)
    assert "…" not in text
    assert max(cell_len(line) for line in text.splitlines()) <= 60


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_device_has_a_page(lang):
    for one in devices():
        text = text_of(device.device_report(one, words(lang)))
        lines = [line for line in text.splitlines() if "http" not in line]
        assert max(cell_len(line) for line in lines) <= 80
        assert one.name in text


def test_no_color_in_a_terminal(monkeypatch, fitting):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    show(plan.plan_report(fitting, words("en")), on=console(file=out, width=80))
    assert ESCAPE in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show(plan.plan_report(fitting, words("en")), on=console(file=out, width=80))
    assert ESCAPE not in out.getvalue()


def test_piped_width_is_columns_or_80(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console(file=io.StringIO()).width == 80
    monkeypatch.setenv("COLUMNS", "120")
    assert console(file=io.StringIO()).width == 120
    monkeypatch.setenv("COLUMNS", "wide")
    assert console(file=io.StringIO()).width == 80


def test_an_output_without_the_characters_gets_question_marks_not_an_error(fitting):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    show(plan.plan_report(fitting, words("zh")), on=console(file=out, width=80))
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "#" in text  # bars are drawn with it
    assert "13.5 GB" in text


def test_plan_says_the_numbers_of_the_plan(fitting):
    text = text_of(plan.plan_report(fitting, words("en")))
    # 2 B x 6,738,415,616 = 13.5 GB; 32 x 2048 tokens x 512 KiB = 34.4 GB (32 GiB).
    assert line_with(text, "weights").split()[1:3] == ["13.5", "GB"]
    assert line_with(text, "KV cache").split()[2:4] == ["34.4", "GB"]
    decode = fitting.decode
    assert f"Decode is memory-bound: at most {units.format_rate(1 / decode.bound_s)} tok/s" in text
    assert "Prefill is compute-bound" in text
    for row, value in {
        "time, at least": units.format_seconds(decode.bound_s),
        "time, operator by operator": units.format_seconds(decode.times.op_roofline_s),
        "time, likely": units.format_seconds(decode.estimate.mid),
        "MBU, at most": units.format_share(decode.mbu_ceiling),
        "tok/s, at most": units.format_rate(decode.tokens_per_s),
    }.items():
        assert value in line_with(text, row)
    # ridge 312e12 / 2.039e12 = 153 FLOP/B, batch at the ridge for 2-byte weights the same.
    assert "they meet at 153 FLOP/B" in text
    assert "From about 153 sequences on" in text


def test_every_figure_of_a_plan_has_its_kind(fitting):
    text = text_of(plan.plan_report(fitting, words("en")))
    tagged = {
        "weights": "exact", "KV cache": "exact", "activations": "assumed", "framework": "assumed",
        "arithmetic": "exact", "intensity": "exact", "time, at least": "bound", "time, likely": "estimate",
        "time, operator": "roofline", "tok/s, at most": "bound", "tok/s, likely": "estimate",
    }  # fmt: skip
    for row, tag in tagged.items():
        assert tag in line_with(text, row), row
    for tag in set(tagged.values()):
        assert line_with(text.rpartition("Batch at the ridge")[2], tag)


def test_plan_that_does_not_fit_says_by_how_much_and_what_would_help(too_large):
    text = text_of(plan.plan_report(too_large, words("en")))
    flat = " ".join(text.split())
    deficit = units.format_bytes(too_large.ledger.deficit_bytes)
    # 13.5 GB of weights, 4 x 2048 x 512 KiB = 4.3 GB of cache, 0.2 + 1.5 GB beside them.
    assert f"Does not fit: 19.4 GB needed, 16.0 GB there, {deficit} too much." in flat
    assert "It would fit with any one of: " in flat
    for change in too_large.remedies:
        for _, value in change.settings:
            assert f"{value}" in flat.partition("any one of: ")[2]
    assert line_with(text, "missing").split()[1:3] == deficit.split()


def test_plan_over_a_limit(fitting):
    text = text_of(plan.plan_report(fitting, words("en"), over=[("tpot", 0.001), ("ttft", 0.5)]))
    assert "Over the limit: a decode step is likely to take" in text
    assert "1.00 ms asked" in text
    assert "500 ms asked" in text


def test_unknown_memory_is_said(answers):
    text = text_of(plan.plan_report(answers["plan by hand"][1], words("en")))
    assert "how much memory the device has is not known" in " ".join(text.split())


def test_compare_is_the_five_card_table(answers):
    """Ceilings at batch 1 are bandwidth over bytes moved; the T4 does not hold 13.5 + 1.5 GB and a cache."""
    _, result = answers["compare"]
    text = text_of(compare.compare_report(result, words("en")))
    for cell in result.cells:
        row = line_with(text, cell.device.id)
        assert units.format_bytes(13.5e9) in row
        if cell.plan.fits:
            assert units.format_rate(1 / cell.plan.decode.bound_s) in row.split()
        else:
            assert "over" in row or "no" in row
    assert "Fastest decode: h100-sxm" in text


def test_compare_names_what_cannot_be(answers):
    text = text_of(compare.compare_report(answers["compare both"][1], words("en")))
    assert "Cannot be" in text
    assert "a100-sxm-80 fp8" in text.partition("Cannot be")[2]


def test_sweep_shows_the_knee_in_its_row(answers):
    _, result = answers["sweep"]
    text = text_of(sweep.sweep_report(result, words("en")))
    knee = line_with(text, f"{result.knee.value} ")
    assert knee.endswith("knee")
    assert f"The knee is at batch {result.knee.value}" in text


def test_long_sweeps_are_thinned_but_keep_the_knee():
    result = rooflens.sweep("llama-2-7b", "a100-sxm-80", batch=range(1, 1001), context=2048)
    text = text_of(sweep.sweep_report(result, words("en")))
    assert "of 1,000 points shown" in text
    assert line_with(text, f"{result.knee.value} ").endswith(("knee", "knee, full"))
    assert sweep.shown_rows(5, set()) == [0, 1, 2, 3, 4]
    rows = sweep.shown_rows(1000, {77})
    assert rows[0] == 0
    assert rows[-1] == 999
    assert 77 in rows
    assert len(rows) <= sweep.LONGEST + 1


def test_roofline_of_a_card_given_by_hand():
    """165e12 / 1e12: at 10 FLOP/B 10 TFLOP/s, 6.1 % of the peak, memory-bound."""
    result = rooflens.roofline(peak=165e12, bandwidth=1e12, intensities=[1, 10, 165, 1000])
    text = text_of(roofline.roofline_report(result, words("en")))
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("given ")]
    assert [row[1:4] for row in rows[:4]] == [
        ["1.00", "1.00", "TFLOP/s"],
        ["10.0", "10.0", "TFLOP/s"],
        ["165", "165", "TFLOP/s"],
        ["1,000", "165", "TFLOP/s"],
    ]
    assert [row[-1] for row in rows[:4]] == ["memory-bound"] * 2 + ["compute-bound"] * 2
    assert "6.1 %" in text


def test_device_page_has_the_pyramid_and_the_ridges():
    text = text_of(device.device_report(find_device("a100-sxm-80"), words("en")))
    for level in ("registers", "shared memory", "L2 cache", "device memory", "host link"):
        assert level in text
    assert "40.0 MiB" in text
    assert "2.04 TB/s" in text
    bf16 = line_with(text, "bf16")
    assert "312 TFLOP/s" in bf16
    assert "153" in bf16.split()


def test_device_by_hand_has_a_page():
    by_hand = device_by_hand(peak_flops_per_s=165e12, bandwidth_bytes_per_s=1e12)
    text = text_of(device.device_report(by_hand, words("en")))
    assert "Not known: memory size." in text


def test_no_device_found():
    assert "No device" in text_of(devices_table.devices_report((), words("en")))


def test_local_devices():
    text = text_of(local.local_report(rooflens.api.detected_devices(), words("en")))
    assert re.search(r"kind +.*cpu", text)


def test_inspect_adds_up(answers):
    _, result = answers["inspect"]
    text = text_of(inspect.inspect_report(result, words("en")))
    assert "6,738,415,616" in text
    assert "512 KiB" in text  # 2 x 32 x 4096 x 2 B a token
    assert "1.00 GiB" in text  # of 2048 tokens


def test_chinese_columns_are_aligned(fitting):
    """Every evidence tag of the memory table starts in the same cell, wide characters counted twice."""
    text = text_of(plan.plan_report(fitting, words("zh")))
    rows = [line for line in text.splitlines() if line.strip().startswith(("权重", "KV 缓存", "激活"))]
    starts = {cell_len(re.split("精确|假定", line)[0]) for line in rows}
    assert len(starts) == 1


def test_user_text_is_not_markup():
    spec = rooflens.dense(params=1e9)
    object.__setattr__(spec, "name", "[red]my[/red] :smile: model")
    text = text_of(inspect.inspect_report(rooflens.inspect(spec), words("en")))
    assert "[red]my[/red] :smile: model" in text


@pytest.mark.parametrize(("share", "cells"), [(0.0, 0), (0.5, 8), (1.0, 16), (7.0, 16), (-1.0, 0)])
def test_bars(share, cells):
    assert cell_len(text_of(Bar(share)).strip()) == cells


def test_tables_import_nothing_heavy():
    code = (
        "import sys; import rooflens.report.tables.plan, rooflens.report.words; "
        "heavy = ('torch', 'numpy', 'pandas', 'altair', 'pygments', 'rich.markdown'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_bundled_model_has_a_page(lang):
    for name in (model.id for model in bundled_models()):
        text = text_of(inspect.inspect_report(rooflens.inspect(name), words(lang)))
        assert max(cell_len(line) for line in text.splitlines()) <= 80, name
        assert "None" not in text, name
