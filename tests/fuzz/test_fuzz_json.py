"""JSON: one object within the limits, or one of our errors."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged, survives

from rooflens.models.json_input import LIMIT_DEPTH, read_json_object
from rooflens.units import MIB

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "layer_types": ["full_attention", "sliding_attention"] * 4,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "time_step_limit": [0.0, math.inf],
    "name": "naïve 🦙",
}
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text()
OBJECTS = st.dictionaries(
    st.text(),
    st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20),
)


def depth(value: Any) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, items), default=0)


@given(OBJECTS, st.booleans())
def test_every_object_is_read_back(table: dict[str, Any], escape: bool) -> None:
    try:
        raw = json.dumps(table, ensure_ascii=escape).encode()
    except UnicodeEncodeError:
        return
    found = survives(lambda: read_json_object(raw), peak_bytes=8 * MIB)
    surrogate = any(0xD800 <= ord(character) < 0xE000 for character in json.dumps(table, ensure_ascii=False))
    assert found == (None if surrogate else table)


@given(damaged(st.just(json.dumps(CONFIG, ensure_ascii=False, indent=1).encode())))
def test_damaged_configs(raw: bytes) -> None:
    found = survives(lambda: read_json_object(raw), peak_bytes=8 * MIB)
    if found is not None:
        assert depth(found) <= LIMIT_DEPTH


PIECES = ['{"a":', "[", "]", "}", '"', "1", ",", "NaN", "-Infinity", "1e400", "\\ud800"]


@given(st.lists(st.sampled_from(PIECES)))
def test_json_noise(pieces: list[str]) -> None:
    survives(lambda: read_json_object("".join(pieces).encode()), peak_bytes=8 * MIB)


@given(st.integers(1, 20_000), st.sampled_from(["[", '{"a":', '{"a":[']))
def test_any_depth(levels: int, opening: str) -> None:
    raw = b'{"a":' + opening.encode() * levels
    assert survives(lambda: read_json_object(raw), peak_bytes=16 * MIB) is None
