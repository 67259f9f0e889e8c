"""From what a visitor sent to a model and a device: names and figures only, never a path or an address."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from rooflens.api import dense, resolve_device
from rooflens.errors import InputError
from rooflens.hardware import Device, find_device
from rooflens.models.json_input import read_json_object
from rooflens.models.read import read_model, read_named_model
from rooflens.models.spec import ModelSpec
from rooflens.units import parse_bandwidth, parse_bytes, parse_count, parse_flops_per_s
from rooflens.web.bodies import Body, ByHandPart, DevicePart, ModelPart
from rooflens.web.settings import WebSettings

_FREE_FORM = {
    "params": parse_count,
    "active_params": parse_count,
    "kv_bytes_per_token": parse_bytes,
    "weights_bytes": parse_bytes,
}
_BY_HAND = {"peak": parse_flops_per_s, "bandwidth": parse_bandwidth, "memory": parse_bytes}
_MODEL_FIELDS = frozenset({"model", "config_text", *_FREE_FORM})


def optional_model(body: ModelPart, settings: WebSettings) -> ModelSpec | None:
    """The model that the body describes, or None where it describes none.

    Raises InputError for two descriptions at once, NotFoundError for an unknown name, and whatever
    reading a config raises.
    """
    free = {name: getattr(body, name) for name in _FREE_FORM if getattr(body, name) is not None}
    ways = [name for name in ("model", "config_text") if getattr(body, name) is not None]
    if free:
        if "params" not in free:
            raise InputError(f"{next(iter(free))} needs params", next="give params, the number of parameters")
        ways.append("params")
    if len(ways) > 1:
        raise InputError(f"both {ways[0]} and {ways[1]} are given", next="leave one of them out")
    if free:
        sizes: dict[str, Any] = {name: _FREE_FORM[name](value, field=name) for name, value in free.items()}
        return dense(**sizes)
    if body.config_text is not None:
        return _from_text(body.config_text.encode("utf-8", "surrogatepass"))
    if isinstance(body.model, dict):
        return _from_text(_as_text(body.model))
    return None if body.model is None else read_named_model(body.model, hub=settings.allow_hub)


def required_model(body: ModelPart, settings: WebSettings) -> ModelSpec:
    """The same, where a model is needed."""
    model = optional_model(body, settings)
    if model is None:
        raise InputError(
            "no model is given",
            allowed="model (a bundled name or the fields of a config.json), config_text, or params",
        )
    return model


def _as_text(fields: dict[str, Any]) -> bytes:
    try:
        return json.dumps(fields).encode()
    except RecursionError:
        raise InputError("config.json is nested too deeply") from None


@lru_cache(maxsize=64)
def _from_text(text: bytes) -> ModelSpec:
    """Read once per text: a slider sends the same config with every move."""
    return read_model(read_json_object(text, what="config.json"))


def by_hand(body: ByHandPart) -> dict[str, float]:
    """The figures given by hand, in FLOP/s, bytes/s and bytes."""
    return {
        name: parse(getattr(body, name), field=name)
        for name, parse in _BY_HAND.items()
        if getattr(body, name) is not None
    }


def named_device(name: str, settings: WebSettings) -> Device:
    """A device of the catalogue; ``local`` only where just this machine can ask."""
    if name.strip().lower() == "local":
        if not settings.on_loopback:
            raise InputError(
                "device 'local' is answered on the loopback address only",
                value=name,
                next="name a device of the catalogue",
            )
        return _local()
    return find_device(name)


@lru_cache(maxsize=1)
def _local() -> Device:
    return resolve_device("local")


def device_of(body: DevicePart, settings: WebSettings) -> Device:
    """The device that the body describes. Raises as `rooflens.api.resolve_device`."""
    named = None if body.device is None else named_device(body.device, settings)
    return resolve_device(named, **by_hand(body))


def plan_settings(body: Body, *, without: Iterable[str] = ()) -> dict[str, Any]:
    """The given fields that are settings of the plan; ``count`` follows from tp, pp and dp."""
    left_out = {*_MODEL_FIELDS, *_BY_HAND, "device", *without}
    settings = {
        name: value
        for name in type(body).model_fields
        if name not in left_out and (value := getattr(body, name)) is not None
    }
    settings.setdefault("count", settings.get("tp", 1) * settings["pp"] * settings["dp"])
    return settings
