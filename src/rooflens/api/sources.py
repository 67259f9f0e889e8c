"""Names in: the model of a name, file or spec, and the device of a name, probe or figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflens.errors import InputError
from rooflens.hardware import Device, device_by_hand, device_with, find_device
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.hardware import LocalDevice

ModelSource = str | Path | Mapping[str, Any] | ModelSpec
DeviceSource = str | Path | Device

LOCAL = "local"


def read_spec_of(model: ModelSource, weights: str | None = None) -> ModelSpec:
    """The ModelSpec of a bundled name, Hub id, directory, file or ready spec, in ``weights`` if asked."""
    if isinstance(model, ModelSpec):
        spec = model
    else:
        from rooflens.models.read import read_model

        spec = read_model(model)
    return spec if weights is None else in_format(spec, weights)


@lru_cache(maxsize=64)
def in_format(spec: ModelSpec, weights: str) -> ModelSpec:
    """The model in another weight format; kept, since applying one takes a while."""
    from rooflens.models.formats.apply import apply_format

    return apply_format(spec, weights)


def resolve_device(
    device: DeviceSource | None,
    *,
    peak: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
) -> Device:
    """The device of a catalogue name, a saved probe, ``local``, or figures given by hand.

    ``peak`` in FLOP/s, ``bandwidth`` in bytes/s, ``memory`` in bytes; beside a named device they
    replace its figures. Raises InputError or NotFoundError.
    """
    if device is None:
        if peak is None or bandwidth is None:
            raise InputError(
                "no device is given",
                allowed="--device NAME, or --peak and --bandwidth (and --memory) by hand",
                next="`rooflens devices` lists the names",
            )
        return device_by_hand(peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth, memory_bytes=memory)
    if not isinstance(device, Device):
        device = _named_device(str(device))
    if peak is None and bandwidth is None and memory is None:
        return device
    return device_with(device, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth, memory_bytes=memory)


def _named_device(name: str) -> Device:
    if name.lower() == LOCAL:
        from rooflens.hardware import local_device
        from rooflens.measure.roofs import probe_device
        from rooflens.measure.storage import latest_probe

        record = latest_probe()
        return local_device(None if record is None else probe_device(record))
    if name.endswith(".json"):
        from rooflens.measure.roofs import probe_device
        from rooflens.measure.storage import load_probe

        return probe_device(load_probe(name))
    return find_device(name)


def detected_devices() -> tuple[LocalDevice, ...]:
    """What this machine has: the CPU always, accelerators where a driver or the system names them."""
    from rooflens.hardware import detect_local

    return tuple(detect_local())
