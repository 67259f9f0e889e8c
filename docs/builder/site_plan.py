"""What the site consists of: the pages in order, in both languages, and the generator's settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflens.report.words import Language

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent

LEARN = (
    "pyramid", "roofline", "phases", "memory", "batching", "quantisation", "spec-sheets", "utilisation",
)  # fmt: skip
WORDS = "words"
HOW_TO = (
    "choose", "fit", "faster", "search", "serve", "read-logs", "probe", "run", "lost-bandwidth",
    "calibrate",
    "notebook", "page",
)  # fmt: skip

Nav = list[Any]


def english_nav() -> Nav:
    """Section titles with their pages; a page's own heading is its title."""
    listed = {
        "Learn": ["learn/index.md", *(f"learn/{name}.md" for name in (*LEARN, WORDS))],
        "How to": ["how-to/index.md", *(f"how-to/{name}.md" for name in HOW_TO)],
        "Derivations": ["derivations.md", "serving.md", "probe.md"],
        "Accuracy": ["accuracy.md", "engine-ledgers.md", "benchmarks.md"],
        "Reference": ["reference/python.md", "cli.md", "web.md", "runtime.md", "parallel.md"],
    }
    known = {page for pages in listed.values() for page in pages}
    extra = sorted(page.name for page in DOCS.glob("*.md") if page.name not in known | {"index.md"})
    listed["Reference"] += extra
    present = {title: [page for page in pages if _exists(page)] for title, pages in listed.items()}
    return [{"Start": "index.md"}, *({title: pages} for title, pages in present.items() if pages)]


def chinese_nav() -> Nav:
    """The pages that are translated."""
    chapters = [f"learn/{name}.md" for name in (*LEARN, WORDS)]
    return [{"开始": "index.md"}, {"学习": ["learn/index.md", *chapters]}]


def _exists(page: str) -> bool:
    return page.startswith("reference/") or (DOCS / page).exists()


@dataclass(frozen=True)
class Edition:
    """The site in one language: where its pages come from, and what its reader sees around them."""

    language: Language
    source: Path
    nav: Nav
    description: str
    light: str
    dark: str

    def pages(self) -> list[str]:
        """The paths of its hand-written pages below ``source``, in the order of the navigation."""
        return [page for page in paths(self.nav) if not page.startswith("reference/")]


def paths(nav: Nav) -> list[str]:
    """The pages of a navigation in order."""
    found: list[str] = []
    for entry in nav:
        if isinstance(entry, str):
            found.append(entry)
        else:
            for inner in entry.values():
                found += paths(inner if isinstance(inner, list) else [inner])
    return found


def editions() -> tuple[Edition, Edition]:
    """English and Chinese."""
    return (
        Edition(
            "en", DOCS, english_nav(), "How fast a language model could go, and what is in the way",
            "Switch to dark", "Switch to light",
        ),
        Edition(
            "zh", DOCS / "zh", chinese_nav(), "语言模型最快能有多快、实际有多快、卡在哪里",
            "切换到深色", "切换到浅色",
        ),
    )  # fmt: skip


def settings(edition: Edition, *, translated: list[str]) -> str:
    """The generator's configuration file of one edition; fonts are the reader's own."""
    value = json.dumps
    nav = "[" + ", ".join(_inline(entry) for entry in edition.nav) + "]"
    pages = [str(Path(page).with_suffix(".html")) for page in translated]
    return f"""[project]
site_name = "Rooflens"
site_description = {value(edition.description, ensure_ascii=False)}
docs_dir = "docs"
site_dir = "site"
use_directory_urls = false
extra_css = ["assets/style.css"]
extra_javascript = ["assets/tables.js"]
nav = {nav}

[project.extra]
generator = false
edition = "{edition.language}"
translated = {value(pages)}
alternate = [
  {{name = "English", link = "{"./" if edition.language == "en" else "../"}", lang = "en"}},
  {{name = "中文", link = "{"./zh/" if edition.language == "en" else "./"}", lang = "zh"}},
]

[project.theme]
language = "{edition.language}"
font = false
custom_dir = "overrides"
features = ["navigation.sections", "navigation.footer", "navigation.top", "navigation.indexes",
  "content.code.copy", "search.highlight", "toc.follow"]
icon = {{logo = "lucide/gauge"}}

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle = {{icon = "lucide/sun", name = {value(edition.light, ensure_ascii=False)}}}

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle = {{icon = "lucide/moon", name = {value(edition.dark, ensure_ascii=False)}}}

[project.markdown_extensions]
abbr = {{}}
admonition = {{}}
attr_list = {{}}
footnotes = {{}}
md_in_html = {{}}
tables = {{}}
toc = {{permalink = true}}
pymdownx.details = {{}}
pymdownx.highlight = {{anchor_linenums = false}}
pymdownx.superfences = {{}}
"""


def _inline(entry: Any) -> str:
    """A navigation entry in TOML's own notation."""
    if isinstance(entry, str):
        return json.dumps(entry)
    ((title, inner),) = entry.items()
    pages = (
        "[" + ", ".join(_inline(one) for one in inner) + "]" if isinstance(inner, list) else json.dumps(inner)
    )
    return f"{{{json.dumps(title, ensure_ascii=False)} = {pages}}}"
