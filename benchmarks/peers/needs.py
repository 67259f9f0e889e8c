"""Bytes and FLOPs that each case needs with an engine's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.peers.cases import need
from benchmarks.peers.protocol import Case
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec


def needs_of(
    path: Path, plain: ModelSpec, cases: Sequence[Case], *, kv_dtype: str, held_bytes: float | None
) -> dict[str, dict[str, float]]:
    """By case: from the file that Rooflens reads itself, else with ``held_bytes`` of weights.

    ``plain`` is the model as written first, in bf16. ``held_bytes``: what the engine's own files hold of the
    weights that every token reads.
    """
    if held_bytes is None:
        spec = read_model(path)
        return {case.name: asdict(need(spec, case, kv_dtype=kv_dtype)) for case in cases}
    stated = need(plain, Case("decode", 0, tokens=0), kv_dtype=kv_dtype)
    made = {}
    for case in cases:
        own = need(plain, case, kv_dtype=kv_dtype)
        # Only the weights differ: what the plan counts for them in bf16 goes, what is held comes.
        made[case.name] = asdict(replace(own, read_bytes=own.read_bytes - stated.read_bytes + held_bytes))
    return made
