"""Charts: their data are the plan's numbers, and every file is whole, valid and works offline."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest

import rooflens
from rooflens.cli.output import to_document
from rooflens.errors import DependencyError, InputError
from rooflens.report.charts import render
from rooflens.report.charts.compare import compare_chart
from rooflens.report.charts.memory import NamedLedger, memory_chart
from rooflens.report.charts.plan import plan_chart
from rooflens.report.charts.roofline import roofline_chart, view_chart
from rooflens.report.charts.sweep import sweep_chart
from rooflens.report.charts.theme import DARK, LIGHT
from rooflens.report.files import save_chart, write_answer
from rooflens.report.words import words

EN, ZH = words("en"), words("zh")
CHARTS = ("plan", "compare", "sweep", "roofline", "memory")


@pytest.fixture(scope="module")
def plans():
    return [rooflens.plan("llama-2-7b", "a100-sxm-80", batch=batch, prompt=1920) for batch in (1, 8, 32)]


@pytest.fixture(scope="module")
def too_large():
    return rooflens.plan("llama-2-7b", "t4", batch=4, prompt=1920)


@pytest.fixture(scope="module")
def draw(plans, too_large):
    """Every chart, by name: (say, dark) -> Altair chart."""
    comparison = rooflens.compare(
        "llama-2-7b", ["t4", "a100-sxm-80"], weights=["fp16", "int8"], batch=4, prompt=1920
    )
    sweep = rooflens.sweep("llama-2-7b", "a100-sxm-80", batch=[1, 8, 64, 512], context=[512, 2048])
    view = rooflens.roofline("a100-sxm-80", model="llama-2-7b", intensities=[1, 10, 165, 1000])
    ledgers = [NamedLedger("fits", plans[2].ledger), NamedLedger("does not", too_large.ledger)]
    return {
        "plan": lambda say, dark=False: plan_chart(plans[2], say, dark=dark),
        "compare": lambda say, dark=False: compare_chart(comparison, say, dark=dark),
        "sweep": lambda say, dark=False: sweep_chart(sweep, say, dark=dark),
        "roofline": lambda say, dark=False: view_chart(view, say, dark=dark),
        "memory": lambda say, dark=False: memory_chart(ledgers, say, dark=dark),
    }


def layers(spec, name):
    """Every layer of that name, and the rows it draws."""
    found = []

    def walk(part):
        if isinstance(part, dict):
            if part.get("name") == name:
                found.append((part, part.get("data", {}).get("values")))
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for value in part:
                walk(value)

    walk(spec)
    return found


def rows(spec, name):
    ((_, values),) = layers(spec, name)
    return values


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("say", [EN, ZH], ids=["en", "zh"])
def test_specifications_hold_no_gaps(draw, name, dark, say):
    spec = draw[name](say, dark).to_dict()
    text = json.dumps(spec, allow_nan=False)  # no NaN, no Infinity
    assert "None" not in re.sub(r'"(name|of)": "[^"]*"', "", text)
    assert spec["config"]["background"] == (DARK if dark else LIGHT).background
    assert spec["title"]["text"]
    assert spec["description"].startswith(spec["title"]["text"])


def test_ridge_and_points_are_the_plans(plans):
    view = rooflens.roofline("a100-sxm-80", model="llama-2-7b", batch=(1, 8, 32), prompt=1920)
    spec = view_chart(view, EN).to_dict()
    # 312e12 FLOP/s over 2.039e12 B/s.
    assert rows(spec, "ridge") == [{"x": pytest.approx(312e12 / 2.039e12), "y": 312e12}]
    drawn = {row["name"]: row for row in rows(spec, "points")}
    assert list(drawn) == [
        "prefill, batch 1", "decode, batch 1", "decode, batch 8", "decode, batch 32"
    ]  # fmt: skip
    for plan, batch in zip(plans, (1, 8, 32), strict=True):
        for phase in (plan.prefill, plan.decode):
            row = drawn.get(f"{phase.phase.value}, batch {batch}")
            if row is None:
                continue
            assert row["x"] == phase.intensity_flops_per_byte
            assert row["y"] == pytest.approx(phase.flops / phase.bound_s)
            assert row["low"] == pytest.approx(phase.flops / phase.estimate.high)
            assert row["low"] <= row["likely"] <= row["high"] <= row["y"] * 1.0001


def test_rates_are_per_device():
    """Two devices share the work: each is at half the FLOP/s that both do together."""
    plan = rooflens.plan("llama-2-7b", "a100-sxm-80", count=2)
    view = rooflens.roofline("a100-sxm-80", model="llama-2-7b", batch=1, count=2)
    decode = view.points[-1]
    assert decode.bound_flops_per_s == pytest.approx(plan.decode.flops / plan.decode.bound_s / 2)


def test_cache_roofs_are_optional():
    view = rooflens.roofline("a100-sxm-80")
    with_caches = json.dumps(roofline_chart(view, (), EN).to_dict())
    without = json.dumps(roofline_chart(view, (), EN, caches=False).to_dict())
    assert "L2 cache 5.45 TB/s" in with_caches
    assert "L2 cache" not in without
    assert "device memory 2.04 TB/s" in without


def test_regimes_are_told_apart_without_colour(draw):
    text = json.dumps(draw["roofline"](EN).to_dict())
    assert "memory-bound" in text
    assert "compute-bound" in text
    shapes = draw["roofline"](EN).to_dict()
    ((layer, _),) = layers(shapes, "points")
    assert len(set(layer["encoding"]["shape"]["scale"]["range"])) >= 3


def test_ledger_parts_lie_end_to_end_and_capacity_is_marked(draw, plans, too_large):
    spec = draw["memory"](EN).to_dict()
    parts = [row for row in rows(spec, "ledger") if row["of"] == "fits"]
    ledger = plans[2].ledger
    assert [row["bytes"] for row in parts] == [row.bytes for row in ledger.rows]
    assert parts[0]["x"] == 0
    assert all(one["x2"] == two["x"] for one, two in pairwise(parts))
    assert parts[-1]["x2"] == ledger.total_bytes
    assert [row["x"] for row in rows(spec, "capacity")] == [80e9, 16e9]
    assert "3.44 GB too much" in json.dumps(spec)


def test_sweep_marks_knee_and_full_memory():
    sweep = rooflens.sweep("llama-2-7b", "a100-sxm-80", batch=[1, 8, 64, 512], context=2048)
    text = json.dumps(sweep_chart(sweep, EN).to_dict())
    first_full = next(int(b) for b, fits in zip(sweep["batch"], sweep["fits"], strict=True) if not fits)
    assert f"memory full from {first_full} on" in text
    assert f"knee at {sweep.knee.value}: " in text
    for value in (*sweep["tokens_per_s"], *sweep["bound_s"], *sweep["weights_s"], *sweep["compute_s"]):
        assert repr(float(value)) in text


@pytest.mark.parametrize(
    "axes",
    [
        {"batch": 8, "context": [0, 100, 1000]},  # a logarithmic axis has no 0
        {"batch": [16], "context": 100},  # a single point
        {"batch": list(range(1, 5000, 7)), "context": 10},  # more than are drawn
        {"batch": [1, 2], "context": list(range(1, 30))},  # more lines than are drawn
    ],
)
def test_odd_sweeps_are_drawn(axes, tmp_path):
    save_chart(sweep_chart(rooflens.sweep("llama-2-7b", "a100-sxm-80", **axes), EN), tmp_path / "s.svg")


def test_comparison_shows_limits_of_what_fits_only(draw):
    text = json.dumps(draw["compare"](EN).to_dict())
    assert "does not fit" in text
    limit = rooflens.plan("llama-2-7b", "a100-sxm-80", batch=4, prompt=1920).decode.bound_s
    assert repr(1 / limit) in text


def test_nothing_to_compare():
    comparison = rooflens.compare("llama-2-7b", ["t4"], weights=["fp8", "nvfp4"])
    with pytest.raises(InputError, match="nothing to draw"):
        compare_chart(comparison, EN)


def test_pictures_are_whole(draw, tmp_path):
    chart = draw["roofline"](EN)
    for ending in ("png", "svg", "pdf", "json"):
        save_chart(chart, tmp_path / f"roofline.{ending}")
    png = (tmp_path / "roofline.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png.rstrip(b"\n").endswith(b"IEND\xaeB`\x82")
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    assert width > 2 * 760  # two pixels a unit, axes beside the 760 of the plot
    assert height > 2 * 440
    svg = (tmp_path / "roofline.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    pdf = (tmp_path / "roofline.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")
    spec = json.loads((tmp_path / "roofline.json").read_text(encoding="utf-8"))
    assert spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/")


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_renders(draw, name, tmp_path):
    save_chart(draw[name](ZH, True), tmp_path / "chart.svg")
    svg = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert re.search(r"[\u4e00-\u9fff]", svg)
    assert "NaN" not in svg


def test_page_works_offline(tmp_path):
    result = rooflens.roofline("a100-sxm-80", model="llama-2-7b")
    path = tmp_path / "roofline.html"
    write_answer(result, "roofline", path, ZH, document=lambda: to_document(result, "roofline"))
    page = path.read_text(encoding="utf-8")
    assert '<html lang="zh">' in page
    assert "default-src 'none'" in page  # the browser itself refuses to load anything
    head, _, scripts = page.partition("<script>")
    assert not re.findall(r"https?://", head)
    assert not re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=", head)
    assert page.count("</script>") == 2  # nothing inside a script ends it
    specs = re.search(r"const charts = \{day: (.*), night: (.*)\};\n", scripts)
    day, night = (json.loads(text) for text in specs.groups())
    assert day["config"]["background"] == LIGHT.background
    assert night["config"]["background"] == DARK.background
    for spec in (day, night):
        urls = set(re.findall(r"https?://[^\"\s]+", json.dumps(spec)))
        assert all(url.startswith("https://vega.github.io/schema/") for url in urls)  # its name, not fetched
        assert '"url"' not in json.dumps(spec)


def test_a_hostile_name_stays_text(plans, tmp_path):
    title = "</script><script>alert(1)</script> & <b>"
    save_chart(plan_chart(plans[0], EN, title=title), tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 2
    assert "<title>&lt;/script&gt;" in page


def test_unknown_ending(draw, tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf, \.html, \.json"):
        save_chart(draw["memory"](EN), tmp_path / "chart.jpeg")
    assert list(tmp_path.iterdir()) == []


def test_chinese_in_a_picture_needs_a_font(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(render, "chinese_font", lambda: False)
    for ending in ("png", "pdf"):
        with pytest.raises(DependencyError, match="no font with Chinese"):
            save_chart(draw["memory"](ZH), tmp_path / f"chart.{ending}")
    assert list(tmp_path.iterdir()) == []
    save_chart(draw["memory"](ZH), tmp_path / "chart.svg")  # drawn with the reader's fonts


def test_missing_extra_is_named():
    code = (
        "import sys; sys.modules['altair'] = None; sys.modules['vl_convert'] = None\n"
        "import rooflens; from rooflens.errors import DependencyError\n"
        "from rooflens.report.words import words\n"
        "from rooflens.report.charts.roofline import view_chart\n"
        "from rooflens.report.charts.render import require_converter\n"
        "view = rooflens.roofline('t4')\n"
        "for call in (lambda: view_chart(view, words('en')), require_converter):\n"
        "    try: call()\n"
        "    except DependencyError as error: print(error.next)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'rooflens[plot]'") == 2


def test_a_measured_device_shows_the_data_sheet_behind_its_own_roofs():
    from rooflens.hardware import device_from_measurement

    measured = device_from_measurement(
        rooflens.find_device("rtx-4090"),
        bandwidth_bytes_per_s=920e9,
        peaks={"bf16": 140e12},
        memory_bytes=None,
    )
    spec = view_chart(rooflens.roofline(measured), words("en")).to_dict()
    assert "data sheet: 165 TFLOP/s, 1.01 TB/s" in str(spec["title"])
    dotted = [layer for layer in spec["layer"] if layer["mark"].get("strokeDash") == [2, 3]]
    assert len(dotted) == 2
    assert view_chart(rooflens.roofline("rtx-4090"), words("en")).to_dict()["layer"] != spec["layer"]
