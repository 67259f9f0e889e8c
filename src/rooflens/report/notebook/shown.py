"""Which table and which chart stand for a result, and both put together for a notebook."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any

from rooflens.display import DisplayOptions
from rooflens.errors import DependencyError, RooflensError
from rooflens.report.notebook.html import to_html
from rooflens.report.notebook.style import style_sheet
from rooflens.report.tables.layout import console, show
from rooflens.report.words import Words, language, words

_TERMINAL_COLUMNS = 100


@dataclass(frozen=True)
class _View:
    """Where the table of a kind of result is made, and its chart where it has one."""

    module: str
    function: str
    chart: Callable[[Any, Words, bool], Any] | None = None


def _drawn(module: str, function: str) -> Callable[[Any, Words, bool], Any]:
    def draw(result: Any, say: Words, dark: bool) -> Any:
        return getattr(import_module(f"rooflens.report.charts.{module}"), function)(result, say, dark=dark)

    return draw


def _device_chart(device: Any, say: Words, dark: bool) -> Any:
    from rooflens import api
    from rooflens.report.charts.roofline import view_chart

    return view_chart(api.roofline(device), say, dark=dark)


def _probe_chart(record: Any, say: Words, dark: bool) -> Any:
    from rooflens.measure.roofs import probe_device

    return _device_chart(probe_device(record), say, dark)


def _profile_chart(found: Any, say: Words, dark: bool) -> Any:
    from rooflens.report.charts.account import account_chart

    return account_chart(found.accounts, found.reading, say, model="", dark=dark)


def _run_chart(run: Any, say: Words, dark: bool) -> Any:
    from rooflens.report.charts.account import account_chart

    found = run.explained
    if found is None:
        return None
    return account_chart(found.accounts, found.reading, say, model=run.name, dark=dark)


def _account_chart(found: Any, say: Words, dark: bool) -> Any:
    from rooflens.report.charts.account import account_chart

    return account_chart([found], None, say, model="", dark=dark)


# By the name of the class, so that no module is imported whose results nobody has.
_VIEWS = {
    "Plan": _View("plan", "plan_report", _drawn("plan", "plan_chart")),
    "Inspection": _View("inspect", "inspect_report"),
    "Sweep": _View("sweep", "sweep_report", _drawn("sweep", "sweep_chart")),
    "Comparison": _View("compare", "compare_report", _drawn("compare", "compare_chart")),
    "SearchResult": _View("search", "search_report", _drawn("search", "search_chart")),
    "RooflineView": _View("roofline", "roofline_report", _drawn("roofline", "view_chart")),
    "Serving": _View("serving", "serving_section"),
    "Validation": _View("validate", "validate_report"),
    "CalibrationResult": _View("calibrate", "calibrate_report"),
    "Device": _View("device", "device_report", _device_chart),
    "ProbeRecord": _View("probe", "probe_report", _probe_chart),
    "Run": _View("run", "run_report", _run_chart),
    "RunProfile": _View("account", "profile_report", _profile_chart),
    "Account": _View("account", "account_report", _account_chart),
    "Bench": _View("bench", "bench_report", _drawn("bench", "bench_chart")),
}


def as_html(result: Any, options: DisplayOptions) -> str:
    """The tables of a result, its chart under them; a chart that cannot be drawn says why."""
    say = words(language(options.lang))
    pictures = _pictures(result, options, say) if options.charts else ""
    return (
        f'{style_sheet()}<div class="rooflens" lang="{"zh-Hans" if say.language == "zh" else "en"}">'
        f"{to_html(_table(result, say))}{pictures}</div>"
    )


def as_text(result: Any, options: DisplayOptions) -> str:
    """The tables as plain text, for IPython in a terminal and for notebooks without HTML."""
    out = io.StringIO()
    say = words(language(options.lang))
    show(_table(result, say), on=console(file=out, color=False, width=_TERMINAL_COLUMNS))
    return out.getvalue().rstrip("\n")


def _table(result: Any, say: Words) -> Any:
    view = _VIEWS[type(result).__name__]
    render = getattr(import_module(f"rooflens.report.tables.{view.module}"), view.function)
    return render(result, say)


def _pictures(result: Any, options: DisplayOptions, say: Words) -> str:
    draw = _VIEWS[type(result).__name__].chart
    if draw is None:
        return ""
    themes = ["light", "dark"] if options.theme == "auto" else [options.theme]
    kinds = {"light": "rl-day rl-auto", "dark": "rl-night rl-auto"} if len(themes) > 1 else {}
    try:
        with _unchecked():
            charts = {theme: draw(result, say, theme == "dark") for theme in themes}
            return "".join(
                _picture(chart, kinds.get(theme, "")) for theme, chart in charts.items() if chart is not None
            )
    except DependencyError as error:
        return f'<div class="rl-quiet">{escape(error.sentence())}</div>'
    except RooflensError:  # what is shown has no chart (a sweep of two axes, a device without a peak)
        return ""


def _unchecked() -> AbstractContextManager[None]:
    """Altair without its check of every part against a schema, which takes most of a chart's time.

    Raises DependencyError without Altair. The tests of the charts have that check.
    """
    from rooflens.report.charts.theme import require_altair

    checks: AbstractContextManager[None] = require_altair().utils.schemapi.debug_mode(False)
    return checks


def _picture(chart: Any, kind: str) -> str:
    """An image: a picture within the text would share its names with every other one on the page."""
    from rooflens.report.charts.render import render

    data = base64.b64encode(render(chart, "svg")).decode("ascii")
    told = escape(str(chart.to_dict().get("description", "")), quote=True)
    return f'<img class="{kind}" alt="{told}" src="data:image/svg+xml;base64,{data}">'
