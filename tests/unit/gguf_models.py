"""Small GGUF models: the headers that llama.cpp's converter wrote, as files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from checkpoint_files import gguf_bytes

from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME

CONVERTED = Path(__file__).parents[1] / "data" / "gguf" / "converted.jsonl"

Tensors = dict[str, tuple[str, tuple[int, ...]]]


@cache
def converted() -> dict[str, dict[str, Any]]:
    """The models of ``converted.jsonl`` by name."""
    lines = CONVERTED.read_text(encoding="utf-8").splitlines()
    return {model["model"]: model for model in map(json.loads, lines)}


def tensors_of(model: dict[str, Any]) -> Tensors:
    """Type and shape of every tensor by name."""
    found: Tensors = {}
    for name, kind, shape, *layers in model["tensors"]:
        for layer in layers[0] if layers else [None]:
            found[name if layer is None else name.format(layer)] = (kind, tuple(shape))
    return found


def typed(value: Any) -> tuple[str, Any]:
    """A metadata value with the kind that converters give it."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        width = "32" if -(2**31) <= value < 2**32 else "64"
        return ("u" if value >= 0 else "i") + width, value
    if isinstance(value, float):
        return "f32", value
    if isinstance(value, list):
        return f"array:{typed(value[0])[0] if value else 'u32'}", value
    return "str", value


def model_bytes(metadata: dict[str, Any], tensors: Tensors, *, weights: bool = True) -> bytes:
    """A GGUF file of these; ``weights`` False leaves the data away, which makes it cut off."""
    entries, end = [], 0
    for name, (kind, shape) in tensors.items():
        type_ = GGML_TYPES_BY_NAME[kind]
        size = type_.block_bytes
        for side in shape:
            size *= side
        entries.append((name, shape[::-1], type_.id, end))
        end += -(-(size // type_.block_elements) // 32) * 32
    keys = [(key, *typed(value)) for key, value in metadata.items()]
    return gguf_bytes(keys, entries, data_bytes=end if weights else 0)


def write_model(folder: Path, name: str, *, file: str = "model.gguf") -> Path:
    """The converted model of that name as a file."""
    model = converted()[name]
    path = folder / file
    path.write_bytes(model_bytes(model["metadata"], tensors_of(model)))
    return path
