"""Charts on pages: drawn when the page is built, in light and dark, as SVG files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rooflens.report.charts.memory import NamedLedger, memory_chart
from rooflens.report.charts.render import render
from rooflens.report.words import Language, words

FOLDER = "charts"

# Class of a result -> (module of rooflens.report.charts, its function from (result, say, dark=)).
_CHART_OF = {
    "Plan": ("plan", "plan_chart"),
    "Comparison": ("compare", "compare_chart"),
    "Sweep": ("sweep", "sweep_chart"),
    "RooflineView": ("roofline", "view_chart"),
    "SearchResult": ("search", "search_chart"),
}
Drawing = Callable[..., Any]


@dataclass
class Figures:
    """The charts of one page. ``root`` is the folder of built Markdown, ``page`` the page's path in it."""

    root: Path
    page: str
    language: Language
    dark: bool = True
    drawn: list[str] = field(default_factory=list)

    def names(self) -> Mapping[str, Any]:
        """What pages call: ``chart`` and ``ledgers``."""
        return {"chart": self.chart, "ledgers": self.ledgers, "say": words(self.language)}

    def chart(self, result: Any, caption: str = "") -> str:
        """The chart of a result (a plan, a sweep, a comparison, a roofline, a search), or a drawing."""
        if callable(result):
            return self._figure(result, caption)
        module, name = _CHART_OF[type(result).__name__]
        draw: Drawing = getattr(import_module(f"rooflens.report.charts.{module}"), name)
        return self._figure(lambda say, dark: draw(result, say, dark=dark), caption)

    def ledgers(self, plans: Mapping[str, Any], caption: str = "") -> str:
        """The memory of several plans, one bar each under its name."""
        rows: Sequence[NamedLedger] = [NamedLedger(name, plan.ledger) for name, plan in plans.items()]
        return self._figure(lambda say, dark: memory_chart(rows, say, dark=dark), caption)

    def _figure(self, draw: Drawing, caption: str) -> str:
        say = words(self.language)
        stem = f"{Path(self.page).with_suffix('').as_posix().replace('/', '-')}-{len(self.drawn) + 1}"
        self.drawn.append(stem)
        up = "../" * self.page.count("/")
        light = draw(say, False)
        alt = str(light.to_dict().get("description", caption or stem)).replace("[", "(").replace("]", ")")
        images = [self._image(light, f"{stem}.svg", up, alt, "light")]
        if self.dark:
            images.append(self._image(draw(say, True), f"{stem}-dark.svg", up, alt, "dark"))
        # The box scrolls on narrow screens, so it must take the keyboard's focus.
        lines = [
            '<figure class="chart" markdown="block">',
            '<div class="scroll" tabindex="0" markdown="span">',
        ]
        lines += [*images, "</div>"]
        if caption:
            lines.append(f'<figcaption markdown="span">{caption}</figcaption>')
        return "\n".join([*lines, "</figure>", ""])

    def _image(self, drawing: Any, name: str, up: str, alt: str, kind: str) -> str:
        folder = self.root / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(render(drawing, "svg", lang=self.language))
        both = "" if self.dark else " .always"
        return f"![{alt}]({up}{FOLDER}/{name}){{ .{kind}{both} loading=lazy }}"
