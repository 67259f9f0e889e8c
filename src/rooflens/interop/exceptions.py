"""Rows of published data that contradict themselves or the physics, each with its reason."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from rooflens.models.json_input import read_json_object

_LIST = Path(__file__).parent / "data" / "measurement_exceptions.json"


@lru_cache(maxsize=1)
def known_exceptions() -> dict[str, str]:
    """row_id -> why this row of the published data is as it is."""
    entries = read_json_object(_LIST, what="list of exceptions")["exceptions"]
    return {row: entry["why"] for entry in entries for row in entry["rows"]}
