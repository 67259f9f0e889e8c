"""Results in notebooks: escaped HTML tables in both languages, charts where they can be, no early imports."""

from __future__ import annotations

import base64
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

import rooflens
from rooflens import display
from rooflens.display import Displayed, DisplayOptions
from rooflens.errors import InputError
from rooflens.report.notebook import as_html, as_text
from rooflens.report.notebook.html import to_html
from rooflens.report.notebook.shown import _VIEWS
from rooflens.report.tables.layout import Bar, Head, heading, table

QWEN = "Qwen/Qwen2.5-7B-Instruct"
TABLES = DisplayOptions(lang="en", charts=False)


class Balance(HTMLParser):
    """Fails on elements that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> str:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return html


@pytest.fixture(autouse=True)
def usual_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_current", DisplayOptions())


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    plan = rooflens.plan(QWEN, "rtx-4090", batch=8, prompt=1024, output=256)
    return {
        "plan": plan,
        "plan that does not fit": rooflens.plan("meta-llama/Llama-3.1-70B-Instruct", "rtx-4090"),
        "inspection": rooflens.inspect("google/gemma-3-27b-it"),
        "sweep": rooflens.sweep(QWEN, "rtx-4090", batch=[1, 8, 64]),
        "comparison": rooflens.compare(QWEN, ["rtx-4090", "t4"], weights=[None, "int4"]),
        "roofline": rooflens.roofline("rtx-4090", model=QWEN),
        "device": rooflens.find_device("h100-sxm"),
        "serving": rooflens.serving(QWEN, "rtx-4090", concurrency=4),
    }


def test_every_result_is_a_table(results: dict[str, Any]) -> None:
    for name, result in results.items():
        for lang in ("en", "zh"):
            shown = check(as_html(result, DisplayOptions(lang=lang, charts=False)))
            assert f'lang="{"en" if lang == "en" else "zh-Hans"}"' in shown
            assert ("<table>" in shown) == (name != "serving"), name
            # Nothing of the terminal is left over: escapes, box characters, bars of blocks.
            assert not re.search("[\x1b─█▏]", shown), name


def test_the_html_says_what_the_command_prints(results: dict[str, Any]) -> None:
    shown = re.sub(r"\s+", " ", re.sub("<style>.*?</style>|<[^>]*>", " ", as_html(results["plan"], TABLES)))
    for word in re.findall(r"[\w.,]+", as_text(results["plan"], TABLES)):
        assert word in shown


def test_what_does_not_fit_is_marked(results: dict[str, Any]) -> None:
    assert 'class="rl-strong rl-bad"' in as_html(results["plan that does not fit"], TABLES)
    assert 'class="rl-good"' in as_html(results["plan"], TABLES)


def test_text_is_escaped() -> None:
    model = {**_config(), "_name_or_path": "<script>alert(1)</script>", "model_type": "llama"}
    plan = rooflens.plan(model, "rtx-4090")
    assert "<script" not in as_html(plan, TABLES)
    hostile = "<img src=x onerror=alert(1)>&\"'"
    shown = to_html(
        Group(
            hostile,
            Text(hostile, style="green"),
            Padding(heading(hostile, hostile)),
            table([Head(hostile)], [[hostile]]),
        )
    )
    assert "<img" not in shown
    assert shown.count("&lt;img src=x") == 6


def _config() -> dict[str, Any]:
    from rooflens.models.bundled import find_bundled
    from rooflens.models.json_input import read_json_object

    found = find_bundled(QWEN)
    assert found is not None
    text = (found.directory / "config.json").read_bytes()
    return dict(read_json_object(text, what="config.json"))


def test_pieces_of_an_answer() -> None:
    assert to_html(Text("Memory", style="bold")).startswith('<div class="rl-head" role="heading"')
    assert to_html(Text("no", style="bold red")) == '<div><span class="rl-strong rl-bad">no</span></div>'
    assert to_html(Text()) == ""
    made = table([Head("what"), Head("size", number=True)], [["weights", Bar(0.5)]])
    assert '<th scope="col" class="rl-number">size</th>' in to_html(made)
    assert 'style="width:4.50em"' in to_html(made)
    assert to_html(Rule()).startswith("<div><pre>")


def test_charts_are_pictures_in_both_themes(results: dict[str, Any]) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra plot")
    shown = check(as_html(results["sweep"], DisplayOptions(lang="en")))
    form = r'<img class="([^"]*)" alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)">'
    pictures = re.findall(form, shown)
    assert [kind for kind, _, _ in pictures] == ["rl-day rl-auto", "rl-night rl-auto"]
    for _, told, data in pictures:
        assert base64.b64decode(data).startswith(b"<svg")
        assert "Qwen2.5" in told
    one = as_html(results["sweep"], DisplayOptions(lang="en", theme="dark"))
    assert one.count("<img") == 1
    assert "<img" not in as_html(results["inspection"], DisplayOptions(lang="en"))


def test_without_altair_the_table_says_what_brings_charts(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "altair":
            raise ImportError("no module named altair", name="altair")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    shown = check(as_html(results["plan"], DisplayOptions(lang="en")))
    assert "rooflens[plot]" in shown
    assert "<table>" in shown


def test_a_device_without_a_peak_has_a_table_alone() -> None:
    device = replace(rooflens.find_device("t4"), peaks=())
    assert "<img" not in as_html(device, DisplayOptions(lang="en"))


def test_options_hold_until_they_are_changed() -> None:
    assert rooflens.display_options() == DisplayOptions()
    assert rooflens.display_options(lang="zh_CN", charts=False).lang == "zh"
    assert rooflens.display_options(theme="dark") == DisplayOptions("zh", charts=False, theme="dark")
    with pytest.raises(InputError, match="theme"):
        rooflens.display_options(theme="purple")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="language"):
        rooflens.display_options(lang="tlh")


def shown_classes() -> Iterator[type]:
    import rooflens.analysis.calibrate
    import rooflens.analysis.search_result
    import rooflens.analysis.serving_result
    import rooflens.analysis.validate
    import rooflens.bench.grid
    import rooflens.bench.run
    import rooflens.measure.records
    import rooflens.runtime.profile.run  # noqa: F401

    yield from Displayed.__subclasses__()


def test_every_class_that_is_displayed_has_its_table() -> None:
    pytest.importorskip("torch", reason="needs the extra runtime")
    from importlib import import_module

    assert {one.__name__ for one in shown_classes()} == set(_VIEWS)
    for view in _VIEWS.values():
        assert callable(getattr(import_module(f"rooflens.report.tables.{view.module}"), view.function))


def test_results_import_no_tables_before_they_are_shown() -> None:
    code = (
        "import sys, rooflens; plan = rooflens.plan('Qwen/Qwen2.5-7B-Instruct', 'rtx-4090');"
        "print([name for name in sys.modules if name.split('.')[0] in ('altair', 'rich', 'IPython')"
        " or name.startswith('rooflens.report')]); assert '<table>' in plan._repr_html_()"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
