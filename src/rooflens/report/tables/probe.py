"""What ``rooflens probe`` prints: measured roofs beside the data sheet's, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.measure.checks import Against, against_spec
from rooflens.measure.lab import Exercise, exercises
from rooflens.measure.records import Measurement, ProbeRecord
from rooflens.measure.roofs import Roofs, compare, linear_rate, roofs, spec_device
from rooflens.report.tables.layout import BAD, GOOD, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_probe import probe_words
from rooflens.units import (
    format_bandwidth,
    format_bytes,
    format_flops,
    format_flops_per_s,
    format_rate,
    format_seconds,
    format_share,
)

_SHOW = {"s": format_seconds, "bytes_per_s": format_bandwidth, "flops_per_s": format_flops_per_s}
_COLUMNS = {
    "s": format_seconds,
    "bound_s": format_seconds,
    "flops": format_flops,
    "bytes": format_bytes,
    "flops_per_s": format_flops_per_s,
    "bytes_per_s": format_bandwidth,
    "share_of_bound": format_share,
}
"""How the columns of an exercise are shown; others are plain numbers."""
_LISTED_SKIPS = 6


def probe_report(
    record: ProbeRecord, say: Words, *, lab: bool = False, before: ProbeRecord | None = None
) -> RenderableType:
    """The whole answer; with ``lab`` the two exercises, with ``before`` the change since another record."""
    say = probe_words(say)
    found = roofs(record)
    sheet = {row.figure: row for row in against_spec(found, spec_device(record))}
    parts: list[RenderableType] = [_title(record, say)]
    parts += _memory(record, sheet, say)
    parts += _rates(record, found, sheet, say)
    parts += _shapes(record, say)
    parts += _caches(found, say)
    parts += _skinny(record, found, say)
    parts += _attention(record, say)
    parts += _calls(found, say)
    if before is not None:
        parts.append(_change(before, record, say))
    if lab:
        parts += [_exercise(item, say) for item in exercises(record)]
    parts.append(_remarks(record, sheet.values(), say))
    return Group(*parts)


def _title(record: ProbeRecord, say: Words) -> RenderableType:
    device = record.device
    aside = [device.target if device.threads is None else say("threads", count=device.threads)]
    if device.memory_bytes is not None:
        aside.append(format_bytes(device.memory_bytes, binary=True))
    when = record.created.partition(".")[0].replace("T", " ")
    aside.append(say("took", mode=say.term("mode", record.mode), s=f"{record.duration_s:.0f}", when=when))
    title = heading(device.name, " · ".join(aside))
    return title if record.finished else Group(title, Text(say("interrupted"), style=BAD))


def _value(item: Measurement) -> str:
    return _SHOW[item.unit](item.value)


def _range(item: Measurement) -> str:
    low, high = (_SHOW[item.unit](value) for value in (item.low, item.high))
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} – {high}"


def _sheet(row: Against | None) -> tuple[str, str]:
    """The data sheet's figure and the share of it."""
    if row is None:
        return "", ""
    show = format_bandwidth if row.figure == "read bandwidth" else format_flops_per_s
    return show(row.spec), format_share(row.ratio)


def _heads(say: Words, *names: str) -> list[Head]:
    """Columns by phrase; a star marks numbers, a minus quiet ones."""
    return [
        Head(say(name.strip("*-")), number=name.startswith("*"), style=QUIET if name.startswith("-") else "")
        for name in names
    ]


def _memory(record: ProbeRecord, sheet: dict[str, Against], say: Words) -> Iterator[RenderableType]:
    rows = []
    for item in (*record.under("memory"), *record.under("link")):
        name = item.name.rpartition(".")[2]
        spec, share = _sheet(sheet.get("read bandwidth") if name == "read" else None)
        rows.append((say(f"figure.{name}"), _value(item), _range(item), spec, share, item.method))
    yield from _section(say, "memory", ("figure", "*measured", "*range", "*spec", "*share", "-how"), rows)


def _rates(
    record: ProbeRecord, found: Roofs, sheet: dict[str, Against], say: Words
) -> Iterator[RenderableType]:
    rows = []
    for dtype, peak in found.peaks.items():
        multiplies = [item for item in record.under(f"gemm.{dtype}") if item.value == peak]
        # The best may also be a wide row of the batch sweep, whose own unit is bytes.
        sweep = [item for item in record.under(f"linear.{dtype}") if item.unit == "bytes_per_s"]
        best = max([*multiplies, *sweep], key=linear_rate)
        spec, share = _sheet(sheet.get(f"{dtype} rate"))
        ridge = found.ridge_flops_per_byte(dtype)
        rows.append(
            (dtype, format_flops_per_s(peak), _range(best) if multiplies else "", spec, share,
             "" if ridge is None else format_rate(ridge), _shape(best))
        )  # fmt: skip
    for kind in ("burst", "sustained"):
        for item in record.under(kind):
            name = say(f"figure.{kind}", dtype=item.parameters["dtype"])
            rows.append((name, _value(item), _range(item), "", "", "", _shape(item)))
    columns = ("dtype", "*measured", "*range", "*spec", "*share", "*ridge", "-shape")
    yield from _section(say, "rates", columns, rows, aside=say("rates.aside"))


def _shapes(record: ProbeRecord, say: Words) -> Iterator[RenderableType]:
    """Every other multiply, in the order they were measured."""
    others = [item for item in record.under("gemm") if not _is_cube(item)]
    rows = [
        (str(item.parameters["dtype"]), _shape(item), _value(item), _range(item), item.method)
        for item in others
    ]
    yield from _section(say, "shapes", ("dtype", "shape", "*measured", "*range", "-how"), rows)


def _is_cube(item: Measurement) -> bool:
    return item.parameters["m"] == item.parameters["n"] == item.parameters["k"]


def _shape(item: Measurement) -> str:
    if _is_cube(item):
        return f"{item.parameters['m']}^3"
    return "x".join(str(item.parameters[name]) for name in "mnk")


def _caches(found: Roofs, say: Words) -> Iterator[RenderableType]:
    rows = [
        (cache.name, "" if cache.bytes is None else format_bytes(cache.bytes, binary=True),
         format_bandwidth(cache.bytes_per_s))
        for cache in found.caches
    ]  # fmt: skip
    yield from _section(say, "caches", ("figure", "*size", "*measured"), rows, aside=say("caches.aside"))


def _skinny(record: ProbeRecord, found: Roofs, say: Words) -> Iterator[RenderableType]:
    points = record.under("linear")
    rows = []
    for item in points:
        share = "" if found.read_bytes_per_s is None else format_share(item.value / found.read_bytes_per_s)
        label = f"{item.parameters['dtype']}, m = {item.parameters['m']}"
        rows.append((label, _value(item), _range(item), share))
    aside = say("skinny.aside", n=points[0].parameters["n"], k=points[0].parameters["k"]) if points else ""
    yield from _section(say, "skinny", ("figure", "*measured", "*range", "*of_read"), rows, aside=aside)


def _attention(record: ProbeRecord, say: Words) -> Iterator[RenderableType]:
    rows = []
    for item in record.under("attention"):
        phase = item.name.split(".")[1]
        name = say(f"figure.{phase}", tokens=f"{item.parameters['tokens']:,}")
        rows.append((name, _value(item), _range(item), item.method))
    yield from _section(say, "attention", ("figure", "*measured", "*range", "-how"), rows)


def _calls(found: Roofs, say: Words) -> Iterator[RenderableType]:
    rows = [(say.term("call", name), format_seconds(value)) for name, value in found.dispatch_s.items()]
    yield from _section(say, "calls", ("figure", "*measured"), rows)


def _section(
    say: Words, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, aside: str = ""
) -> Iterator[RenderableType]:
    """A titled table without its empty columns; nothing where there are no rows."""
    if not rows:
        return
    kept = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    heads = _heads(say, *(columns[index] for index in kept))
    yield section(heading(say(title), aside), table(heads, [[row[index] for index in kept] for row in rows]))


def _change(before: ProbeRecord, after: ProbeRecord, say: Words) -> RenderableType:
    rows = []
    for name, was, now in compare(before, after):
        item = after.find(name)
        show = _SHOW["s" if item is None else item.unit]
        rows.append((name, show(was), show(now), f"{now / was - 1:+.1%}".replace("%", " %")))
    title = heading(say("change.title", when=before.created.partition(".")[0].replace("T", " ")))
    if not rows:
        return section(title, Text(say("change.none")))
    return section(title, table(_heads(say, "figure", "*before", "*now", "*change"), rows))


def _exercise(item: Exercise, say: Words) -> RenderableType:
    heads = [Head(say.term("column", name), number=index > 0) for index, name in enumerate(item.columns)]
    rows = [[_cell(name, value) for name, value in zip(item.columns, row, strict=True)] for row in item.rows]
    return section(heading(item.title), table(heads, rows), Text(), Text(item.sentence))


def _cell(name: str, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if name in _COLUMNS:
        return _COLUMNS[name](value)
    return f"{value:,}" if isinstance(value, int) else format_rate(value)


def _remarks(record: ProbeRecord, sheet: Iterable[Against], say: Words) -> RenderableType:
    """Noise, flags and what is missing: the number and what to do about it."""
    noise = record.noise
    lines = [Text(say("trust.bad"), style=BAD) if noise else Text(say("trust.good"), style=GOOD)]
    flagged = [row.sentence() for row in sheet if row.cause is not None]
    lines += [Text(f"- {text}") for text in (*noise, *flagged)]
    if spec_device(record) is None:
        lines.append(Text(f"- {say('spec.none')}"))
    if record.skipped:
        names = list(dict.fromkeys(item.name for item in record.skipped))
        more = f" + {len(names) - _LISTED_SKIPS}" if len(names) > _LISTED_SKIPS else ""
        lines.append(Text(f"- {say('skipped', listed=', '.join(names[:_LISTED_SKIPS]) + more)}", style=QUIET))
    return section(heading(say("remarks")), *lines)
