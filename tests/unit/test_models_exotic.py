"""Published configs of the less common architectures, counted against Hugging Face transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from rooflens.models.accounting import count_parameters, kv_growth_elements
from rooflens.models.families.registry import read_spec
from rooflens.models.spec import Attention, LatentAttention, Mixer, MixerKind, ModelSpec, Recurrent

DATA = Path(__file__).parent.parent / "data" / "oracle_exotic"
with (DATA / "oracle.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))


def load(config: str) -> dict[str, Any]:
    return json.loads((DATA / "configs" / config).read_text())


def spec_of(row: dict[str, str]) -> ModelSpec:
    return read_spec(load(row["config"]), name=row["id"])


def mixers(spec: ModelSpec) -> list[Mixer]:
    return [mixer for layer in spec.layers for mixer in layer.mixers]


def stored(mixer: Mixer) -> int:
    """Cached elements per token without an indexer's key, which the oracle leaves out."""
    if isinstance(mixer, LatentAttention):
        return mixer.latent_dim
    if isinstance(mixer, Attention) and mixer.indexer_key_dim:
        return mixer.kv_elements_per_token - mixer.indexer_key_dim
    return mixer.kv_elements_per_token


# Transformers did not read these flat copies and built its default model: 81 rows fewer in both tables.
STEP_ROWS = 2 * 81 * 4096


@pytest.mark.parametrize("row", [r for r in ROWS if r["total"]], ids=lambda r: r["id"])
def test_parameters_equal_the_oracle(row: dict[str, str]) -> None:
    spec = spec_of(row)
    count = count_parameters(spec)
    more = STEP_ROWS if row["id"].startswith("stepfun-ai/") else 0
    assert count.total == int(row["total"]) + more
    if row["active"]:
        assert count.active == int(row["active"]) + more
    assert count.embedding == int(row["embedding"]) + more
    if row["vision_params"] and set(count.components) <= {"vision", "projector"}:
        # The oracle counts a projector with the tower where the model keeps it there.
        tower, projector = count.components.get("vision", 0), count.components.get("projector", 0)
        assert int(row["vision_params"]) in (tower, tower + projector)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_every_config_is_read(row: dict[str, str]) -> None:
    spec = spec_of(row)
    assert spec.layers
    assert spec.model_type == load(row["config"])["model_type"]
    assert sum(group.count for group in spec.groups) == len(spec.layers)  # every layer can be hashed


# The oracle's own formula gives the full layers of gemma-4-E4B the heads of the local ones; the sum over
# the projections, tested below, has them right.
EXACT_KV = [
    r
    for r in ROWS
    if r["total"] and r["kv_full_layers"] and "approximate" not in r["kv_note"] and "E4B" not in r["id"]
]


@pytest.mark.parametrize("row", EXACT_KV, ids=lambda r: r["id"])
def test_cache_growth_equals_the_oracle(row: dict[str, str]) -> None:
    spec = spec_of(row)
    full = [m for m in mixers(spec) if m.window is None and m.kind is not MixerKind.CROSS and stored(m)]
    assert sum(stored(m) for m in full) == int(row["kv_growing_elements"])
    indexers = sum(m.kv_elements_per_token - stored(m) for m in full)
    assert kv_growth_elements(spec) == int(row["kv_growing_elements"]) + indexers
    recurrent = sum(isinstance(m, Recurrent) for m in mixers(spec))
    if "Nemotron-3.5-Lightning" in row["id"]:
        # The oracle took this list's "moe" layers for recurrent ones: 46 = 23 of each.
        assert recurrent == int(row["fixed_state_layers"]) - 23
    else:
        assert recurrent == int(row["fixed_state_layers"])


@pytest.mark.parametrize("row", [r for r in ROWS if int(r["kv_all_elements"] or 0)], ids=lambda r: r["id"])
def test_cache_of_all_layers_equals_the_projections(row: dict[str, str]) -> None:
    """The oracle sums the rows of all K and V matrices, so layers without a V matrix count half."""
    spec = spec_of(row)
    rows = 0
    for mixer in mixers(spec):
        if isinstance(mixer, Attention):
            elements = mixer.kv_heads * mixer.head_dim if mixer.value_is_key else stored(mixer)
            rows += elements
        elif isinstance(mixer, LatentAttention):
            rows += stored(mixer)
    assert rows == int(row["kv_all_elements"])
