"""The documentation matches the code: names, commands, links and figures on pages are true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from rooflens.analysis.calibration import calibration

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

DERIVATIONS = (DOCS / "derivations.md").read_text()
FUNCTION = re.compile(r"`((?:analysis|models|hardware)\.[\w.]+)`")
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_the_command_line_page_is_what_the_commands_print() -> None:
    done = subprocess.run([sys.executable, DOCS / "generate_cli.py", "--check"], check=False)
    assert done.returncode == 0, "run `python docs/generate_cli.py`"


@pytest.mark.parametrize("name", sorted(set(FUNCTION.findall(DERIVATIONS))))
def test_every_function_that_the_derivations_name_exists(name: str) -> None:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = import_module("rooflens." + ".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return
    pytest.fail(name)


@cache
def _test_functions(file: str) -> set[str]:
    (path,) = (ROOT / "tests").rglob(file)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), sorted(set(TEST.findall(DERIVATIONS))))
def test_every_test_that_the_derivations_name_exists(file: str, name: str) -> None:
    assert name in _test_functions(file)


SECTIONS = re.findall(r"^### (.+)\n((?:(?!^##).*\n?)*)", DERIVATIONS, re.MULTILINE)


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_every_derivation_has_its_source_its_function_and_its_test(title: str, text: str) -> None:
    assert "- **Source:**" in text
    assert "- **Symbols:**" in text or "- **Rules:**" in text
    assert FUNCTION.search(text.partition("- **Function:**")[2])
    assert TEST.search(text.partition("- **Test:**")[2])


def test_the_accuracy_page_shows_the_shares_in_use() -> None:
    text = (DOCS / "accuracy.md").read_text()
    for kind, shares in calibration().table["devices"].items():
        assert f"| {kind} | {shares['bandwidth']:.2f} | {shares['compute']:.2f} |" in text, kind


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "docs/index.md", "docs/zh/index.md"])
def test_commands_between_backticks_can_be_given(name: str) -> None:
    from docs.builder.console import check_commands

    text = (ROOT / name).read_text()
    blocks = re.findall(r"```console[^\n]*\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`(rooflens \w+ [^`]*)`", text)
    assert blocks
    for commands in [*blocks, *(f"$ {span}\n" for span in spans if "..." not in span)]:
        check_commands(commands, name)
