"""Models from mutated configs and GGUF metadata: one of our errors, or an answer that can be priced."""

from __future__ import annotations

import copy
import json
import math
from functools import cache
from typing import Any

from gguf_models import converted, tensors_of
from hypothesis import given
from hypothesis import strategies as st
from mutations import survives

import rooflens
from rooflens.models.bundled import CONFIG, bundled_models
from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME, tensor_bytes
from rooflens.models.checkpoint.safetensors_header import DTYPE_BITS
from rooflens.models.checkpoint.tensor import Checkpoint, CheckpointFile, TensorInfo
from rooflens.models.families.registry import read_spec
from rooflens.models.headers.gguf_model import gguf_model
from rooflens.models.headers.safetensors_model import ConfigSource, safetensors_model
from rooflens.models.json_input import read_json_object
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.models.tensors import checkpoint_tensors
from rooflens.units import BITS_PER_BYTE, MIB

Path = tuple[str | int, ...]

NUMBERS = [0, 1, 2, 3, 7, 64, 1000, 2**31, 2**40, -1, 0.0, 0.5, -2.5, 1e-300, 1e300, 2.0]
OTHERS: list[Any] = [
    None,
    True,
    False,
    "",
    "x",
    "none",
    "full_attention",
    [],
    {},
    [0],
    [1, 2],
    ["a"],
    {"a": 1},
]
VALUES = st.sampled_from([*NUMBERS, *OTHERS])


@cache
def configs() -> list[dict[str, Any]]:
    """Every bundled config, and the small ones that GGUF files were converted from."""
    bundled = [read_json_object(model.directory / CONFIG) for model in bundled_models()]
    return bundled + [model["config"] for model in converted().values()]


def places(node: Any, path: Path = ()) -> list[Path]:
    """Where something stands in a config, long lists by their first few items only."""
    inside = node.items() if isinstance(node, dict) else enumerate(node[:3]) if isinstance(node, list) else ()
    return [place for key, value in inside for place in ((*path, key), *places(value, (*path, key)))]


def put(node: Any, path: Path, value: Any) -> None:
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = copy.deepcopy(value)  # the choices are shared: a later change must not reach into them


def taken(node: Any, path: Path) -> None:
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]


@st.composite
def mutated(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """The mapping with one to four changes: fields gone, of another kind, or as large as can be."""
    made = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 4))):
        spots = places(made)
        if not spots:
            break
        path = draw(st.sampled_from(spots))
        change = draw(st.sampled_from(["put", "put", "drop", "scale", "wrap", "text"]))
        now: Any = made
        for key in path:
            now = now[key]
        if change == "drop":
            taken(made, path)
        elif change == "scale" and isinstance(now, (int, float)) and not isinstance(now, bool):
            put(made, path, now * draw(st.sampled_from([2, 3, -1, 1000, 0.5])))
        elif change == "wrap":
            put(made, path, draw(st.sampled_from([[now], [now] * 3, {"x": now}])))
        elif change == "text":
            put(made, path, str(now))
        else:
            put(made, path, draw(VALUES))
    return made


def priced(spec: ModelSpec) -> dict[str, Any]:
    """What inspect and plan say, checked to be JSON."""
    inspected = rooflens.inspect(spec).to_dict()
    document = json.dumps(inspected, allow_nan=False)
    assert inspected["weights_bytes"] >= 0
    assert inspected["parameters"] >= 0
    planned = rooflens.plan(spec, device="rtx-4090").to_dict()
    json.dumps(planned, allow_nan=False)
    assert document
    return inspected


@given(st.data())
def test_mutated_configs_are_refused_or_priced(data: st.DataObject) -> None:
    # Drawn by number: a strategy that holds all of them is long to print.
    fields = data.draw(mutated(configs()[data.draw(st.integers(0, len(configs()) - 1))]))
    survives(lambda: priced(read_model(fields)), peak_bytes=256 * MIB)


@cache
def headers() -> list[dict[str, Any]]:
    """The metadata and tensors of the converted models."""
    return [
        {
            "metadata": model["metadata"],
            "tensors": {k: [t, list(s)] for k, (t, s) in tensors_of(model).items()},
        }
        for model in converted().values()
        if len(tensors_of(model)) < 200
    ]


def checkpoint_of(header: dict[str, Any]) -> Checkpoint | None:
    """A checkpoint as the header's reader gives it; None for tensors that the reader refuses."""
    tensors, end = [], 0
    for name, (kind, shape) in header["tensors"].items():
        type_ = GGML_TYPES_BY_NAME[kind]
        size = tensor_bytes(type_, tuple(shape), tensor=name)
        tensors.append(TensorInfo(name, kind, tuple(shape), size, "f.gguf", end))
        end += size
    metadata = {k: tuple(v) if isinstance(v, list) else v for k, v in header["metadata"].items()}
    files = (CheckpointFile("f.gguf", end, 0),)
    return Checkpoint("gguf", files, tuple(tensors), metadata)


@given(st.data(), st.sampled_from([math.nan, math.inf, -math.inf, None]))
def test_mutated_gguf_metadata_is_refused_or_priced(data: st.DataObject, odd: float | None) -> None:
    header = headers()[data.draw(st.integers(0, len(headers()) - 1))]
    kept = {"tensors": header["tensors"], "metadata": data.draw(mutated(header["metadata"]))}
    # GGUF has no objects and no nulls; its arrays may hold anything else.
    kept["metadata"] = {
        key: [0 if isinstance(x, (dict, list)) or x is None else x for x in value]
        if isinstance(value, list)
        else value
        for key, value in kept["metadata"].items()
        if value is not None and not isinstance(value, dict)
    }
    if odd is not None:
        key = data.draw(st.sampled_from(sorted(kept["metadata"])))
        kept["metadata"][key] = odd
    drop = data.draw(st.sets(st.sampled_from(sorted(kept["tensors"])), max_size=2))
    kept["tensors"] = {k: v for k, v in kept["tensors"].items() if k not in drop}
    found = survives(
        lambda: priced(gguf_model(checkpoint_of(kept), name="x")),
        peak_bytes=64 * MIB,  # type: ignore[arg-type]
    )
    if found is not None and not drop and odd is None:
        checkpoint = found["checkpoint"]
        assert checkpoint["model_bytes"] <= checkpoint["tensor_bytes"]


SMALL = ["llama", "qwen3moe", "gpt-oss", "deepseek3", "mamba2", "gemma3", "granitehybrid", "phi3"]
DTYPES = ["BF16", "F32", "F16", "F8_E4M3", "U8", "I32", "U32", "I8", "F4", "BOOL", "C64"]
ENDINGS = [
    ".weight_scale",
    ".qweight",
    ".weight_packed",
    "_blocks",
    ".lora_A.weight",
    ".k_scale",
    ".weight.absmax",
]


@cache
def described(name: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """A small model's config, and the names and shapes of its checkpoint."""
    fields = converted()[name]["config"]
    return fields, dict(checkpoint_tensors(read_model(fields)))


@given(st.data())
def test_mutated_safetensors_are_refused_or_priced(data: st.DataObject) -> None:
    fields, shapes = described(data.draw(st.sampled_from(SMALL)))
    held: dict[str, tuple[str, tuple[int, ...]]] = {name: ("BF16", shape) for name, shape in shapes.items()}
    for _ in range(data.draw(st.integers(1, 6))):
        name = data.draw(st.sampled_from(sorted(held)))
        dtype, shape = held.pop(name)
        match data.draw(st.sampled_from(["drop", "type", "shape", "flat", "rename", "copy", "pack"])):
            case "type":
                held[name] = (data.draw(st.sampled_from(DTYPES)), shape)
            case "shape":
                held[name] = (
                    dtype,
                    tuple(side * data.draw(st.sampled_from([0, 1, 1, 2, 3])) for side in shape),
                )
            case "flat":
                held[name] = (dtype, (math.prod(shape),))
            case "rename":
                held[name.removesuffix(".weight") + data.draw(st.sampled_from(ENDINGS))] = (dtype, shape)
            case "copy":
                held[name] = (dtype, shape)
                held[f"language_model.{name}"] = (dtype, shape)
            case "pack" if shape and shape[-1] % 8 == 0:
                held[name] = ("U32", (*shape[:-1], shape[-1] // 8))
    tensors, end = [], 0
    for name, (dtype, shape) in held.items():
        size = -(-math.prod(shape) * DTYPE_BITS[dtype] // BITS_PER_BYTE)
        tensors.append(TensorInfo(name, dtype, shape, size, "f.safetensors", end))
        end += size
    files = (CheckpointFile("f.safetensors", end, 0),)
    checkpoint = Checkpoint("safetensors", files, tuple(tensors))
    source = ConfigSource(fields, lambda changed: read_spec(changed, name="x"))
    found = survives(lambda: priced(safetensors_model(checkpoint, source)), peak_bytes=64 * MIB)
    if found is not None:
        rows = found["checkpoint"]["components"]
        assert (
            sum(row["bytes"] for row in rows) == checkpoint.total_bytes == found["checkpoint"]["tensor_bytes"]
        )
