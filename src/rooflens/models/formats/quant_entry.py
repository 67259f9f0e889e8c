"""Where a config.json keeps its quantisation entry; apart from the readers, which most models do not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooflens.errors import InputError

# Entries of a config that may hold it; MLX writes ``quantization`` and, newer, both.
_ENTRIES = ("quantization_config", "compression_config", "quantization")
_TEXT_SECTIONS = ("text_config", "language_config", "llm_config")


def find_quantization(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quantisation entry of a config.json, in the config itself or in that of its language model."""
    for section in (fields, *(fields.get(name) for name in _TEXT_SECTIONS)):
        if not isinstance(section, Mapping):
            continue
        for entry in _ENTRIES:
            value = section.get(entry)
            if value is None or value == {}:
                continue
            if not isinstance(value, Mapping):
                raise InputError(f"config.json: {entry} is not an object", value=value)
            return value
    return None
