"""One function per question: a checked body in, the document that ``--json`` prints out."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rooflens import __version__, api
from rooflens.analysis.engines import ENGINES
from rooflens.errors import InputError
from rooflens.hardware import Device, devices, filter_devices
from rooflens.models.bundled import bundled_models
from rooflens.models.formats.catalogue import format_names
from rooflens.models.formats.kv import KV_FORMATS
from rooflens.report.words import Language
from rooflens.units import parse_bandwidth, parse_bytes
from rooflens.web.bodies import CompareBody, InspectBody, PlanBody, RooflineBody, SweepBody
from rooflens.web.settings import WebSettings
from rooflens.web.sources import (
    device_of,
    named_device,
    optional_model,
    plan_settings,
    required_model,
)

Document = dict[str, Any]

# Compute types whose peak stands for a device in lists, the first that it has.
_USUAL_DTYPES = ("bf16", "fp16", "any")


def plan_answer(body: PlanBody, settings: WebSettings) -> Document:
    """``rooflens plan --json``."""
    model = required_model(body, settings)
    asked = plan_settings(body)
    if body.network is not None:
        asked["network"] = parse_bandwidth(body.network, field="network")
    if body.prefill_device is not None:
        asked["prefill_device"] = named_device(body.prefill_device, settings)
    return api.plan(model, device_of(body, settings), **asked).to_dict()


def inspect_answer(body: InspectBody, settings: WebSettings) -> Document:
    """``rooflens inspect --json``."""
    model = required_model(body, settings)
    result = api.inspect(model, context=body.context, kv_dtype=body.kv_dtype, weights=body.weights)
    return result.to_dict()


def sweep_answer(body: SweepBody, settings: WebSettings) -> Document:
    """``rooflens sweep --json``; refuses more than ``most_points``."""
    axes = (body.batch, body.context)
    points = 1
    for axis in axes:
        points *= len(axis) if isinstance(axis, list) else 1
    if points > settings.most_points:
        raise InputError(
            f"the sweep has {points} points",
            value=points,
            allowed=f"up to {settings.most_points}",
            next="`rooflens sweep` has no such limit",
        )
    model = required_model(body, settings)
    return api.sweep(model, device_of(body, settings), **plan_settings(body)).to_dict()


def compare_answer(body: CompareBody, settings: WebSettings) -> Document:
    """``rooflens compare --json``; refuses more than ``most_cells`` combinations."""
    cells = len(body.devices) * len(body.weights)
    if cells > settings.most_cells:
        raise InputError(
            f"the comparison has {cells} combinations", value=cells, allowed=f"up to {settings.most_cells}"
        )
    model = required_model(body, settings)
    found = [named_device(name, settings) for name in body.devices]
    asked = plan_settings(body, without=("devices", "weights"))
    return api.compare(model, found, weights=body.weights, **asked).to_dict()


def roofline_answer(body: RooflineBody, settings: WebSettings) -> Document:
    """``rooflens roofline --json``; without a model, settings of a plan are refused."""
    model = optional_model(body, settings)
    common: Document = {"intensities": body.intensities, "dtype": body.dtype}
    if model is not None:
        common |= plan_settings(body, without=common)
    else:
        unused = body.model_fields_set - {"device", "peak", "bandwidth", "memory", *common}
        if unused:
            raise InputError(f"{min(unused)} needs a model", next="name a model or leave it out")
    return api.roofline(device_of(body, settings), model=model, **common).to_dict()


def devices_answer(
    *, vendor: str | None, kind: str | None, dtype: str | None, min_memory: str | None, find: str | None
) -> Document:
    """``rooflens devices --json`` with its filters."""
    least = None if min_memory is None else parse_bytes(min_memory, field="min_memory")
    found = filter_devices(vendor=vendor, kind=kind, dtype=dtype, min_memory_bytes=least, text=find)
    return {"schema": "rooflens.devices/1", "devices": [device.to_dict() for device in found]}


def device_answer(name: str, settings: WebSettings) -> Document:
    """``rooflens devices NAME --json``."""
    return {"schema": "rooflens.device/1", **named_device(name, settings).to_dict()}


def models_answer() -> Document:
    """The bundled models: ids, other names, and models of the same sizes."""
    return {
        "schema": "rooflens.models/1",
        "models": [
            {"id": model.id, "aliases": list(model.aliases), "siblings": list(model.siblings)}
            for model in bundled_models()
        ],
    }


def formats_answer() -> Document:
    """Names that ``weights``, ``kv_dtype`` and ``engine`` take; weight formats have further parameters."""
    return {
        "schema": "rooflens.formats/1",
        "weights": list(format_names()),
        "kv_dtypes": list(KV_FORMATS),
        "engines": list(ENGINES),
    }


def catalogue_answer(settings: WebSettings) -> Document:
    """What the page offers to choose from, in one answer and as little of it as lists show."""
    return {
        "schema": "rooflens.catalogue/1",
        "version": __version__,
        "allow_hub": settings.allow_hub,
        "local": settings.on_loopback,
        "most_cells": settings.most_cells,
        "models": models_answer()["models"],
        "devices": [_brief(device) for device in devices()],
        **{name: value for name, value in formats_answer().items() if name != "schema"},
    }


def _brief(device: Device) -> Document:
    peaks = device.peaks_flops_per_s
    usual = next((dtype for dtype in _USUAL_DTYPES if dtype in peaks), next(iter(peaks), None))
    return {
        "id": device.id,
        "name": device.name,
        "aliases": list(device.aliases),
        "vendor": device.vendor,
        "kind": device.kind,
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "peak_flops_per_s": None if usual is None else peaks[usual],
        "peak_dtype": usual,
    }


def words_answer(lang: Language) -> Document:
    """The phrases that tables and charts have in a language."""
    phrases = import_module(f"rooflens.report.words_{lang}").PHRASES
    return {"schema": "rooflens.words/1", "lang": lang, "phrases": phrases}


def health_answer() -> Mapping[str, Any]:
    """That the server answers, and which version it is."""
    return {"schema": "rooflens.health/1", "status": "ok", "version": __version__}
