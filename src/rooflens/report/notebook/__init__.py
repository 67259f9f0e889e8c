"""Results in notebooks: the tables of the command line as HTML, and their charts as pictures."""

from __future__ import annotations

from rooflens.report.notebook.shown import as_html, as_text

__all__ = ["as_html", "as_text"]
