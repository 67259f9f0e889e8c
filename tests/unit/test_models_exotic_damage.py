"""Damaged configs of the less common architectures: a clear error or a spec, never another exception."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from rooflens.errors import RooflensError
from rooflens.models.accounting import count_parameters, kv_sequence_bytes, weights_bytes
from rooflens.models.families.registry import read_spec

CONFIGS = sorted((Path(__file__).parent.parent / "data" / "oracle_exotic" / "configs").glob("*.json"))
DAMAGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    3,
    2**31,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "text",
    "7",
    [],
    [1],
    ["a"],
    [None],
    [[2, 3], [4]],
    {},
    {"a": 1},
    {"model_type": "llama"},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every field and list entry of a config, but for its quantisation."""
    found: list[tuple[Any, ...]] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != "quantization_config":
                found += [(*path, key), *places(inner, (*path, key))]
    elif isinstance(value, list) and value:
        found += [(*path, 0), (*path, len(value) - 1)]
    return found


def damaged(fields: dict[str, Any], path: tuple[Any, ...], value: Any, *, drop: bool) -> dict[str, Any]:
    changed = copy.deepcopy(fields)
    target: Any = changed
    for key in path[:-1]:
        target = target[key]
    if drop:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return changed


def survives(fields: dict[str, Any]) -> None:
    try:
        spec = read_spec(fields, name="damaged")
        count_parameters(spec)
        weights_bytes(spec)
        kv_sequence_bytes(spec, context=4096, kv_dtype="bf16")
    except RooflensError:
        pass


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_one_damaged_field(path: Path) -> None:
    fields = json.loads(path.read_text())
    rng = random.Random(path.stem)
    where = places(fields)
    for place in rng.sample(where, min(len(where), 12)):
        survives(damaged(fields, place, None, drop=True))
        for value in rng.sample(DAMAGE, 2):
            survives(damaged(fields, place, value, drop=False))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_many_damaged_fields(path: Path) -> None:
    fields = json.loads(path.read_text())
    rng = random.Random(path.stem + "many")
    for _ in range(6):
        changed = fields
        for _ in range(3):
            where = places(changed)
            if where:
                changed = damaged(changed, rng.choice(where), rng.choice(DAMAGE), drop=rng.random() < 0.3)
        survives(changed)
