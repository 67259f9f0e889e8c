"""The documentation matches the code."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rooflens.analysis.calibration import calibration

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_command_line_page_is_what_the_commands_print() -> None:
    done = subprocess.run([sys.executable, DOCS / "generate_cli.py", "--check"], check=False)
    assert done.returncode == 0, "run `python docs/generate_cli.py`"


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:analysis|models)\.[\w.]+)`", (DOCS / "derivations.md").read_text())))
)
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


def test_the_accuracy_page_shows_the_shares_in_use() -> None:
    text = (DOCS / "accuracy.md").read_text()
    for kind, shares in calibration().table["devices"].items():
        assert f"| {kind} | {shares['bandwidth']:.2f} | {shares['compute']:.2f} |" in text, kind


@pytest.mark.parametrize("page", sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")]), ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
