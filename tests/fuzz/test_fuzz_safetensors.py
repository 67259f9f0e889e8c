"""safetensors: what the library accepts is read the same; everything else is refused, cheaply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checkpoint_files import safetensors_bytes
from hypothesis import assume, given
from hypothesis import strategies as st
from mutations import INTERESTING, Watched, damaged, survives

from rooflens.models.checkpoint.safetensors import parse_index, read_safetensors
from rooflens.models.checkpoint.safetensors_header import DTYPE_BITS, read_header
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.units import MIB

safetensors = pytest.importorskip("safetensors")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from(INTERESTING) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A valid header and the size of its data."""
    table: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(TEXT.filter(lambda name: name != "__metadata__"), max_size=5, unique=True)):
        dtype, bits = draw(st.sampled_from(list(DTYPE_BITS.items())))
        shape = [*draw(st.lists(st.integers(0, 3), max_size=3)), 8]  # 8: sub-byte types fill whole bytes
        size = bits
        for dimension in shape:
            size *= dimension
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size // 8]}
        end += size // 8
    if draw(st.booleans()):
        table["__metadata__"] = draw(st.dictionaries(TEXT, TEXT, max_size=3))
    return table, end


FILES = tables().map(lambda valid: safetensors_bytes(*valid))


def parse(raw: bytes) -> Checkpoint:
    source = Watched(raw, "fuzz.safetensors")
    found = read_safetensors([source])
    assert source.reads <= 2
    return found


def agrees_with_the_library(raw: bytes) -> None:
    ours = survives(lambda: parse(raw), peak_bytes=4 * MIB)
    try:
        theirs = dict(safetensors.deserialize(raw))
    except Exception:
        return  # ours may be more: gaps and bytes at the end are reported, not refused
    assert ours is not None, "the library reads this file"
    assert {name: (tensor.shape, tensor.bytes) for name, tensor in ours.by_name.items()} == {
        name: (tuple(entry["shape"]), len(entry["data"])) for name, entry in theirs.items()
    }


@given(FILES)
def test_valid_files_are_read_as_the_library_reads_them(raw: bytes) -> None:
    assert parse(raw).problems == ()
    agrees_with_the_library(raw)


@given(damaged(FILES))
def test_damaged_files_are_read_as_the_library_does_or_refused(raw: bytes) -> None:
    agrees_with_the_library(raw)


@given(tables(), st.data())
def test_any_json_in_any_place(valid: tuple[dict[str, Any], int], data: st.DataObject) -> None:
    table, size = valid
    assume(table)
    name = data.draw(st.sampled_from(list(table)))
    field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", None]))
    if field is None or name == "__metadata__":
        table[name] = data.draw(JSON)
    else:
        table[name][field] = data.draw(JSON)
    survives(lambda: parse(safetensors_bytes(table, size)), peak_bytes=4 * MIB)


@given(damaged(FILES))
def test_damaged_headers_of_terabyte_files_cost_little(raw: bytes) -> None:
    source = Watched(raw, "fuzz.safetensors", size=2**40)
    survives(lambda: read_header(source, limit_bytes=MIB), peak_bytes=16 * MIB)


@given(st.binary(max_size=300))
def test_noise(raw: bytes) -> None:
    survives(lambda: parse(raw), peak_bytes=2 * MIB)


@given(JSON | st.fixed_dictionaries({"weight_map": JSON, "metadata": JSON}))
def test_any_index(table: Any) -> None:
    if isinstance(table, dict):
        json.dumps(table)
        survives(lambda: parse_index(table, name="index.json"), peak_bytes=MIB)
