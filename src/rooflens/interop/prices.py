"""Prices of devices: the user's own, then gpuhunt's catalogues (extra ``prices``), then a dated snapshot.

A price that is not the user's own is a listing of some provider on some day; each is kept with both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rooflens.analysis.prices import SOURCES, Price
from rooflens.errors import InputError
from rooflens.hardware.device import Device
from rooflens.hardware.tables import read_rows

_CATALOGUES = "GPUHUNT_CATALOG_DIR"
_TIMEOUT_S = 20.0

# gpuhunt's name and memory in GB of a device where the catalogue's id does not say them.
GPUHUNT_NAMES: dict[str, tuple[str, float]] = {
    "a10": ("A10", 24), "a10g": ("A10G", 24), "a40": ("A40", 48), "a100-pcie-40": ("A100", 40),
    "a100-sxm-40": ("A100", 40), "a100-pcie-80": ("A100", 80), "a100-sxm-80": ("A100", 80),
    "rtx-a6000": ("A6000", 48), "l4": ("L4", 24), "l40": ("L40", 48), "l40s": ("L40S", 48),
    "h100-sxm": ("H100", 80), "h100-pcie": ("H100", 80), "h100-nvl": ("H100NVL", 94),
    "h200-sxm": ("H200", 141), "h200-nvl": ("H200NVL", 141), "gh200-96": ("GH200", 96),
    "b200-sxm": ("B200", 180), "b300-sxm": ("B300", 270), "gb200": ("GB200", 186), "gb300": ("GB300", 270),
    "t4": ("T4", 16), "p100-pcie16": ("P100", 16), "v100-sxm2-16": ("V100", 16), "v100-sxm2-32": ("V100", 32),
    "v100-pcie-16": ("V100", 16), "v100-pcie-32": ("V100", 32), "rtx-3060-12": ("RTX3060", 12),
    "rtx-3070": ("RTX3070", 8), "rtx-3080-10": ("RTX3080", 10), "rtx-3080ti": ("RTX3080Ti", 12),
    "rtx-3090": ("RTX3090", 24), "rtx-3090ti": ("RTX3090Ti", 24), "rtx-a4000": ("A4000", 16),
    "rtx-a4500": ("A4500", 20), "rtx-a5000": ("A5000", 24), "rtx-4000-ada": ("RTX4000Ada", 20),
    "rtx-4070": ("RTX4070", 12), "rtx-4070-s": ("RTX4070SUPER", 12), "rtx-4070ti": ("RTX4070Ti", 12),
    "rtx-4080-s": ("RTX4080SUPER", 16), "rtx-5070": ("RTX5070", 12), "rtx-2080ti": ("RTX2080Ti", 11),
    "rtx-4060ti-16": ("RTX4060Ti", 16),
    "rtx-4070ti-s": ("RTX4070TiSUPER", 16), "rtx-4080": ("RTX4080", 16),
    "rtx-4090": ("RTX4090", 24), "rtx-5060ti-16": ("RTX5060Ti", 16),
    "rtx-5070ti": ("RTX5070Ti", 16), "rtx-5080": ("RTX5080", 16), "rtx-5090": ("RTX5090", 32),
    "rtx-6000-ada": ("RTX6000Ada", 48), "rtx-pro-6000-se": ("RTXPRO6000", 96),
    "rtx-pro-6000-ws": ("RTXPRO6000", 96), "mi210": ("MI210", 64), "mi250x": ("MI250X", 128),
    "mi300x": ("MI300X", 192), "mi325x": ("MI325X", 288), "mi350x": ("MI350X", 288),
    "mi355x": ("MI355X", 288), "gaudi2": ("Gaudi2", 96), "gaudi3": ("Gaudi3", 128),
}  # fmt: skip
# Boards that gpuhunt gives one name, told apart by the instance's: what it must have in it, or must not.
_BOARD_WORDS = {"-sxm": ("sxm", "nvlink"), "-pcie": ("pcie", "pci-e")}


def prices_of(
    devices: Sequence[Device], *, own: Mapping[str, float] | None = None, source: str = "auto"
) -> tuple[dict[str, Price], list[str]]:
    """A price for each device that has one, by id, and notes on what was not to be had.

    ``own`` are the user's, per hour; they win. ``source``: ``gpuhunt`` (the extra; raises InputError where
    it is not installed or has nothing to read), ``snapshot``, ``none``, or ``auto``: the first of them that
    knows a device.
    """
    if source not in SOURCES:
        raise InputError("price source is unknown", value=source, allowed=", ".join(SOURCES))
    found = {name: Price(per_hour, "given by the user") for name, per_hour in (own or {}).items()}
    notes: list[str] = []
    missing = [device for device in devices if device.id not in found]
    if missing and source in ("auto", "gpuhunt"):
        try:
            found |= gpuhunt_prices(missing)
        except InputError as error:
            if source == "gpuhunt":
                raise
            if find_spec("gpuhunt") is not None:
                notes.append(f"{error.what}: prices are from the snapshot")
    if source in ("auto", "snapshot"):
        known = snapshot_prices()
        for device in missing:
            if device.id not in found and device.id in known:
                found[device.id] = known[device.id]
    return found, notes


@lru_cache(maxsize=1)
def snapshot_prices() -> dict[str, Price]:
    """The cheapest listing of each device in the snapshot that comes with the product."""
    best: dict[str, Price] = {}
    for row in read_rows("prices.csv"):
        provider = f"{row['provider']}, {row['tier']}"
        price = Price(float(row["per_hour"]), row["source"], row["date"], provider, row["currency"])
        if row["id"] not in best or price.per_hour < best[row["id"]].per_hour:
            best[row["id"]] = price
    return best


def gpuhunt_prices(devices: Iterable[Device]) -> dict[str, Price]:
    """The cheapest on-demand offer of each device in gpuhunt's catalogues, per device and hour.

    The catalogues are the CSV files in the folder that GPUHUNT_CATALOG_DIR names, or what gpuhunt downloads.
    Raises InputError where gpuhunt is not installed or there is nothing to read.
    """
    try:
        import gpuhunt
    except ImportError as error:
        raise InputError(
            "gpuhunt is not installed", next="install it with `pip install 'rooflens[prices]'`"
        ) from error
    offers, date, origin = _offers(gpuhunt, os.environ.get(_CATALOGUES))
    best: dict[str, Price] = {}
    for device in devices:
        fitting = [offer for offer in offers if _is(device, offer)]
        if fitting:
            offer = min(fitting, key=lambda one: one.price / one.gpu_count)
            best[device.id] = Price(
                per_hour=offer.price / offer.gpu_count,
                source=origin,
                date=date,
                provider=f"{offer.provider} {offer.instance_name} {offer.location}".strip(),
            )
    return best


def _is(device: Device, offer: Any) -> bool:
    """Whether an offer is of this device, as far as its name, memory and board tell."""
    named = GPUHUNT_NAMES.get(device.id)
    if named is None or offer.gpu_name != named[0] or abs((offer.gpu_memory or 0) - named[1]) > 4:
        return False
    said = f"{offer.instance_name} {offer.provider_data}".lower()
    own = next((words for board, words in _BOARD_WORDS.items() if board in device.id), None)
    others = [word for words in _BOARD_WORDS.values() if words is not own for word in words]
    return own is None or any(word in said for word in own) or not any(word in said for word in others)


@lru_cache(maxsize=4)
def _offers(gpuhunt: Any, folder: str | None) -> tuple[list[Any], str, str]:
    """(on-demand offers with a GPU, their date, where they are from)."""
    wanted = {"spot": False, "min_gpu_count": 1}
    if folder is not None:
        files = sorted(Path(folder).glob("*.csv")) if Path(folder).is_dir() else []
        if not files:
            raise InputError(f"{_CATALOGUES} has no catalogue files", value=folder, allowed="<provider>.csv")
        catalog = gpuhunt.Catalog(auto_reload=False)
        try:
            offers = catalog.query(provider=[file.stem for file in files], **wanted)
        except (ValueError, OSError) as error:
            raise InputError("gpuhunt cannot read its catalogues", value=folder, next=str(error)) from error
        newest = max(file.stat().st_mtime for file in files)
        day = datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d")
        return offers, day, f"gpuhunt {_version()}, catalogues in {folder}"
    catalog = gpuhunt.Catalog(auto_reload=False)
    worker = ThreadPoolExecutor(1)
    log = logging.getLogger("gpuhunt")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it prints a traceback for every provider that it cannot reach
    try:
        worker.submit(catalog.load).result(timeout=_TIMEOUT_S)
        offers = catalog.query(**wanted)
    except (gpuhunt.GPUHuntError, OSError, FutureTimeout) as error:
        raise InputError(
            "gpuhunt cannot download its catalogues",
            next=f"connect, or name a folder of catalogue files in {_CATALOGUES}",
        ) from error
    finally:
        worker.shutdown(wait=False, cancel_futures=True)
        log.setLevel(level)
    return offers, datetime.now(UTC).strftime("%Y-%m-%d"), f"gpuhunt {_version()}"


def _version() -> str:
    from importlib.metadata import version

    return version("gpuhunt")
