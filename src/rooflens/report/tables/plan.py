"""What ``rooflens plan`` prints: the answer in two sentences, then memory, speed and where a step goes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.ledger import Ledger, LedgerRow
from rooflens.analysis.measured import BANDWIDTH, measured_rates
from rooflens.analysis.plan import PhaseResult, Plan
from rooflens.analysis.roofline import COMMUNICATION, COMPUTE, MEMORY
from rooflens.report.tables.advice import advice_section
from rooflens.report.tables.layout import (
    BAD,
    GOOD,
    KEY,
    QUIET,
    Bar,
    Head,
    heading,
    legend,
    notes,
    section,
    table,
    tag,
)
from rooflens.report.words import Words
from rooflens.units import (
    format_bandwidth,
    format_bytes,
    format_flops,
    format_flops_per_s,
    format_rate,
    format_seconds,
    format_share,
)


def plan_report(plan: Plan, say: Words, *, over: Sequence[tuple[str, float]] = ()) -> RenderableType:
    """The whole answer. ``over`` lists the limits that it misses: (ttft or tpot, seconds)."""
    parts: list[RenderableType] = [
        title(plan, say),
        Text(),
        verdict(plan, say),
        Text(speed_sentence(plan, say)),
        *(Text(over_sentence(plan, say, name, limit_s), style=BAD) for name, limit_s in over),
        memory_section(plan, say),
        speed_section(plan, say),
        split_section(plan, say),
        section(heading(say("ridge_batch")), Text(ridge_sentence(plan, say))),
    ]
    if plan.workload.layout.devices > 1:
        from rooflens.report.tables.pools import totals_section

        parts.append(totals_section(plan.totals, say))
    if plan.what_if is not None:
        from rooflens.report.tables.what_if import what_if_section

        parts.append(what_if_section(plan.what_if, say))
    if plan.pools is not None:
        from rooflens.report.tables.pools import pools_section

        parts.append(pools_section(plan.pools, say))
    if plan.serving is not None:
        from rooflens.report.tables.serving import serving_section

        parts.append(serving_section(plan.serving, say))
    if plan.advice:
        parts.append(advice_section(plan.advice, say))
    parts.append(notes(say, plan.notes))
    parts.append(legend(say, _evidence_used(plan)))
    return Group(*parts)


def device_name(plan: Plan, say: Words) -> str:
    """The device, with its count where there are several."""
    count = plan.workload.layout.devices
    name = say("device.by_hand") if plan.device.name == "by hand" else plan.device.name
    return name if count == 1 else f"{count} × {name}"


def title(plan: Plan, say: Words) -> Text:
    """Model and device, and the workload under them."""
    made = Text(plan.spec.name + say("plan.title.on", device=device_name(plan, say)), style="bold")
    return made.append("\n" + " · ".join(workload_facts(plan, say)), style=f"not bold {QUIET}")


def workload_facts(plan: Plan, say: Words) -> list[str]:
    """Formats, load, layout and engine, as far as they are not the plain ones."""
    work = plan.workload
    facts = [plan.inspection.weights_format]
    if work.kv_dtype != plan.inspection.weights_format:
        facts.append(say("plan.title.kv", dtype=work.kv_dtype))
    facts.append(
        say("plan.title.load", batch=f"{work.batch:,}", prompt=f"{work.prompt:,}", output=f"{work.output:,}")
    )
    layout = [f"{name} {ways}" for name, ways in vars(work.layout).items() if ways > 1]
    if layout:
        facts.append(", ".join(layout))
    if work.engine != "none":
        facts.append(work.engine)
    return facts


def verdict(plan: Plan, say: Words) -> Text:
    """Whether it fits, by how much, and what would make it fit."""
    made = fit(plan, say)
    if plan.fits is False:
        made.append(say("sentence_gap") + remedy(plan, say), style="default not bold")
    return made


def fit(plan: Plan, say: Words) -> Text:
    """Whether it fits, and by how much."""
    ledger = plan.ledger
    if ledger.capacity_bytes is None:
        return Text(say("plan.fits.unknown", total=format_bytes(ledger.total_bytes)))
    amounts = {
        "total": format_bytes(ledger.total_bytes),
        "capacity": format_bytes(ledger.capacity_bytes),
        "free": format_bytes(ledger.capacity_bytes - ledger.total_bytes),
        "deficit": format_bytes(ledger.deficit_bytes),
    }
    if plan.fits:
        return Text(say("plan.fits.yes", **amounts), style=GOOD)
    said = say("plan.fits.no", **amounts) if ledger.deficit_bytes else say("plan.fits.refused")
    made = Text(said, style=BAD)
    for reason in ledger.reasons:
        made.append(say("sentence_gap") + reason.rstrip(".") + say("full_stop"), style="not bold")
    return made


def remedy(plan: Plan, say: Words) -> str:
    """What would make it fit: each of these is enough."""
    if not plan.remedies:
        return say("plan.remedy.none")
    changes = [" + ".join(_setting(*setting, say) for setting in change.settings) for change in plan.remedies]
    return say("plan.remedy", changes=say("list_gap").join(changes))


def _setting(name: str, value: str | int, say: Words) -> str:
    return say(f"plan.remedy.{name}", value=f"{value:,}" if isinstance(value, int) else value)


def speed_sentence(plan: Plan, say: Words) -> str:
    """The limits of both phases in one sentence each."""
    decode, prefill, batch = plan.decode, plan.prefill, plan.workload.batch
    fields = {
        "limit": say(f"limited.{decode.limited_by}"),
        "rate": format_rate(1 / decode.bound_s),
        "total": format_rate(decode.tokens_per_s),
        "batch": f"{batch:,}",
        "low": format_rate(1 / float(decode.estimate.high)),
        "high": format_rate(1 / float(decode.estimate.low)),
    }
    first = say("plan.decode.one" if batch == 1 else "plan.decode.many", **fields)
    second = say(
        "plan.prefill.one" if batch == 1 else "plan.prefill.many",
        limit=say(f"limited.{prefill.limited_by}"),
        rate=format_rate(prefill.tokens_per_s),
        time=format_seconds(prefill.bound_s),
        batch=f"{batch:,}",
    )
    return say.listed([first, second])


def over_sentence(plan: Plan, say: Words, name: str, limit_s: float) -> str:
    """By how much the likely time misses a limit."""
    phase = plan.prefill if name == "ttft" else plan.decode
    likely = format_seconds(float(phase.estimate.mid))
    return say(f"plan.over.{name}", time=likely, limit=format_seconds(limit_s))


def memory_section(plan: Plan, say: Words) -> RenderableType:
    """The ledger with shares and bars, the capacity, and how many requests fit."""
    ledger = plan.ledger
    whole = max(ledger.total_bytes, ledger.capacity_bytes or 0)
    rows = [_ledger_row(row, ledger.total_bytes, whole, say) for row in ledger.rows]
    rows += _against_capacity(ledger, say, capacity_evidence(plan))
    heads = [
        Head(say("memory.item")),
        Head(say("memory.size"), number=True),
        Head(say("memory.share"), number=True),
        Head(),
        Head(say("evidence")),
    ]
    body = table(heads, rows)
    outside = [_ledger_row(row, ledger.total_bytes, whole, say)[:2] for row in ledger.outside]
    parts: list[RenderableType] = [body]
    if outside:
        parts += [Text(say("memory.outside"), style=QUIET), table([Head(), Head(number=True)], outside)]
    parts.append(Text(room_sentence(ledger, say, sequence_tokens=plan.workload.context)))
    return section(heading(say("memory.title"), say("memory.per_device")), *parts)


def _ledger_row(row: LedgerRow, total: int, whole: int, say: Words) -> tuple[RenderableType, ...]:
    evidence = tag(say, row.evidence)
    if row.low_bytes is not None and row.high_bytes is not None and row.low_bytes != row.high_bytes:
        span = say("range", low=format_bytes(row.low_bytes), high=format_bytes(row.high_bytes))
        evidence.append(f" {span}")
    return (
        say.term("ledger", row.name),
        format_bytes(row.bytes),
        format_share(row.bytes / total) if total else "",
        Bar(row.bytes / whole if whole else 0.0),
        evidence,
    )


def capacity_evidence(plan: Plan) -> str | None:
    """How the capacity is known: as the device's memory, or derived from it by an engine's share."""
    same = plan.ledger.capacity_bytes == plan.device.memory_bytes
    return plan.device.memory_evidence if same else "derived"


def _against_capacity(ledger: Ledger, say: Words, evidence: str | None) -> list[tuple[RenderableType, ...]]:
    """The total, the capacity, and what is left or missing."""
    total = Text(format_bytes(ledger.total_bytes), style="bold")
    rows: list[tuple[RenderableType, ...]] = [(Text(say("total"), style="bold"), total, "", "", "")]
    if ledger.capacity_bytes is None:
        return rows
    capacity = format_bytes(ledger.capacity_bytes)
    rows.append((say("memory.capacity"), capacity, "", "", tag(say, evidence)))
    if ledger.deficit_bytes:
        name, left, style = say("memory.missing"), ledger.deficit_bytes, BAD
    else:
        name, left, style = say("memory.free"), ledger.capacity_bytes - ledger.total_bytes, GOOD
    return [*rows, (Text(name, style=style), Text(format_bytes(left), style=style), "", "", "")]


def room_sentence(ledger: Ledger, say: Words, *, sequence_tokens: int) -> str:
    """How many tokens and sequences the memory left for the cache holds."""
    if ledger.kv_capacity_bytes is None:
        return say("room.unknown")
    if ledger.kv_capacity_tokens is None or ledger.max_sequences is None:
        return say("room.no_cache")
    if not ledger.kv_capacity_tokens:
        return say("room.none")
    parts = [
        say(
            "room",
            bytes=format_bytes(ledger.kv_capacity_bytes),
            tokens=f"{ledger.kv_capacity_tokens:,}",
            sequences=f"{ledger.max_sequences:,}",
            context=f"{sequence_tokens:,}",
        )
    ]
    if ledger.longest_context is not None:
        parts.append(say("room.longest", tokens=f"{ledger.longest_context:,}"))
    if ledger.cache is not None and ledger.cache.waste_bytes > 0 and ledger.cache.allocated_bytes:
        waste = ledger.cache.waste_bytes / ledger.cache.allocated_bytes
        parts.append(say("room.waste", share=format_share(waste), layout=ledger.cache.layout))
    return say.listed(parts)


def speed_section(plan: Plan, say: Words) -> RenderableType:
    """Both phases side by side: what limits them, their intensity, the three times, rates and ceilings."""
    prefill, decode = plan.prefill, plan.decode
    ridge = decode.peak_flops_per_s / decode.bandwidth_bytes_per_s
    both = (prefill, decode)
    rows: list[tuple[RenderableType, ...]] = []

    def row(key: str, texts: list[str], evidence: str, style: str = "") -> None:
        rows.append((say(key), *(Text(text, style=style) for text in texts), tag(say, evidence)))

    row("speed.limited_by", [say(f"limit.{phase.limited_by}") for phase in both], "bound", "bold")
    row("speed.tokens", [f"{phase.tokens:,}" for phase in both], "exact")
    row("speed.flops", [format_flops(phase.flops) for phase in both], "exact")
    row("speed.bytes", [format_bytes(phase.bytes) for phase in both], "exact")
    row("speed.intensity", [_intensity(phase, ridge, say) for phase in both], "exact")
    row("speed.bound", [format_seconds(phase.bound_s) for phase in both], "bound", KEY)
    row("speed.op_roofline", [format_seconds(float(x.times.op_roofline_s)) for x in both], "roofline")
    row("speed.estimate", [format_seconds(float(phase.estimate.mid)) for phase in both], "estimate")
    row("speed.estimate_range", [_span(phase, say) for phase in both], "estimate")
    row("speed.tokens_per_s", [format_rate(phase.tokens_per_s) for phase in both], "bound", KEY)
    if plan.workload.batch > 1:
        row("speed.per_sequence", ["", format_rate(1 / decode.bound_s)], "bound", KEY)
    likely = [format_rate(phase.tokens / float(phase.estimate.mid)) for phase in both]
    row("speed.likely", likely, "estimate")
    row("speed.mfu", [format_share(phase.mfu_ceiling) for phase in both], "bound")
    row("speed.mbu", [format_share(phase.mbu_ceiling) for phase in both], "bound")
    heads = [
        Head(),
        Head(say("prefill"), number=True),
        Head(say("decode"), number=True),
        Head(say("evidence")),
    ]
    rates = say(
        "speed.rates",
        peak=format_flops_per_s(decode.peak_flops_per_s),
        dtype=plan.rates.compute_dtype,
        bandwidth=format_bandwidth(decode.bandwidth_bytes_per_s),
        ridge=format_rate(ridge),
    )
    known = " / ".join(say.term("evidence", how) for how in dict.fromkeys(_rate_evidence(plan)))
    line = Text(f"{rates} · {known}" if known else rates, style=QUIET)
    return section(heading(say("speed.title")), line, *_measured(plan, say), Text(), table(heads, rows))


def _measured(plan: Plan, say: Words) -> list[Text]:
    """What the same device was measured to reach."""
    texts = []
    for rate in measured_rates(plan.device, plan.rates.compute_dtype):
        shown = format_bandwidth if rate.name == BANDWIDTH else format_flops_per_s
        figures = dict.fromkeys((shown(rate.low), shown(rate.high)))
        shares = dict.fromkeys((format_share(rate.low / rate.spec), format_share(rate.high / rate.spec)))
        texts.append(f"{' – '.join(figures)} ({' – '.join(shares)})")
    if not texts:
        return []
    return [Text(f"{say('evidence.measured')}: {say('list_gap').join(texts)}", style=QUIET)]


def _rate_evidence(plan: Plan) -> list[str]:
    """How the two roofs are known."""
    peak = plan.device.peak(plan.rates.compute_dtype).evidence
    return [how for how in (peak, plan.device.bandwidth_evidence) if how is not None]


def _intensity(phase: PhaseResult, ridge: float, say: Words) -> str:
    intensity = phase.intensity_flops_per_byte
    share = format_rate(intensity / ridge)
    return say("speed.intensity.value", intensity=format_rate(intensity), times=share)


def _span(phase: PhaseResult, say: Words) -> str:
    low, high = float(phase.estimate.low), float(phase.estimate.high)
    return say("range", low=format_seconds(low), high=format_seconds(high))


def split_section(plan: Plan, say: Words) -> RenderableType:
    """Where the decode step's time goes, and what hides behind what."""
    decode = plan.decode
    times = decode.times
    parts = [
        ("weights", MEMORY, float(times.weights_s)),
        ("kv_cache", MEMORY, float(times.kv_s)),
        ("compute", COMPUTE, float(times.compute_s)),
    ]
    if float(times.communication_s):
        parts.append(("communication", COMMUNICATION, float(times.communication_s)))
    limit = decode.limited_by
    rows = [
        (
            say(f"split.{name}"),
            format_seconds(seconds),
            format_share(seconds / decode.bound_s),
            Bar(seconds / decode.bound_s, style="cyan" if kind == limit else "bright_black"),
            Text("" if kind == limit else say("split.hidden"), style=QUIET),
        )
        for name, kind, seconds in parts
    ]
    heads = [Head(), Head(number=True), Head(number=True), Head(), Head()]
    return section(
        heading(say("split.title", time=format_seconds(decode.bound_s))),
        table(heads, rows),
        Text(split_sentence(plan, say)),
    )


def split_sentence(plan: Plan, say: Words) -> str:
    """Why the decode step takes that long."""
    decode = plan.decode
    cost, times = decode.times.cost, decode.times
    return say(
        f"split.because.{decode.limited_by}",
        weights=format_bytes(float(cost.weight_bytes)),
        kv=format_bytes(float(cost.kv_read_bytes) + float(cost.kv_write_bytes)),
        flops=format_flops(float(cost.flops)),
        tokens=f"{decode.tokens:,}",
        memory=format_seconds(float(times.memory_s)),
        compute=format_seconds(float(times.compute_s)),
        communication=format_seconds(float(times.communication_s)),
    )


def ridge_sentence(plan: Plan, say: Words) -> str:
    """At which batch decode would turn compute-bound, and whether memory allows it."""
    if plan.ridge_batch is None:
        return say("ridge_batch.none")
    batch = format_rate(plan.ridge_batch)
    said = say("ridge_batch.at", batch=batch)
    sequences = plan.ledger.max_sequences
    if sequences is None:
        return said
    if not sequences:
        return say.listed([said, say("ridge_batch.no_room")])
    enough = sequences * plan.workload.layout.dp >= plan.ridge_batch
    key = "ridge_batch.allowed" if enough else "ridge_batch.memory_first"
    count = f"{sequences * plan.workload.layout.dp:,}"
    return say.listed([said, say(key, sequences=count, context=f"{plan.workload.context:,}")])


def _evidence_used(plan: Plan) -> set[str | None]:
    used: set[str | None] = {"exact", "bound", "roofline", "estimate", *_rate_evidence(plan)}
    if plan.ledger.capacity_bytes is not None:
        used.add(capacity_evidence(plan))
    return used | {row.evidence for row in (*plan.ledger.rows, *plan.ledger.outside)}
