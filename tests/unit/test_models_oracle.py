"""Every config that we have, counted against Hugging Face transformers (see tests/data/oracle)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from rooflens.errors import UnsupportedError
from rooflens.models.accounting import count_parameters
from rooflens.models.bundled import CONFIG, bundled_models
from rooflens.models.families.registry import FAMILIES, read_spec
from rooflens.models.json_input import read_json_object
from rooflens.models.spec import ModelSpec
from rooflens.models.tensors import checkpoint_tensors

DATA = Path(__file__).parent.parent / "data" / "oracle"
with (DATA / "oracle_params.csv").open(newline="") as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file)}
BUNDLED = {model.id: model.directory / CONFIG for model in bundled_models()}

# Architectures that are refused by name so far. One that becomes covered has to leave this list.
NOT_COVERED: set[str] = set()

# Configs that are read, but whose count in the table is not that of the config.
_DEFAULT_SIZES = "transformers did not find the sizes in this form and counted those of its default model"
COUNTED_OTHERWISE = {
    "mistralai/Ministral-3-3B-2512": _DEFAULT_SIZES,
    "stepfun-ai/Step-3.7-Flash": _DEFAULT_SIZES,
    "stepfun-ai/Step-3.7-Flash-FP8": _DEFAULT_SIZES,
}


def config_of(row: dict[str, str]) -> Path:
    return DATA / row["config"] if row["config"].startswith("configs/") else BUNDLED[row["config"]]


def spec_of(row: dict[str, str]) -> ModelSpec:
    return read_spec(read_json_object(config_of(row)), name=row["id"])


def covered() -> list[dict[str, str]]:
    rows = []
    for row in ROWS.values():
        model_type = str(read_json_object(config_of(row))["model_type"])
        if model_type not in NOT_COVERED and row["id"] not in COUNTED_OTHERWISE:
            rows.append(row)
    return rows


def test_what_is_not_covered_is_listed_and_refused_by_name() -> None:
    assert NOT_COVERED.isdisjoint(FAMILIES)
    for row in ROWS.values():
        model_type = str(read_json_object(config_of(row))["model_type"])
        if model_type in NOT_COVERED:
            with pytest.raises(UnsupportedError, match=f"'{model_type}'"):
                spec_of(row)


@pytest.mark.parametrize("row", [row for row in covered() if row["total"]], ids=lambda row: row["id"])
def test_parameters_equal_the_oracle(row: dict[str, str]) -> None:
    count = count_parameters(spec_of(row))
    assert count.total == int(row["total"])
    if row["active"]:
        assert count.active == int(row["active"])
    if row["expert_params"] and int(row["expert_params"]):
        assert count.experts == int(row["expert_params"])
    if int(row["embedding"] or 0):  # 0: not known
        assert count.embedding == int(row["embedding"])


# The table takes its cache layout from the config alone; these are read as the model's own code reads them.
CACHED_OTHERWISE = {
    "microsoft/Phi-mini-MoE-instruct": "the code windows every layer where sliding_window is set",
    "sgl-project/DeepSeek-V4-Pro-FP8": "compressed attention, not MQA",
}
PLAIN_CACHES = ("MHA", "GQA", "MQA", "SWA", "SWA mix")


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in covered()
        if row["kv_kind"] in PLAIN_CACHES and not row["kv_note"] and row["id"] not in CACHED_OTHERWISE
    ],
    ids=lambda row: row["id"],
)
def test_caches_equal_the_oracle(row: dict[str, str]) -> None:
    mixers = [layer.mixers[0] for layer in spec_of(row).layers]
    windowed = [mixer for mixer in mixers if mixer.window is not None]
    growing = [mixer for mixer in mixers if mixer.window is None]
    assert (len(growing), len(windowed)) == (int(row["kv_full_layers"]), int(row["kv_swa_layers"]))
    assert sum(mixer.kv_elements_per_token for mixer in growing) == int(row["kv_elems_per_token_full"])
    assert sum(mixer.kv_elements_per_token for mixer in windowed) == int(row["kv_elems_per_token_swa"])
    assert {str(mixer.window) for mixer in windowed} <= {row["window"]}


@pytest.mark.parametrize("row", covered(), ids=lambda row: row["id"])
def test_every_layer_names_its_tensors(row: dict[str, str]) -> None:
    spec = spec_of(row)
    names = [name for name, _ in checkpoint_tensors(spec)]
    assert len(names) == len(set(names))


PUBLISHED = read_json_object(DATA / "published_sizes.json", what="published sizes")["models"]


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry["model"])
def test_parameters_equal_the_published_number(entry: dict[str, Any]) -> None:
    spec = read_spec({**entry["config"], "torch_dtype": "bfloat16"}, name=entry["model"])
    assert count_parameters(spec).total == entry["parameters"]


# Figures published by the vendors of models whose configs were rebuilt from other files.
@pytest.mark.parametrize(
    ("model", "total"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("google/gemma-3-270m", 268_098_176),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_030_261_248),
    ],
)
def test_rebuilt_configs_have_the_published_size(model: str, total: int) -> None:
    spec = read_spec(read_json_object(BUNDLED[model]), name=model)
    assert count_parameters(spec).total == total
