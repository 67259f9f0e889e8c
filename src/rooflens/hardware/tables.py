"""Reads the data files into devices; nothing here knows a figure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from rooflens.errors import InputError
from rooflens.hardware.device import Device, Evidence, Link, OnChipFact, Peak, Published
from rooflens.units import GIB, GIGA, KIB, MEGA, MIB, TERA

DATA: Final = Path(__file__).parent / "data"

_PEAK_COLUMNS = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "fp16": "fp16_acc32",
    "fp16_acc16": "fp16_acc16",
    "fp8": "fp8_acc32",
    "fp8_acc16": "fp8_acc16",
    "mxfp8": "mxfp8",
    "int8": "int8",
    "fp4": "fp4",
    "int4": "int4",
}
_MEASURED_COLUMNS = {
    "bandwidth_bytes_per_s": ("meas_bw_gbs", GIGA),
    "bf16_sustained_flops_per_s": ("meas_bf16_sust", TERA),
    "bf16_burst_flops_per_s": ("meas_bf16_burst", TERA),
    "fp8_flops_per_s": ("meas_fp8", TERA),
    "fp4_flops_per_s": ("meas_fp4", TERA),
}
_CONFIDENCE_COLUMNS = {"bandwidth": "conf_bw", "flops": "conf_flops", "arch": "conf_arch"}
_SOURCE_COLUMNS = {"memory": "src_mem", "flops": "src_flops", "arch": "src_arch"}
_DERIVED = re.compile(r"\b(derived|computed)\b|channels x MT/s|bit =", re.IGNORECASE)
_SAME = re.compile(r"same( datasheet)?\b")
_LEADING = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


def read_rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of one data file."""
    with open(DATA / name, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def read_devices() -> tuple[Device, ...]:
    """Every device of the two tables: one per memory size, and one per half of a double package."""
    facts = _read_on_chip()
    more = _read_more_peaks()
    reported = {row["id"]: row for row in read_rows("reported_memory.csv")}
    devices: list[Device] = []
    above = ""
    for row in (*read_rows("devices.csv"), *read_rows("devices_more.csv")):
        above = _resolve_same(row, above)
        for variant in _memory_variants(row):
            device = _with_more_peaks(_device(variant, facts), more)
            if device.id in reported:
                device = _with_reported_memory(device, reported[device.id])
            devices.append(device)
            if device.devices_in_package > 1:
                devices.append(_one_of_package(device))
    return tuple(devices)


def _resolve_same(row: dict[str, str], above: str) -> str:
    """Write out ``same``: the memory source of this row, or of the row above; returns this row's."""
    if _SAME.match(row["src_mem"]):
        row["src_mem"] = above
    for column in ("src_flops", "src_arch"):
        if match := _SAME.match(row[column]):
            row[column] = row["src_mem"] + row[column][match.end() :]
    return row["src_mem"]


def _number(text: str, field: str, *, scale: float = 1) -> float | None:
    """The figure a cell opens with (``192 (2/core)`` is 192), scaled; None if blank."""
    if not text.strip():
        return None
    match = _LEADING.match(text.strip())
    if match is None or match[2] is not None:
        raise InputError(f"device table column {field} is not a number", value=text)
    return float(match[1]) * scale


def _whole(text: str, field: str, *, scale: int = 1) -> int | None:
    value = _number(text, field, scale=scale)
    return None if value is None else round(value)


def _memory_variants(row: dict[str, str]) -> list[dict[str, str]]:
    """One row per memory size: ``16|32`` gives ids ``…-16`` and ``…-32``, with their own names."""
    sizes = row["mem_gb"].split("|")
    if len(sizes) == 1:
        return [row]
    variants = []
    for size in sizes:
        others = [f"{other}GB" for other in sizes if other != size]
        aliases = [a for a in row["aliases"].split("|") if not any(other in a for other in others)]
        variants.append(
            row
            | {
                "id": f"{row['id']}-{size}",
                "name": row["name"].replace("/".join(sizes) + "GB", f"{size}GB"),
                "aliases": "|".join(aliases),
                "mem_gb": size,
            }
        )
    return variants


def _device(row: dict[str, str], facts: dict[str, dict[str, OnChipFact]]) -> Device:
    on_chip = {**facts.get(row["isa"], {}), **facts.get(row["id"], {})}
    in_package = on_chip.pop("devices_in_package", None)
    memory, bandwidth = _whole(row["mem_gb"], "mem_gb", scale=GIGA), _number(row["mem_bw_gbs"], "mem_bw_gbs")
    residual = _signed(row["check_resid_pct"])
    return Device(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        kind=row["kind"],
        arch=row["arch"] or None,
        isa=row["isa"] or None,
        year=_whole(row["year"], "year"),
        aliases=tuple(alias for alias in row["aliases"].split("|") if alias),
        memory_bytes=memory,
        memory_type=row["mem_type"] or None,
        memory_evidence=None if memory is None else "spec",
        bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * GIGA,
        bandwidth_evidence=None if bandwidth is None else _evidence(row["src_mem"]),
        peaks=_peaks(row, _evidence(row["src_flops"])),
        sm_count=_whole(row["sm_cu"], "sm_cu"),
        clock_hz=_number(row["clock_mhz_for_peak"], "clock_mhz_for_peak", scale=MEGA),
        clock_note=row["clock_note"] or None,
        l2_bytes=_whole(row["l2_mb"], "l2_mb", scale=MIB),
        llc_bytes=_whole(row["llc_mb"], "llc_mb", scale=MIB),
        smem_bytes_per_sm=_whole(row["smem_kb_per_sm"], "smem_kb_per_sm", scale=KIB),
        on_chip=tuple(on_chip.values()),
        link=_link(row, "link", "link_gbs_dir"),
        host_link=_link(row, "host", "host_gbs_dir"),
        tdp_w=_number(row["tdp_w"], "tdp_w"),
        devices_in_package=1 if in_package is None else round(in_package.value),
        confidence=_pairs(row, _CONFIDENCE_COLUMNS),
        sources=_pairs(row, _SOURCE_COLUMNS),
        verified=row["verified"] or None,
        check_formula=row["check_formula"] or None,
        check_residual=None if residual is None else residual / 100,
        measured=_measured(row),
        measured_source=row["meas_src"] or None,
        notes=row["notes"] or None,
    )


def _evidence(source: str) -> Evidence:
    return "derived" if _DERIVED.search(source) else "spec"


def _signed(text: str) -> float | None:
    return float(text) if text.strip() else None


def _peaks(row: dict[str, str], evidence: Evidence) -> tuple[Peak, ...]:
    found = ((dtype, _number(row[column], column)) for dtype, column in _PEAK_COLUMNS.items())
    return tuple(Peak(dtype, rate * TERA, evidence) for dtype, rate in found if rate is not None)


def _link(row: dict[str, str], name: str, rate: str) -> Link | None:
    if not row[name]:
        return None
    return Link(row[name], _number(row[rate], rate, scale=GIGA))


def _pairs(row: dict[str, str], columns: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, row[column]) for name, column in columns.items() if row[column])


def _measured(row: dict[str, str]) -> tuple[tuple[str, Published], ...]:
    """Published measurements as text, with the figure or range that opens the text."""
    found = []
    for name, (column, scale) in _MEASURED_COLUMNS.items():
        text = row[column]
        if not text:
            continue
        match = _LEADING.match(text)
        low = float(match[1]) * scale if match else None
        high = float(match[2]) * scale if match and match[2] else low
        found.append((name, Published(text, low, high)))
    return tuple(found)


def _read_on_chip() -> dict[str, dict[str, OnChipFact]]:
    """On-chip facts by device id or instruction set, then by name."""
    facts: dict[str, dict[str, OnChipFact]] = {}
    for row in read_rows("onchip.csv"):
        value, _, clock_mhz = row["value"].partition("@")
        fact = OnChipFact(
            name=row["fact"],
            value=float(value),
            clock_hz=float(clock_mhz) * MEGA if clock_mhz else None,
            evidence=cast(Evidence, row["evidence"]),
            source=row["source"],
        )
        for key in row["applies_to"].split("|"):
            facts.setdefault(key, {})[fact.name] = fact
    return facts


def _read_more_peaks() -> dict[str, list[tuple[Peak, str]]]:
    """Peaks that the table of devices leaves blank, with their sources, by device id."""
    found: dict[str, list[tuple[Peak, str]]] = {}
    for row in read_rows("peaks_more.csv"):
        peak = Peak(row["dtype"], float(row["tflops"]) * TERA, cast(Evidence, row["evidence"]))
        found.setdefault(row["id"], []).append((peak, row["source"]))
    return found


def _with_more_peaks(device: Device, more: dict[str, list[tuple[Peak, str]]]) -> Device:
    """The device with the peaks that it has no figure for yet."""
    known = device.peaks_flops_per_s
    added = [(peak, source) for peak, source in more.get(device.id, []) if peak.dtype not in known]
    if not added:
        return device
    order = {dtype: place for place, dtype in enumerate(_PEAK_COLUMNS)}
    peaks = sorted((*device.peaks, *(peak for peak, _ in added)), key=lambda peak: order[peak.dtype])
    sources = (*device.sources, *((f"peak {peak.dtype}", source) for peak, source in added))
    return replace(device, peaks=tuple(peaks), sources=sources)


def _with_reported_memory(device: Device, row: dict[str, str]) -> Device:
    scale = {"GiB": GIB, "MiB": MIB}[row["unit"]]
    size = round(float(row["value"]) * scale)
    return replace(device, reported_memory_bytes=size, reported_memory_source=row["source"])


def _one_of_package(whole: Device) -> Device:
    """One of the equal devices in a package, as software sees it: the package's figures over their number.

    Links are not halves of anything, so they are left unknown.
    """
    count = whole.devices_in_package
    return replace(
        whole,
        id=f"{whole.id}-gcd",
        name=f"{whole.name.split(' (')[0]} (1 of {count} GCDs)",
        aliases=(),
        memory_bytes=None if whole.memory_bytes is None else whole.memory_bytes // count,
        memory_evidence="derived",
        bandwidth_bytes_per_s=None
        if whole.bandwidth_bytes_per_s is None
        else whole.bandwidth_bytes_per_s / count,
        bandwidth_evidence="derived",
        peaks=tuple(Peak(p.dtype, p.flops_per_s / count, "derived") for p in whole.peaks),
        sm_count=None if whole.sm_count is None else whole.sm_count // count,
        l2_bytes=None if whole.l2_bytes is None else whole.l2_bytes // count,
        link=None,
        host_link=None,
        tdp_w=None,
        devices_in_package=1,
        part_of=whole.id,
        check_formula=None,
        check_residual=None,
        measured=(),
        measured_source=None,
    )
