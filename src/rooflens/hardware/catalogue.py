"""The device catalogue: every known device, found by the names that drivers and people use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from rooflens.errors import InputError, NotFoundError
from rooflens.hardware.device import Device, compute_dtype_name
from rooflens.hardware.tables import read_devices, read_rows

_MARKS = re.compile(r"\((?:r|tm)\)|®|™", re.IGNORECASE)
_NOT_NAME = re.compile(r"[^a-z0-9+]")
_BRANDS = (
    "nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel", "apple", "google", "aws", "huawei",
)  # fmt: skip


@cache
def devices() -> tuple[Device, ...]:
    """Every device of the catalogue, in the order of the table; read once."""
    return read_devices()


def find_device(name: str) -> Device:
    """The device of that id, name or alias; case, spaces, dashes and brand words make no difference.

    Accepts what nvidia-smi, torch and people write (``NVIDIA A100-SXM4-80GB``, ``4090``, ``h100-sxm``).
    A short name that fits several devices resolves as ``data/aliases.csv`` says, or not at all.
    Raises InputError for an empty name, NotFoundError with the nearest names for an unknown one.
    """
    if not name.strip():
        raise InputError("device name is empty", allowed="a name that `rooflens devices` lists")
    index = _index()
    for form in _forms(name):
        if form in index:
            return index[form]
    nearest = suggestions(name)
    hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
    raise NotFoundError(
        "device is not in the catalogue",
        value=name,
        next=hint + "`rooflens devices` lists all, --peak --bandwidth --memory describe one by hand",
    )


def suggestions(name: str, *, count: int = 4) -> tuple[str, ...]:
    """Ids of the devices whose names are nearest to an unknown one, best first."""
    from difflib import get_close_matches

    index = _index()
    wanted = list(_forms(name))
    within = sorted((form for form in index if any(want in form for want in wanted if want)), key=len)
    close = [form for want in wanted for form in get_close_matches(want, index, n=4 * count, cutoff=0.6)]
    return tuple(dict.fromkeys(index[form].id for form in [*within, *close]))[:count]


def filter_devices(
    *,
    vendor: str | None = None,
    kind: str | None = None,
    min_memory_bytes: float | None = None,
    dtype: str | None = None,
    text: str | None = None,
) -> tuple[Device, ...]:
    """Devices that meet every given condition, in the order of the table.

    ``dtype`` asks for a known peak of that compute dtype; ``text`` is looked for in id, name and aliases, and
    at the start of the architecture's words. An unknown memory size meets no minimum. Raises InputError for
    a vendor, kind or dtype that no device has.
    """
    vendor = _known(vendor, "vendor", {device.vendor for device in devices() if device.vendor})
    kind = _known(kind, "kind", {device.kind for device in devices()})
    dtype = None if dtype is None else compute_dtype_name(dtype)
    wanted = None if text is None else normalise(text)

    def meets(device: Device) -> bool:
        return (
            (vendor is None or device.vendor == vendor)
            and (kind is None or device.kind == kind)
            and (min_memory_bytes is None or (device.memory_bytes or 0) >= min_memory_bytes)
            and (dtype is None or dtype in device.peaks_flops_per_s)
            and (wanted is None or _mentions(device, wanted))
        )

    return tuple(device for device in devices() if meets(device))


def normalise(name: str) -> str:
    """A name without case, spaces, dashes and trade marks; ``+`` counts (``8480+``)."""
    return _NOT_NAME.sub("", _MARKS.sub("", name).lower())


@cache
def _index() -> dict[str, Device]:
    """Every form of every name. Raises InputError if two devices share one."""
    by_id = {device.id: device for device in devices()}
    index: dict[str, Device] = {}
    for device in devices():
        for name in (device.id, device.name, *device.aliases):
            _enter(index, name, device)
    for row in read_rows("aliases.csv"):
        _enter(index, row["alias"], by_id[row["id"]])
    return index


def _enter(index: dict[str, Device], name: str, device: Device) -> None:
    for form in _forms(name):
        if index.setdefault(form, device) is not device:
            raise InputError(f"'{name}' names both {index[form].id} and {device.id}")


def _forms(name: str) -> Iterator[str]:
    """The normalised name, then the same without leading brand words."""
    form = normalise(name)
    yield form
    short = form
    while brand := next((b for b in _BRANDS if short.startswith(b) and short != b), None):
        short = short.removeprefix(brand)
    if short != form:
        yield short


def _mentions(device: Device, wanted: str) -> bool:
    names = (device.id, device.name, *device.aliases)
    words = [device.arch or "", *(device.arch or "").split(), device.isa or ""]
    return any(wanted in normalise(name) for name in names) or any(
        normalise(word).startswith(wanted) for word in words
    )


def _known(value: str | None, field: str, known: set[str]) -> str | None:
    if value is None:
        return None
    for candidate in known:
        if candidate.lower() == value.strip().lower():
            return candidate
    raise InputError(f"{field} is unknown", value=value, allowed=", ".join(sorted(known)))
