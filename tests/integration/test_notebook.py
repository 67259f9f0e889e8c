"""The example notebook, run by a real kernel: every result shows itself, and nothing fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def executed() -> Any:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    return nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()


def shown(notebook: Any, cell: str) -> dict[str, str]:
    """What the last expression of a cell is shown as, by kind."""
    (one,) = [found for found in notebook.cells if found["id"] == cell]
    return next(
        dict(output["data"]) for output in one["outputs"] if output["output_type"] == "execute_result"
    )


def test_it_is_kept_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    for cell in nbformat.read(EXAMPLE, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("cell", ["plan", "sweep", "compare", "device"])
def test_results_are_tables_and_charts(executed: Any, cell: str) -> None:
    data = shown(executed, cell)
    assert "<table>" in data["text/html"]
    assert 'src="data:image/svg+xml;base64,' in data["text/html"]
    assert data["text/plain"].strip()
    assert "\x1b" not in data["text/plain"]


def test_a_model_is_a_table(executed: Any) -> None:
    assert "<img" not in shown(executed, "inspect")["text/html"]
    assert "gemma-3-27b-it" in shown(executed, "inspect")["text/plain"]


def test_options_hold_for_what_follows(executed: Any) -> None:
    html = shown(executed, "chinese")["text/html"]
    assert "<img" not in html
    assert "拐点" in html


def test_the_terminal_of_ipython_prints_the_tables() -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="needs IPython")
    import rooflens

    text = formatters.PlainTextFormatter()(rooflens.inspect("gpt2"))
    assert "Inspection(" not in text
    assert "gpt2" in text
