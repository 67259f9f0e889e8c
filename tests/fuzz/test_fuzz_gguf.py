"""GGUF: any valid header is read right; any damaged one is read or refused, cheaply."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_files import VALUE_TYPES, gguf_bytes
from hypothesis import given
from hypothesis import strategies as st
from mutations import Watched, damaged, survives

from rooflens.models.checkpoint import gguf_header
from rooflens.models.checkpoint.ggml_types import GGML_TYPES
from rooflens.models.checkpoint.gguf import read_gguf_parts
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.units import MIB

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTEGERS = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 2**16 - 1), "i32": (-(2**31), 2**31 - 1)}
INTEGERS |= {"u32": (0, 2**32 - 1), "i64": (-(2**63), 2**63 - 1), "u64": (0, 2**64 - 1), "bool": (0, 1)}


def content(kind: str) -> st.SearchStrategy[Any]:
    if kind == "str":
        return TEXT
    if kind in INTEGERS:
        return st.integers(*INTEGERS[kind])
    return st.floats(width=32 if kind == "f32" else 64, allow_nan=False)


SCALARS = st.sampled_from([*INTEGERS, "f32", "f64", "str"]).flatmap(
    lambda kind: st.tuples(st.just(kind), content(kind))
)
ARRAYS = st.sampled_from([*INTEGERS, "f32", "str"]).flatmap(
    lambda kind: st.tuples(st.just(f"array:{kind}"), st.lists(content(kind), max_size=5))
)
METADATA = st.dictionaries(TEXT.filter(lambda key: key != "general.alignment"), SCALARS | ARRAYS, max_size=6)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Keyword arguments for `gguf_bytes`, with tensors one after another as llama.cpp wants them."""
    alignment = draw(st.sampled_from([8, 32, 128]))
    metadata = [(key, *typed) for key, typed in draw(METADATA).items()]
    metadata.append(("general.alignment", "u32", alignment))
    tensors, end = [], 0
    for name in draw(st.lists(TEXT, max_size=5, unique=True)):
        stored = draw(st.sampled_from(list(GGML_TYPES.values())))
        blocks = draw(st.integers(0, 3))
        rest = draw(st.lists(st.integers(0, 3), max_size=3))
        size = blocks * stored.block_bytes
        for dimension in rest:
            size *= dimension
        tensors.append((name, (blocks * stored.block_elements, *rest), stored.id, end))
        end += -(-size // alignment) * alignment
    return {
        "metadata": metadata, "tensors": tensors, "data_bytes": end, "alignment": alignment,
        "order": draw(st.sampled_from("<>")), "version": draw(st.sampled_from([2, 3])),
    }  # fmt: skip


def parse(raw: bytes, size: int | None = None) -> Checkpoint:
    source = Watched(raw, "fuzz.gguf", size=size)
    found = read_gguf_parts([source])
    assert source.reads <= 50
    return found


@given(models())
def test_valid_files_are_read_right(model: dict[str, Any]) -> None:
    found = parse(gguf_bytes(**model))
    expected = {
        name: (GGML_TYPES[type_id].name, tuple(reversed(dims))) for name, dims, type_id, _ in model["tensors"]
    }
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors} == expected
    for key, kind, wanted in model["metadata"]:
        value = found.metadata[key]
        if kind.startswith("array:"):
            value, wanted = list(value), list(wanted)
        assert value == wanted
    assert found.problems == () if found.tensors else "holds no tensors" in found.problems[0]
    padded = sum(-(-tensor.bytes // model["alignment"]) * model["alignment"] for tensor in found.tensors)
    assert found.files[0].header_bytes + padded == found.files[0].bytes


@given(damaged(models().map(lambda model: gguf_bytes(**model))))
def test_damaged_files_are_read_or_refused(raw: bytes) -> None:
    found = survives(lambda: parse(raw), peak_bytes=2 * MIB)
    if found is not None:
        assert all(tensor.offset + tensor.bytes <= len(raw) for tensor in found.tensors)
        assert found.total_bytes <= len(raw)


@given(damaged(models().map(lambda model: gguf_bytes(**model))))
def test_damaged_headers_of_terabyte_files_cost_little(raw: bytes) -> None:
    # What is claimed may be there: the file goes on with zeros. Only the bound on headers stops the reader.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_header, "LIMIT_HEADER_BYTES", MIB)
        survives(lambda: parse(raw, size=2**40), peak_bytes=32 * MIB)


@given(st.binary(max_size=200).map(lambda tail: b"GGUF\3\0\0\0" + tail))
def test_noise(raw: bytes) -> None:
    survives(lambda: parse(raw), peak_bytes=2 * MIB)


def test_the_builder_knows_every_value_type() -> None:
    assert {type_id for type_id, _ in VALUE_TYPES.values()} == set(gguf_header._NUMBERS)
