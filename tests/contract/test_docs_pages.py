"""The sources of the documentation: whole, computed, alike in both languages, and fit to be copied."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.builder.page import CHECK, SHOWN, VALUE  # noqa: E402
from docs.builder.site_plan import HOW_TO, LEARN, editions, paths  # noqa: E402
from docs.builder.source import Fence, Prose, parts  # noqa: E402

DOCS = ROOT / "docs"
CHAPTERS = [f"learn/{name}.md" for name in LEARN]
QUESTION = re.compile(r'^\?\?\? question "', re.MULTILINE)
CHINESE = re.compile("[\u4e00-\u9fff]")
# A figure with a unit in a sentence: a result that someone typed instead of computing it.
TYPED = re.compile(
    r"(?<![\w.{-])\d[\d.,]*[\s\u00a0]?"
    r"(?:[kMGTP]i?B\b|[GT]B/s|[µnm]s\b|[GTP]FLOP|tok/s|tokens per second|FLOP/byte|FLOP/字节|个 token 每秒)"
)


def source(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    return "".join(part.text for part in parts(source(page), page) if isinstance(part, Prose))


def fences(page: str, lang: str = "python") -> list[Fence]:
    return [part for part in parts(source(page), page) if isinstance(part, Fence) and part.lang == lang]


def kind(fence: Fence) -> str:
    return fence.words[0] if fence.words else SHOWN


def expressions(page: str) -> Iterator[ast.expr]:
    for match in VALUE.finditer(prose(page)):
        for piece in match["code"].split(" | "):
            yield ast.parse(piece.strip(), mode="eval").body


@pytest.mark.parametrize("chapter", [*CHAPTERS, *(f"zh/{name}" for name in CHAPTERS)])
def test_a_chapter_computes_shows_and_asks(chapter: str) -> None:
    text = source(chapter)
    assert len(VALUE.findall(prose(chapter))) >= 5, "computed numbers"
    assert "{{ chart(" in text or "{{ ledgers(" in text
    assert any(kind(fence) == SHOWN for fence in fences(chapter))
    assert any(kind(fence) == CHECK for fence in fences(chapter)), "what the words claim is asserted"
    assert len(QUESTION.findall(text)) >= 4
    for answer in QUESTION.split(text)[1:]:
        words = answer.partition("\n")[2].strip()
        assert words
        assert "{{" in words or "```python" in words or len(words) > 80, answer


@pytest.mark.parametrize("chapter", [*CHAPTERS, *(f"zh/{name}" for name in CHAPTERS)])
def test_no_result_is_typed_into_a_sentence(chapter: str) -> None:
    for line in prose(chapter).splitlines():
        if line.startswith("??? question"):
            continue  # what a question supposes
        without = re.sub(r"`[^`]*`|\$[^$]*\$", "", VALUE.sub("", line))
        # A capacity that is a product's name is no result.
        without = re.sub(r"(80|16) GB( 的 T4| 的卡| card| T4)", "", without)
        assert not TYPED.search(without), line


@pytest.mark.parametrize("page", ["index.md", "learn/index.md", "learn/words.md", *CHAPTERS])
def test_both_languages_have_the_same_structure(page: str) -> None:
    english, chinese = source(page), source(f"zh/{page}")
    for pattern in (r"^#+(?= )", r"^\?\?\? question", r"^- ", r"^\d\. ", r"^\|", r"^\$\$"):
        count = [len(re.findall(pattern, text, re.MULTILINE)) for text in (english, chinese)]
        assert count[0] == count[1], pattern
    levels = [re.findall(r"^#+(?= )", text, re.MULTILINE) for text in (english, chinese)]
    assert levels[0] == levels[1]


@pytest.mark.parametrize("page", ["index.md", "learn/index.md", *CHAPTERS])
def test_both_languages_run_the_same_code(page: str) -> None:
    english, chinese = fences(page), fences(f"zh/{page}")
    assert [fence.words for fence in english] == [fence.words for fence in chinese]
    for one, other in zip(english, chinese, strict=True):
        assert alike(ast.parse(one.body), ast.parse(other.body)), f"line {one.line}"
    counts = [Counter(shape(found) for found in expressions(name)) for name in (page, f"zh/{page}")]
    assert counts[0] == counts[1]


def alike(english: ast.AST, chinese: ast.AST) -> bool:
    """Whether two pieces of code are equal but for words that were translated."""
    return ast.dump(untold(english)) == ast.dump(untold(chinese))


def shape(found: ast.expr) -> str:
    return ast.dump(untold(found))


def untold(tree: ast.AST) -> ast.AST:
    """The code without what people read: texts of formatted strings, and strings that are no names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values = sorted(
                (one for one in node.values if isinstance(one, ast.FormattedValue)), key=ast.dump
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not is_name(node.value):
            node.value = ""
    return tree


def is_name(text: str) -> bool:
    """A name that code looks up: a model, a device, a type; the languages have the same."""
    return bool(re.fullmatch(r"[\w./-]*[\d_/-][\w./-]*|fp8|bf16|awq", text, re.ASCII))


@pytest.mark.parametrize("page", [*CHAPTERS, *(f"how-to/{name}.md" for name in HOW_TO)])
def test_what_a_page_shows_runs_when_it_is_copied(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = [fence for fence in fences(page) if kind(fence) == SHOWN]
    code = "\n".join(fence.body for fence in shown)
    exec(compile(code, page, "exec"), {"__name__": "copied"})
    assert "Traceback" not in capsys.readouterr().err


def test_every_page_has_its_place() -> None:
    for edition in editions():
        listed = paths(edition.nav)
        assert len(listed) == len(set(listed))
        there = {
            str(path.relative_to(edition.source))
            for path in edition.source.rglob("*.md")
            if edition.language == "zh" or "zh" not in path.relative_to(edition.source).parts
        }
        assert there <= set(listed), there - set(listed)
