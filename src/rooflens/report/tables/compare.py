"""What ``rooflens compare`` prints: one line per device and weight format, and which one decodes fastest."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.compare import Cell, Comparison
from rooflens.analysis.plan import Plan
from rooflens.report.tables.layout import BAD, GOOD, KEY, QUIET, Head, heading, legend, section, table
from rooflens.report.words import Words
from rooflens.units import format_bytes, format_rate, format_seconds

NOTHING = "-"


def compare_report(comparison: Comparison, say: Words) -> RenderableType:
    """The table, a sentence on the best of those that fit, and why a combination cannot be."""
    devices = len({cell.device.id for cell in comparison.cells}) > 1
    formats = len({cell.weights for cell in comparison.cells}) > 1
    many = any(plan.workload.batch > 1 for plan in comparison.plans)
    heads = [
        *([Head(say("compare.device"), style="bold", whole=True)] if devices or not formats else []),
        *([Head(say("compare.format"), style="bold", whole=True)] if formats else []),
        Head(say("compare.weights"), number=True),
        Head(say("compare.left"), number=True),
        Head(say("compare.step"), number=True),
        Head(say("compare.per_sequence"), number=True),
        *([Head(say("compare.all"), number=True)] if many else []),
        Head(say("compare.intensity"), number=True),
        Head(say("compare.ridge_batch"), number=True),
    ]
    rows = []
    for cell in comparison.cells:
        labels = [cell.device.id] if devices or not formats else []
        labels += [cell.weights] if formats else []
        rows.append((*labels, *_figures(cell.plan, say, many=many)))
    parts: list[RenderableType] = [_title(comparison, say), Text(best_sentence(comparison, say)), Text()]
    parts.append(table(heads, rows))
    name_of = names(comparison)
    refused = [(name_of(cell), cell.error.what) for cell in comparison.cells if cell.error is not None]
    if refused:
        lines = [Text.assemble((name, "bold"), (f"  {why}", "")) for name, why in refused]
        parts.append(section(heading(say("compare.refused")), *lines))
    parts.append(Group(Text(), Text(say("compare.remark"), style=QUIET)))
    parts.append(legend(say, {"exact", "bound"}))
    return Group(*parts)


def _title(comparison: Comparison, say: Words) -> Text:
    if not comparison.plans:
        return Text(say("compare.nothing"), style=BAD)
    plan = comparison.plans[0]
    work = plan.workload
    made = Text(plan.spec.name, style="bold")
    facts = [say("compare.load", batch=f"{work.batch:,}", context=f"{work.context:,}")]
    if len({one.device.id for one in comparison.plans}) == 1:
        facts.insert(0, plan.device.name)
    if work.layout.devices > 1:
        facts.append(say("compare.count", count=work.layout.devices))
    made.append("\n" + " · ".join(facts), style=f"not bold {QUIET}")
    return made


def names(comparison: Comparison) -> Callable[[Cell], str]:
    """How a combination is called: by what differs among them."""
    devices = len({cell.device.id for cell in comparison.cells}) > 1
    formats = len({cell.weights for cell in comparison.cells}) > 1
    if devices and formats:
        return lambda cell: f"{cell.device.id} {cell.weights}"
    return lambda cell: cell.weights if formats else cell.device.id


def _figures(plan: Plan | None, say: Words, *, many: bool) -> list[RenderableType]:
    """The figures of one line. What does not fit has no speed."""
    if plan is None:
        return [NOTHING] * (7 if many else 6)
    ledger, decode = plan.ledger, plan.decode
    weights = format_bytes(ledger.row("weights"))
    ridge = NOTHING if plan.ridge_batch is None else format_rate(plan.ridge_batch)
    intensity = format_rate(decode.intensity_flops_per_byte)
    if plan.fits is False:
        over = format_bytes(ledger.deficit_bytes) if ledger.deficit_bytes else ""
        said = Text(say("compare.over", deficit=over) if over else say("compare.no"), style=BAD)
        return [weights, said, *[NOTHING] * (3 if many else 2), intensity, ridge]
    fits = Text(say("compare.unknown"), style=QUIET)
    if ledger.capacity_bytes is not None:
        free = format_bytes(ledger.capacity_bytes - ledger.total_bytes)
        fits = Text(free, style=GOOD)
    return [
        weights,
        fits,
        format_seconds(decode.bound_s),
        Text(format_rate(1 / decode.bound_s), style=KEY),
        *([Text(format_rate(decode.tokens_per_s), style=KEY)] if many else []),
        intensity,
        ridge,
    ]


def best_sentence(comparison: Comparison, say: Words) -> str:
    """The fastest decode among what is not known not to fit, against the slowest of them."""
    able = [cell for cell in comparison.cells if cell.plan is not None and cell.plan.fits is not False]
    if not able:
        return say("compare.none_fits")
    ranked = sorted(able, key=lambda cell: cell.plan.decode.bound_s if cell.plan else 0.0)
    best, worst = ranked[0], ranked[-1]
    name_of = names(comparison)
    assert best.plan is not None
    assert worst.plan is not None
    rate = format_rate(1 / best.plan.decode.bound_s)
    if len(ranked) == 1:
        return say("compare.only", name=name_of(best), rate=rate)
    times = format_rate(worst.plan.decode.bound_s / best.plan.decode.bound_s)
    return say("compare.best", name=name_of(best), rate=rate, times=times, other=name_of(worst))
