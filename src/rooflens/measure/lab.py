"""Two exercises that a probe's record answers: big matmul against big copy, and the knee of a batch sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.measure.records import Measurement, ProbeRecord
from rooflens.measure.roofs import Roofs, linear_work, roofs
from rooflens.units import format_bandwidth, format_flops_per_s, format_rate, format_share

KNEE_SLOWDOWN = 1.5
"""The knee is where a call takes this many times as long as at m = 1: weights no longer hide the work."""

_DISTURBED = " The machine was disturbed: measure again before believing the knee."
_USUAL = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class Exercise:
    """A small table and the sentence that it teaches; columns name their units."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON: rows as objects."""
        return {
            "name": self.name,
            "title": self.title,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "sentence": self.sentence,
        }


def exercises(record: ProbeRecord) -> list[Exercise]:
    """Those exercises whose measurements were made."""
    return [item for item in (matmul_against_copy(record), batch_knee(record)) if item is not None]


def matmul_against_copy(record: ProbeRecord) -> Exercise | None:
    """A square matrix multiply and a copy of large buffers, each against both measured roofs."""
    found = roofs(record)
    copy = record.find("memory.copy")
    squares = [item for item in record.under("gemm") if _is_square(item)]
    if copy is None or found.read_bytes_per_s is None or not squares:
        return None
    # The dtype that models run in, where it was measured: its operands all have one width.
    usual = [item for item in squares if item.parameters["dtype"] in _USUAL] or squares
    matmul = max(usual, key=lambda item: item.value)
    dtype, m = str(matmul.parameters["dtype"]), int(matmul.parameters["m"])
    # Three square matrices, each moved once: A and B read, C written.
    moved = 3 * m * m * float(matmul.parameters["element_bytes"])
    seconds = matmul.seconds.median
    intensity = matmul.amount / moved
    ridge = found.peaks[dtype] / found.read_bytes_per_s
    bandwidth_share = moved / seconds / found.read_bytes_per_s
    rows = (
        (f"matmul {m}^3 {dtype}", matmul.amount, moved, seconds, intensity, matmul.value, moved / seconds),
        ("copy", 0.0, copy.amount, copy.seconds.median, 0.0, 0.0, copy.value),
    )
    return Exercise(
        name="matmul_against_copy",
        title="A big matmul against a big copy",
        columns=("work", "flops", "bytes", "s", "flops_per_byte", "flops_per_s", "bytes_per_s"),
        rows=rows,
        sentence=(
            f"The matmul does {format_rate(intensity)} FLOP per byte, above the ridge of "
            f"{format_rate(ridge)}, so it runs at {format_share(matmul.value / found.peaks[dtype])} of the "
            f"{dtype} peak while using {format_share(bandwidth_share)} of the bandwidth; the copy does no "
            f"FLOP at all and moves {format_bandwidth(copy.value)}: each is held by the other's spare roof."
        ),
    )


def batch_knee(record: ProbeRecord) -> Exercise | None:
    """One linear over growing batches m: where its time leaves the floor, against the ridge."""
    found = roofs(record)
    points = sorted(record.under("linear"), key=lambda item: int(item.parameters["m"]))
    dtypes = [str(item.parameters["dtype"]) for item in points]
    if not points or found.read_bytes_per_s is None:
        return None
    dtype = max(set(dtypes), key=lambda name: (dtypes.count(name), found.peaks.get(name, 0.0)))
    points = [item for item in points if item.parameters["dtype"] == dtype]
    if len(points) < 3 or dtype not in found.peaks or points[0].parameters["m"] != 1:
        return None
    rows = tuple(_point(item, points[0], found, dtype) for item in points)
    return Exercise(
        name="batch_knee",
        title="The knee of a batch sweep against the ridge",
        columns=("m", "s", "times_m1", "flops_per_s", "bytes_per_s", "bound_s", "share_of_bound"),
        rows=rows,
        sentence=_knee_sentence(points, found, dtype) + (_DISTURBED if record.noise else ""),
    )


def _is_square(item: Measurement) -> bool:
    return item.parameters["m"] == item.parameters["n"] == item.parameters["k"]


def _point(item: Measurement, first: Measurement, found: Roofs, dtype: str) -> tuple[str | float | None, ...]:
    flops, moved = linear_work(item)
    seconds = item.seconds.median
    bound = max(flops / found.peaks[dtype], moved / (found.read_bytes_per_s or 1.0))
    return (
        int(item.parameters["m"]), seconds, seconds / first.seconds.median, flops / seconds,
        moved / seconds, bound, bound / seconds,
    )  # fmt: skip


def _knee_sentence(points: list[Measurement], found: Roofs, dtype: str) -> str:
    """Where the measured knee lies, where the ridge puts it, and what moved it."""
    n, k = int(points[0].parameters["n"]), int(points[0].parameters["k"])
    weight = float(points[0].parameters["weight_bytes_per_element"])
    ridge = found.ridge_flops_per_byte(dtype) or 0.0
    # m n k multiply-adds over n k weights: 2 m / bytes per weight reaches the ridge at this m.
    expected = ridge * weight / 2
    floor = points[0].seconds.median
    knee = next((item for item in points if item.seconds.median > KNEE_SLOWDOWN * floor), None)
    reach = max(linear_work(item)[0] / item.seconds.median for item in points) / found.peaks[dtype]
    start = (
        f"A {n} x {k} {dtype} linear should leave its floor near m = {format_rate(expected)} "
        f"(ridge {format_rate(ridge)} FLOP/B, {weight:g} bytes per weight)"
    )
    if knee is None:
        last = int(points[-1].parameters["m"])
        return f"{start}; up to m = {last} it does not: more rows still come almost for free."
    m = int(knee.parameters["m"])
    if m < expected:
        cause = (
            f"earlier, since skinny matrices reach only {format_share(reach)} of the "
            f"{format_flops_per_s(found.peaks[dtype])} peak by m = {int(points[-1].parameters['m'])}"
            if reach < 1 / KNEE_SLOWDOWN
            else "earlier, since small batches use the matrix units poorly"
        )
    elif m > 2 * KNEE_SLOWDOWN * expected:
        cause = "later, since at m = 1 the call is slower than the memory alone would make it"
    else:
        cause = "as the roofline says"
    return f"{start}; measured, it takes {KNEE_SLOWDOWN:g} times as long from m = {m} on: {cause}."
