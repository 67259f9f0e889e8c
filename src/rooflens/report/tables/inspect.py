"""What ``rooflens inspect`` prints: parameters by use, layers by kind, the cache by kind of layer."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.models.accounting import ParameterCount, layer_counts
from rooflens.models.inspection import CacheRow, Inspection
from rooflens.report.tables.checkpoint import checkpoint_report
from rooflens.report.tables.layout import QUIET, Bar, Head, heading, legend, notes, section, table
from rooflens.report.words import Words
from rooflens.units import format_bytes, format_count, format_share


def inspect_report(inspection: Inspection, say: Words) -> RenderableType:
    """The whole page of one model."""
    spec = inspection.spec
    parts: list[RenderableType] = [
        _title(inspection, say),
        Text(),
        Text(summary(inspection, say)),
        _parameters(inspection.parameters, say),
    ]
    if spec.layers:
        parts.append(_layers(inspection, say))
    if inspection.cache:
        parts.append(_cache(inspection, say))
    if spec.stored is not None:
        parts.append(checkpoint_report(spec.stored, say))
    parts.append(notes(say, spec.notes))
    claims = {"parameters": "exact", "weights": "exact", "kv_cache": "exact", **spec.evidence}
    if set(claims.values()) != {"exact"}:
        parts.append(_evidence(claims, say))
    parts.append(legend(say, claims.values()))
    return Group(*parts)


def _title(inspection: Inspection, say: Words) -> Text:
    spec = inspection.spec
    made = Text(spec.name, style="bold")
    facts = [spec.model_type, inspection.weights_format]
    if spec.max_context is not None:
        facts.append(say("inspect.max_context", tokens=f"{spec.max_context:,}"))
    made.append("\n" + " · ".join(facts), style=f"not bold {QUIET}")
    return made


def summary(inspection: Inspection, say: Words) -> str:
    """Parameters, bytes, and what a token of context costs, in two sentences."""
    count = inspection.parameters
    key = "inspect.sparse" if count.active != count.total else "inspect.dense"
    parts = [
        say(
            key,
            total=format_count(count.total),
            active=format_count(count.active),
            bytes=format_bytes(inspection.weights_bytes),
            format=inspection.weights_format,
        )
    ]
    if inspection.kv_bytes_per_token:
        parts.append(
            say(
                "inspect.growth",
                bytes=format_bytes(inspection.kv_bytes_per_token, binary=True),
                dtype=inspection.kv_dtype,
            )
        )
    if inspection.state_bytes_per_sequence:
        state = format_bytes(inspection.state_bytes_per_sequence, binary=True)
        parts.append(say("inspect.state", bytes=state))
    held, context = inspection.kv_bytes_per_sequence, inspection.context
    if held is not None and context:
        total = format_bytes(held + inspection.state_bytes_per_sequence, binary=True)
        parts.append(say("inspect.sequence", bytes=total, tokens=f"{context:,}"))
    return say.listed(parts)


def _parameters(count: ParameterCount, say: Words) -> RenderableType:
    in_layers = count.layers - count.experts
    uses = [
        ("embedding_table", count.embedding_table),
        ("layers", in_layers),
        ("experts", count.experts),
        ("head", count.head),
        *((f"component.{kind}", number) for kind, number in count.components.items()),
    ]
    other = count.total - sum(number for _, number in uses)
    uses.append(("other", other))
    rows: list[tuple[RenderableType, ...]] = [
        (
            say.term("use", name),
            f"{number:,}",
            format_share(number / count.total),
            Bar(number / count.total),
        )
        for name, number in uses
        if number
    ]
    rows.append((Text(say("total"), style="bold"), Text(f"{count.total:,}", style="bold"), "", ""))
    if count.active != count.total:
        share = format_share(count.active / count.total)
        rows.append((say("use.active"), f"{count.active:,}", share, Bar(count.active / count.total)))
    if count.mtp:
        rows.append((say("use.mtp"), f"{count.mtp:,}", "", Text(say("use.mtp.remark"), style=QUIET)))
    heads = [
        Head(say("use")),
        Head(say("parameters"), number=True),
        Head(say("memory.share"), number=True),
        Head(),
    ]
    return section(heading(say("parameters.title")), table(heads, rows))


def _layers(inspection: Inspection, say: Words) -> RenderableType:
    counts = {kind: number for kind, number in layer_counts(inspection.spec).items() if number}
    rows = [
        (say.term("kind", kind), f"{number:,}", Text(say.term("kind_meaning", kind), style=QUIET))
        for kind, number in counts.items()
    ]
    head = heading(say("layers.title", count=len(inspection.spec.layers)))
    return section(head, table([Head(), Head(number=True), Head()], rows))


def _cache(inspection: Inspection, say: Words) -> RenderableType:
    rows = [_cache_row(row, say) for row in inspection.cache]
    context = inspection.context
    held = say("cache.held", tokens=f"{context:,}") if context is not None else say("cache.held.none")
    heads = [
        Head(say("cache.kind")),
        Head(say("cache.layers"), number=True),
        Head(say("cache.growth"), number=True),
        Head(say("cache.window"), number=True),
        Head(say("cache.state"), number=True),
        Head(held, number=True),
    ]
    aside = say("cache.aside", dtype=inspection.kv_dtype)
    return section(heading(say("cache.title"), aside), table(heads, rows))


def _cache_row(row: CacheRow, say: Words) -> tuple[str, ...]:
    return (
        say.term("kind", row.kind),
        f"{row.layers:,}",
        format_bytes(row.bytes_per_token, binary=True) if row.bytes_per_token else "-",
        say("cache.window.tokens", tokens=f"{row.window:,}") if row.window else "-",
        format_bytes(row.state_bytes, binary=True) if row.state_bytes else "-",
        "-" if row.bytes is None else format_bytes(row.bytes, binary=True),
    )


def _evidence(claims: dict[str, str], say: Words) -> RenderableType:
    listed = ", ".join(
        f"{say.term('claim', name)}: {say.term('evidence', how)}" for name, how in claims.items()
    )
    return Group(Text(), Text(say("evidence.of", listed=listed), style=QUIET))
