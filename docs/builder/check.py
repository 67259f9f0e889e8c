"""Checks of the built site: links and anchors lead somewhere, and no page asks another machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself, by tag and attribute. A link that a reader may click is not among them.
_FETCHED = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "input": "src", "link": "href",
    "object": "data", "script": "src", "source": "src", "track": "src", "video": "src",
}  # fmt: skip
_NOT_FETCHED = {"alternate", "canonical", "next", "prev"}  # kinds of <link> that only tell


@dataclass
class PageLinks(HTMLParser):
    """What a page has of anchors, links and things that its browser fetches."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        address = given.get(_FETCHED.get(tag, ""))
        if address and not (tag == "link" and set(given.get("rel", "").split()) & _NOT_FETCHED):
            self.fetched.append(address)


def read_page(path: Path) -> PageLinks:
    """Parse one HTML file."""
    found = PageLinks()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def problems(site: Path) -> list[str]:
    """Everything wrong with the links of a built site, one line each."""
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    return [problem for path, page in pages.items() for problem in _of_page(site, path, page, pages)]


def _of_page(site: Path, path: Path, page: PageLinks, pages: dict[Path, PageLinks]) -> Iterator[str]:
    name = path.relative_to(site)
    for address in page.fetched:
        split = urlsplit(address)
        if split.scheme == "data":
            continue
        if split.scheme or split.netloc:
            yield f"{name}: fetches {address} from elsewhere"
        elif name.name != "404.html" and not _target(path, split.path).exists():
            yield f"{name}: fetches {address}, which is not there"
    for link in page.links:
        split = urlsplit(link)
        if split.scheme or split.netloc or name.name == "404.html":
            continue
        target = _target(path, split.path)
        if not target.is_relative_to(site) or not target.exists():
            yield f"{name}: {link} leads nowhere"
        elif split.fragment and unquote(split.fragment) not in pages[target].anchors | {"__skip"}:
            yield f"{name}: {link} has no such anchor"


def _target(page: Path, address: str) -> Path:
    """The file that a relative address means."""
    target = page if not address else (page.parent / unquote(address)).resolve()
    return target / "index.html" if target.is_dir() else target
