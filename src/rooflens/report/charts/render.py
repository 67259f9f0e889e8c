"""A chart as the bytes of a picture or of a page, by vl-convert: no browser, no network."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from types import ModuleType
from typing import Any

from rooflens.errors import DependencyError
from rooflens.report.charts.theme import require_altair
from rooflens.report.words import Language, Words, words

_FULL_WIDTH = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff]")
_NOT_A_CHARACTER = "\U0010fffe"

# The page may run its own scripts and load nothing at all. Vega compiles its expressions, hence eval.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:"
)
_GLYPH = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">'
    '<text y="30" font-size="30" font-family="sans-serif">{}</text></svg>'
)
_PAGE = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="Rooflens">
<title>{title}</title>
<style>
  body {{ margin: 0; padding: 12px; background: {day}; }}
  #chart {{ display: block; max-width: 100%; }}
  #chart svg {{ max-width: 100%; height: auto; }}
  @media (prefers-color-scheme: dark) {{ body {{ background: {night}; }} }}
</style>
</head>
<body>
<main id="chart"></main>
<script>{library}</script>
<script>
const charts = {{day: {day_spec}, night: {night_spec}}};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const actions = {{export: true, source: false, compiled: false, editor: false}};
const options = {{renderer: "svg", actions, i18n: {menu}}};
const draw = () => vegaEmbed("#chart", dark.matches ? charts.night : charts.day, options);
dark.addEventListener("change", draw);
draw();
</script>
</body>
</html>
"""


def render(chart: Any, ending: str, *, night: Any = None, lang: Language = "en", scale: float = 2.0) -> bytes:
    """The chart as ``png``, ``svg``, ``pdf`` or ``html``.

    Raises DependencyError without vl-convert, or for Chinese in a PNG or PDF where no font has it.
    """
    converter = require_converter()
    spec = chart.to_dict()
    version = _version()
    if ending == "html":
        return _page(spec, spec if night is None else night.to_dict(), words(lang), version).encode()
    if ending == "svg":
        return str(converter.vegalite_to_svg(spec, vl_version=version)).encode()
    if _FULL_WIDTH.search(json.dumps(spec, ensure_ascii=False)) and not chinese_font():
        raise DependencyError(
            f"this system has no font with Chinese characters, so they cannot be drawn into a {ending} file",
            next="install one (Debian: `apt install fonts-noto-cjk`), write .html or .svg, or use --lang en",
        )
    if ending == "pdf":
        return bytes(converter.vegalite_to_pdf(spec, vl_version=version))
    return bytes(converter.vegalite_to_png(spec, vl_version=version, scale=scale))


def require_converter() -> ModuleType:
    """vl-convert, or DependencyError with the command that brings it."""
    try:
        import vl_convert
    except ImportError as error:
        raise DependencyError(
            "chart files need vl-convert",
            value=error.name,
            next="install it with `pip install 'rooflens[plot]'`",
        ) from error
    return vl_convert


def _version() -> str:
    """The Vega-Lite version that this Altair writes, as vl-convert spells it."""
    return "_".join(str(require_altair().SCHEMA_VERSION).split(".")[:2])


@cache
def chinese_font() -> bool:
    """Whether a font of this system draws Chinese: the character looks unlike one that no font has."""
    convert = require_converter().svg_to_png
    return bool(convert(_GLYPH.format("中")) != convert(_GLYPH.format(_NOT_A_CHARACTER)))


def _page(spec: dict[str, Any], night: dict[str, Any], say: Words, version: str) -> str:
    title = spec.get("title", {}).get("text", "Rooflens")
    return _PAGE.format(
        lang=say.language,
        policy=_POLICY,
        title=html.escape(title),
        day=spec["config"]["background"],
        night=night["config"]["background"],
        library=_library(version),
        menu=_script_safe({f"{kind}_ACTION": say(f"chart.save.{kind.lower()}") for kind in ("SVG", "PNG")}),
        day_spec=_script_safe(spec),
        night_spec=_script_safe(night),
    )


@cache
def _library(version: str) -> str:
    """Vega, Vega-Lite and their embedder in one script, from vl-convert."""
    bundle = str(require_converter().javascript_bundle(vl_version=version))
    return bundle.replace("</script", "<\\/script")


def _script_safe(spec: dict[str, Any]) -> str:
    """A specification as a JavaScript literal that cannot end the script it stands in."""
    text = json.dumps(spec, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
