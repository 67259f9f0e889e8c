"""The models, formats and devices that measurement files name, as the product knows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflens.analysis.cases import Case, kind_of_row, terms_of
from rooflens.analysis.measurement import Measurement
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import NotFoundError, RooflensError
from rooflens.hardware.catalogue import find_device
from rooflens.hardware.device import Device
from rooflens.models.bundled import match_bundled
from rooflens.models.formats.apply import apply_format
from rooflens.models.json_input import read_json_object
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec

_TABLE = Path(__file__).parent / "data" / "measured_models.json"
# Apple's parts come with different numbers of GPU cores, which the catalogue does not tell apart.
_CORES = re.compile(r"\s+\d+c$")
# How measurement files write formats -> the names of ``--weights``.
_FORMATS = {
    "fp8 (w8a8)": "fp8",
    "fp8_block": "fp8-block",
    "fp8/moe fp8_block": "fp8-block",
    "fp8_block/moe fp8_block": "fp8-block",
    "fp8/moe fp8": "fp8",
    "nvfp4/moe nvfp4": "nvfp4",
    "int4_wo": "w4a16-g128",
    "int4_wo/moe int4_wo": "w4a16-g128",
    "int8 weight-only": "torchao-int8",
    "int4 g32 weight-only": "torchao-int4-g32",
    "gguf mxfp4": "",
}
_KV = {"f16": "fp16", "f32": "fp32"}


@lru_cache(maxsize=256)
def measured_model(name: str, weight_format: str) -> ModelSpec:
    """The spec of a model named in a measurement, in the format it ran in (empty: the checkpoint's own).

    Only bundled models, their relatives listed in ``data/measured_models.json`` and local paths are looked
    up, never the network. Raises NotFoundError or UnsupportedError.
    """
    spec, listed = _spec(name)
    text = weight_format.strip().lower()
    weights = _FORMATS.get(text, text.removeprefix("gguf ")) or listed
    if not weights or (weights in ("f16", "fp16", "bf16") and spec.quantization is None):
        return spec
    quantised = spec.quantization
    if quantised is not None and _same_kind(quantised, weights):
        return spec
    return apply_format(spec, weights)


def _same_kind(quantization: str, weights: str) -> bool:
    """Whether a quantised checkpoint is what the measurement's format says."""
    kinds = {
        "fp8": ("fp8",),
        "compressed-tensors": ("w4a16", "w8a8"),
        "mxfp4": ("mxfp4",),
        "modelopt": ("nvfp4",),
    }
    return weights.startswith(kinds.get(quantization, (quantization,)))


def _spec(name: str) -> tuple[ModelSpec, str]:
    entry: Mapping[str, Any] | None = _table().get(name)
    if entry is None:
        if match_bundled(name) is None and not Path(name).expanduser().exists():
            raise NotFoundError("no bundled model has this name", value=name)
        return read_model(name), ""
    changes = dict(entry.get("changes", {}))
    if "base" not in entry:
        return read_model(changes), ""
    if not changes:
        return read_model(entry["base"]), str(entry.get("weights", ""))
    match = match_bundled(entry["base"])
    assert match is not None, entry["base"]
    config = read_json_object(match.model.directory / "config.json", what="bundled config")
    return read_model({**config, **changes, "_name_or_path": name}), str(entry.get("weights", ""))


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    models: dict[str, Any] = read_json_object(_TABLE, what="table of measured models")["models"]
    return models


@lru_cache(maxsize=256)
def measured_device(name: str) -> Device:
    """The catalogue's device of a measurement. Raises NotFoundError."""
    try:
        return find_device(name)
    except RooflensError:
        short = _CORES.sub("", name)
        if short == name:
            raise
        return find_device(short)


def measured_kv_dtype(name: str, spec: ModelSpec) -> str:
    """The cache type of a measurement; the model's own where the file does not say."""
    return _KV.get(name.lower(), name.lower()) if name and name.lower() != "auto" else spec.dtype


def resolve_cases(rows: Iterable[Measurement]) -> tuple[list[Case], Counter[str]]:
    """The rows whose model, format, device and layout are known; the others counted by what is not."""
    cases: list[Case] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        try:
            cases.append(_case(row))
        except RooflensError as error:
            shown = f" {error.value}" if error.value is not None else ""
            skipped[f"{error.what}:{shown}"] += 1
    return cases, skipped


def _case(row: Measurement) -> Case:
    device = measured_device(row.device)
    device.bandwidth()  # refused here where unknown
    spec = measured_model(row.model, row.weight_format)
    layout = Layout(row.tp, row.pp, row.ep, row.dp)
    rank_specs(spec, layout)
    return Case(
        row=row,
        kind=kind_of_row(row),
        spec=spec,
        device=device,
        layout=layout,
        kv_dtype=measured_kv_dtype(row.kv_dtype, spec),
        terms=terms_of(row),
    )
