"""The roofs that follow from a probe's measurements, and the device that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rooflens.analysis.costs import linear_cost
from rooflens.errors import InputError
from rooflens.hardware import Device, MemoryLevel, device_from_measurement, find_device
from rooflens.measure.records import Measurement, ProbeRecord

SKINNY_ROWS = 8
"""Rows up to which a matrix multiply is counted as reading its weights."""


@dataclass(frozen=True, slots=True)
class CacheRoof:
    """One cache level: total size and read bandwidth over the threads that were measured."""

    name: str
    bytes: int | None
    bytes_per_s: float


@dataclass(frozen=True)
class Roofs:
    """What a device reached; bytes/s, FLOP/s by dtype, seconds. None or absent where not measured.

    ``peaks`` are the best rates of any shape and moment, so that nothing measured beats the bound made
    from them; ``sustained`` are those kept up for seconds.
    """

    read_bytes_per_s: float | None
    read_method: str | None
    copy_bytes_per_s: float | None
    peaks: dict[str, float]
    burst: dict[str, float]
    sustained: dict[str, float]
    caches: tuple[CacheRoof, ...]
    dispatch_s: dict[str, float]
    link_bytes_per_s: dict[str, float]

    @property
    def describe_a_device(self) -> bool:
        """Whether bandwidth and at least one peak are there."""
        return self.read_bytes_per_s is not None and bool(self.peaks)

    def ridge_flops_per_byte(self, dtype: str) -> float | None:
        """Measured peak over measured read bandwidth; None unless both were measured."""
        if self.read_bytes_per_s is None or dtype not in self.peaks:
            return None
        return self.peaks[dtype] / self.read_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "read_bytes_per_s": self.read_bytes_per_s,
            "read_method": self.read_method,
            "copy_bytes_per_s": self.copy_bytes_per_s,
            "peaks_flops_per_s": self.peaks,
            "burst_flops_per_s": self.burst,
            "sustained_flops_per_s": self.sustained,
            "ridge_flops_per_byte": {dtype: self.ridge_flops_per_byte(dtype) for dtype in self.peaks},
            "caches": [
                {"name": cache.name, "bytes": cache.bytes, "bytes_per_s": cache.bytes_per_s}
                for cache in self.caches
            ],
            "dispatch_s": self.dispatch_s,
            "link_bytes_per_s": self.link_bytes_per_s,
        }


def roofs(record: ProbeRecord) -> Roofs:
    """The roofs of a record.

    The read roof is the fastest way found to read memory: a reduction, or the weights of a skinny matrix
    multiply, whose rotated copies lie far beyond the caches too.
    """
    readers = [item for item in record.under("linear") if int(item.parameters["m"]) <= SKINNY_ROWS]
    if (read := record.find("memory.read")) is not None:
        readers.append(read)
    best = max(readers, key=lambda item: item.value, default=None)
    copy = record.find("memory.copy")
    rates = [*record.under("gemm"), *record.under("burst"), *record.under("sustained")]
    return Roofs(
        read_bytes_per_s=None if best is None else best.value,
        read_method=None if best is None else best.method,
        copy_bytes_per_s=None if copy is None else copy.value,
        peaks=_peaks(rates, record.under("linear")),
        burst=_best_by_dtype(record.under("burst")),
        sustained=_best_by_dtype(record.under("sustained")),
        caches=_caches(record),
        dispatch_s=_dispatch(record),
        link_bytes_per_s={_last(item.name): item.value for item in record.under("link")},
    )


def probe_device(record: ProbeRecord) -> Device:
    """The device as measured, with the vendor's figures beside it in ``.spec``, never under it.

    Raises InputError for an interrupted record that lacks the bandwidth or every peak.
    """
    found = roofs(record)
    if found.read_bytes_per_s is None or not found.peaks:
        missing = "bandwidth" if found.read_bytes_per_s is None else "matrix-multiply rate"
        raise InputError(
            f"probe record has no {missing}: it was interrupted or cut short",
            value=record.created,
            next="measure again with `rooflens probe`",
        )
    levels = [
        MemoryLevel(
            cache.name,
            bytes=cache.bytes,
            bandwidth_bytes_per_s=cache.bytes_per_s,
            size_evidence=None if cache.bytes is None else "spec",
            bandwidth_evidence="measured",
        )
        for cache in found.caches
    ]
    return device_from_measurement(
        spec_device(record),
        bandwidth_bytes_per_s=found.read_bytes_per_s,
        peaks=found.peaks,
        memory_bytes=record.device.memory_bytes,
        levels=levels,
        name=_device_name(record),
        source=f"rooflens probe ({record.mode}) of {record.created}",
    )


def spec_device(record: ProbeRecord) -> Device | None:
    """The catalogue's entry of the device measured, if it has one."""
    return None if record.device.spec is None else find_device(record.device.spec)


def _device_name(record: ProbeRecord) -> str:
    device = record.device
    if device.kind != "cpu" or device.threads is None:
        return device.name
    return f"{device.name} ({device.threads} threads)"


def _best_by_dtype(measurements: Iterable[Measurement]) -> dict[str, float]:
    best: dict[str, float] = {}
    for item in measurements:
        dtype = str(item.parameters["dtype"])
        best[dtype] = max(best.get(dtype, 0.0), item.value)
    return best


def _peaks(rates: Iterable[Measurement], linears: Iterable[Measurement]) -> dict[str, float]:
    """The best rate of each dtype that was measured as a rate; wide batches of a sweep count too."""
    best = _best_by_dtype(rates)
    for item in linears:
        dtype = str(item.parameters["dtype"])
        if dtype in best:
            best[dtype] = max(best[dtype], linear_rate(item))
    return best


def linear_rate(item: Measurement) -> float:
    """FLOP/s of a multiply, whether it was measured as a rate or as a bandwidth."""
    return item.value if item.unit == "flops_per_s" else linear_work(item)[0] / item.seconds.median


def linear_work(item: Measurement) -> tuple[float, float]:
    """(FLOPs, bytes) of one call of a batch sweep: weights, inputs and outputs each moved once."""
    m, n, k = (int(item.parameters[name]) for name in ("m", "n", "k"))
    cost = linear_cost(
        in_features=k,
        out_features=n,
        tokens=m,
        weight_bytes=n * k * float(item.parameters["weight_bytes_per_element"]),
        element_bytes=float(item.parameters["activation_bytes_per_element"]),
    )
    return float(cost.flops), float(cost.operator_bytes)


def _caches(record: ProbeRecord) -> tuple[CacheRoof, ...]:
    """The best point of the working-set sweep that lies well inside each level, in order of size."""
    best: dict[str, float] = {}
    for item in record.under("cache"):
        level = str(item.parameters.get("level", ""))
        if level:
            best[level] = max(best.get(level, 0.0), item.value)
    sizes = record.device.caches
    return tuple(CacheRoof(name, sizes.get(name), value) for name, value in best.items())


def _dispatch(record: ProbeRecord) -> dict[str, float]:
    """Seconds by kind of call; the cost of a parallel region is what its threads add to equal work."""
    found = {_last(item.name): item.value for item in record.under("dispatch")}
    one, many = found.pop("region_one_thread", None), found.pop("region_all_threads", None)
    if one is not None and many is not None:
        found["parallel_region"] = max(0.0, many - one)
    return found


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def compare(before: ProbeRecord, after: ProbeRecord) -> list[tuple[str, float, float]]:
    """(name, value before, value after) of every measurement that both made the same way.

    Raises InputError unless both are of one device with equal memory and threads: figures of different
    devices beside one another would explain nothing.
    """
    for what in ("kind", "name", "threads", "memory_bytes"):
        was, now = getattr(before.device, what), getattr(after.device, what)
        if was != now:
            raise InputError(
                f"the two probes are not comparable: their {what.replace('_', ' ')} differs",
                value=f"{was} and {now}",
                allowed="two records of one device, measured with the same threads",
            )
    rows = []
    for item in after.measurements:
        other = before.find(item.name)
        if other is not None and other.parameters == item.parameters and other.unit == item.unit:
            rows.append((item.name, other.value, item.value))
    return rows
