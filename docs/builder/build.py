"""From the sources to the site: pages to plain Markdown, then one run of the generator per language."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.builder import drawings
from docs.builder.figures import Figures
from docs.builder.page import Page
from docs.builder.reference import python_reference
from docs.builder.site_plan import DOCS, ROOT, Edition, editions, settings
from docs.builder.source import BuildError

_UPWARDS = re.compile(r"(?<!!)\[(?P<words>[^\]]+)\]\((?P<target>\.\./[^)\s]+)\)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build_site(out: Path, work: Path, *, dark: bool = True) -> None:
    """Build both languages into ``out``, which is emptied first; ``work`` takes what is in between.

    Raises BuildError for a page that fails, and for every warning of the generator.
    """
    shutil.rmtree(out, ignore_errors=True)
    both = editions()
    translated = both[1].pages()
    for edition in both:
        write_markdown(edition, work / edition.language / "docs", dark=dark)
        config = work / edition.language / "zensical.toml"
        config.write_text(settings(edition, translated=translated), encoding="utf-8")
        _generate(config)
        site = out if edition.language == "en" else out / edition.language
        shutil.copytree(config.with_name("site"), site)


def write_markdown(edition: Edition, docs: Path, *, dark: bool = True) -> None:
    """Every page of an edition as plain Markdown in ``docs``, with its charts and assets."""
    failed: list[str] = []
    with _in(ROOT):
        for name in edition.pages():
            target = docs / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.write_text(built_page(edition, name, docs, dark=dark), encoding="utf-8")
            except BuildError as error:
                failed.append(str(error))
    if failed:
        raise BuildError("\n".join(failed))
    if edition.language == "en":
        (docs / "reference").mkdir(exist_ok=True)
        (docs / "reference" / "python.md").write_text(python_reference(), encoding="utf-8")
        shutil.copytree(DOCS / "images", docs / "images")
    shutil.copytree(DOCS / "assets", docs / "assets")
    shutil.copytree(DOCS / "overrides", docs.parent / "overrides")


def built_page(edition: Edition, name: str, docs: Path, *, dark: bool = True) -> str:
    """One page as plain Markdown; its charts are written below ``docs``."""
    figures = Figures(docs, name, edition.language, dark)
    names = {**figures.names(), "drawings": drawings}
    source = edition.source / name
    computed = "/" in name or name == "index.md"
    page = Page(str(source.relative_to(ROOT)), edition.language, names, runs=computed)
    return with_paths(page.built(source.read_text(encoding="utf-8")), source)


def with_paths(text: str, source: Path) -> str:
    """Links to files of the project that are no pages, as their paths: the site does not hold them."""

    def path(match: re.Match[str]) -> str:
        target = (source.parent / match["target"].partition("#")[0]).resolve()
        if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT) or not target.exists():
            return match[0]
        return f"{match['words']} (`{target.relative_to(ROOT)}`)"

    return _UPWARDS.sub(path, text)


def _generate(config: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = _COLOUR.sub("", done.stdout + done.stderr).partition("Traceback")[0]
        raise BuildError(f"the generator found problems:\n{said}")


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Commands on pages name files from the top of the project."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
