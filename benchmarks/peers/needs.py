"""Bytes and FLOPs that each case needs with an engine's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.peers.cases import need
from benchmarks.peers.protocol import Case
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec

_FP32_BYTES = 4


def needs_of(
    path: Path, made_by: str, plain: ModelSpec, cases: Sequence[Case], *, kv_dtype: str
) -> dict[str, dict[str, float]]:
    """By case: from the file that Rooflens reads itself, else with the weights that the engine's file holds.

    ``plain`` is the model as written first, in bf16.
    """
    if made_by in ("directory", "stored") or made_by.startswith("gguf"):
        spec = read_model(path)
        return {case.name: asdict(need(spec, case, kv_dtype=kv_dtype)) for case in cases}
    held, stated = held_bytes(path, plain), need(plain, Case("decode", 0, tokens=0), kv_dtype=kv_dtype)
    made = {}
    for case in cases:
        own = need(plain, case, kv_dtype=kv_dtype)
        # Only the weights differ: what the plan counts for them in bf16 goes, what is held comes.
        made[case.name] = asdict(replace(own, read_bytes=own.read_bytes - stated.read_bytes + held))
    return made


def held_bytes(path: Path, plain: ModelSpec) -> float:
    """Weights that one token reads in an engine's own files: all but a table that is only looked up."""
    if (weights := path / "openvino_model.bin").exists():
        return float(weights.stat().st_size)
    weights = path / "model.onnx.data"
    # The builder keeps the lookup table in fp32 beside the quantised head.
    return float(weights.stat().st_size - plain.vocab_size * plain.hidden_size * _FP32_BYTES)
