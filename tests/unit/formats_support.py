"""Models that the format tests share: the bundled configs, read once each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import rooflens
from rooflens.models.families.registry import read_spec
from rooflens.models.formats.base import WeightFormat
from rooflens.models.spec import ModelSpec, layer_linears

CONFIGS = Path(rooflens.__file__).parent / "models" / "data" / "configs"


def config(name: str, file: str = "config.json") -> dict[str, Any] | None:
    path = CONFIGS / name / file
    return json.loads(path.read_text()) if path.exists() else None


@cache
def model(name: str) -> ModelSpec:
    """A bundled model with its own quantisation."""
    fields = config(name)
    assert fields is not None, name
    return read_spec(fields, name=name, hf_quant_config=config(name, "hf_quant_config.json"))


def quantised(name: str, quantization: dict[str, Any], **fields: Any) -> ModelSpec:
    """A bundled model whose config carries ``quantization``."""
    own = config(name)
    assert own is not None, name
    return read_spec({**own, **fields, "quantization_config": quantization}, name=name)


def formats_of(spec: ModelSpec, layer: int = 0) -> dict[str, WeightFormat | None]:
    """Checkpoint module -> format, of one layer and of the head."""
    found = {
        part.source: part.weight_format
        for _, linear, _ in layer_linears(spec.layers[layer])
        for part in linear.parts
    }
    if spec.head is not None:
        found["lm_head"] = spec.head.parts[0].weight_format
    return found


def names_of(spec: ModelSpec, layer: int = 0) -> dict[str, str | None]:
    """Checkpoint module -> name of its format."""
    return {source: made and made.name for source, made in formats_of(spec, layer).items()}
