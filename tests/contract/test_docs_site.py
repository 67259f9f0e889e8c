"""The documentation site builds without a warning, is whole, and asks nothing of another machine.

One test builds it, since that takes longest; everything about the built pages is looked at in there.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.builder.build import build_site, with_paths  # noqa: E402
from docs.builder.check import problems  # noqa: E402
from docs.builder.page import Page  # noqa: E402
from docs.builder.site_plan import LEARN, editions, paths  # noqa: E402
from docs.builder.source import BuildError  # noqa: E402

ADDRESS = re.compile(r"url\(\s*['\"]?(?!data:|#)(https?:)?//", re.IGNORECASE)


def test_the_site_builds_and_is_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build_site(site, tmp_path / "work", dark=False)
    assert problems(site) == []
    for edition in editions():
        folder = site if edition.language == "en" else site / edition.language
        for page in paths(edition.nav):
            check_page((folder / page).with_suffix(".html"), edition.language)
    for name in LEARN:
        for folder in (site, site / "zh"):
            check_chapter((folder / "learn" / name).with_suffix(".html"))
    for sheet in site.rglob("*.css"):
        assert not ADDRESS.search(sheet.read_text(encoding="utf-8")), sheet
    check_in_a_browser(site)


def article(path: Path) -> str:
    """What the page itself says, without the theme around it."""
    return path.read_text(encoding="utf-8").partition("<article")[2].partition("</article")[0]


def check_page(path: Path, language: str) -> None:
    whole = path.read_text(encoding="utf-8")
    assert f'<html lang="{language}"' in whole
    assert 'http-equiv="Content-Security-Policy"' in whole
    text = unescape(re.sub(r"<[^>]+>", "", article(path)))
    assert text.strip(), path
    for left_over in ("{{ ", " }}", "Traceback", "\x00"):
        assert left_over not in text, f"{path}: {left_over}"
    assert "$$" not in text, f"{path}: a formula that was not drawn"


def check_chapter(path: Path) -> None:
    page = article(path)
    assert page.count('class="num ') >= 5, path
    assert page.count("<details") >= 4
    assert 'class="chart"' in page
    assert "printed" in page


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def check_in_a_browser(site: Path) -> None:
    """Requests, errors, formulas, width on a phone, and the switch of language; skipped without chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(90_000)  # a busy machine is no fault of the pages
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        look_around(page, address)
        browser.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert said == []


def look_around(page: Any, address: str) -> None:
    page.goto(f"{address}/learn/roofline.html")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"
    height = page.evaluate("document.querySelector('math[display=block]').getBoundingClientRect().height")
    assert height > 10, "formulas are drawn"
    page.click("a.language")
    page.wait_for_url("**/zh/learn/roofline.html")
    assert page.locator("h1").inner_text().startswith("2. 两个数字")
    page.click("a.language")
    page.wait_for_url(f"{address}/learn/roofline.html")
    page.goto(f"{address}/how-to/fit.html")
    page.click("a.language")
    page.wait_for_url("**/zh/index.html")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```python\n1 / 0\n```\n", "page.md:2: ZeroDivisionError"),
        ("text\n\n{{ nothing_here }}\n", "page.md:3: NameError"),
        ("{{ 0.1 + 0.2 }}\n", "page.md:1: .* has no format"),
        ("```python\nx = 1\n", "page.md:1: this block is never closed"),
        ("```python odd\n```\n", "'odd' is no kind of Python block"),
        ("```console\n$ rooflens plan llama-2-7b --devise t4\n```\n", "page.md:1: .*--devise"),
        ("```console run\n$ rooflens plan llama-2-7b -d no-such-card\n```\n", "page.md:1: .*no-such-card"),
        ("```console run until=Never\n$ rooflens devices t4\n```\n", "nothing printed begins with 'Never'"),
    ],
)
def test_a_page_that_cannot_be_built_says_where(text: str, why: str) -> None:
    with pytest.raises(BuildError, match=why):
        Page("page.md", "en").built(text)


def test_files_beside_the_pages_are_named_by_their_path() -> None:
    page = ROOT / "docs" / "runtime.md"
    assert with_paths("See [how](../README.md#plan).", page) == "See how (`README.md`)."
    for kept in ("[a](../no-such-file.md)", "[a](../docs/cli.md)", "[a](cli.md)", "![a](../README.md)"):
        assert with_paths(kept, page) == kept


def test_a_page_that_does_not_run_is_left_as_it_stands() -> None:
    text = "Braces {{ here }}.\n\n```python\n1 / 0\n```\n"
    assert Page("page.md", "en", runs=False).built(text) == text
    with pytest.raises(BuildError, match="--devise"):
        Page("page.md", "en", runs=False).built("```console\n$ rooflens plan llama-2-7b --devise t4\n```\n")


def test_a_page_is_its_text_with_values_output_and_formulas() -> None:
    text = (
        "A page.\n\n```python hidden\nx = 13.5e9\n```\n\n```python\nprint('out')\n```\n\n"
        "It is {{ x | size | exact }}; `{{ x }}` costs nothing, and $x^2$.\n"
    )
    built = Page("page.md", "en").built(text.replace("`{{ x }}`", "`$5`"))
    assert "hidden" not in built
    assert ">13.5\u00a0GB</span>" in built
    assert "```{.text .printed}\nout\n```" in built
    assert "`$5`" in built
    assert "<math" in built
    assert "$x^2$" not in built
