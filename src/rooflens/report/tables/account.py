"""Accounts as tables: phases side by side, modules predicted and measured, the waterfall, the reading."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.explain import Account
from rooflens.reading import Reading
from rooflens.report.tables.layout import KEY, QUIET, Bar, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_account import CHINESE_NEXT, CHINESE_READINGS, CHINESE_REMARKS, account_words
from rooflens.runtime.profile.account import alike
from rooflens.runtime.profile.engine import EngineProfile
from rooflens.runtime.profile.run import RunProfile
from rooflens.units import format_count, format_seconds, format_share

PHASES = ("prefill", "decode")
_IN_LAYER = "layers.{i}."


def phases_table(accounts: Sequence[Account], say: Words) -> RenderableType:
    """One line for each phase: the clock against the bound, MFU and MBU."""
    say = account_words(say)
    names = ("measured", "unwatched", "bound", "ratio", "mfu", "mbu")
    heads = [
        Head(say("phase")),
        Head(say("steps"), number=True),
        Head(say("per_step"), number=True),
        *(Head(say(name), number=True) for name in names),
    ]
    rows = [
        (
            say(f"phase.{found.phase}"),
            f"{found.steps:,}",
            f"{found.new_tokens:,.0f}",
            format_seconds(found.clock_s),
            "" if found.whole_s is None else format_seconds(found.whole_s),
            format_seconds(found.bound_s),
            _ratio(found.clock_s, found.bound_s),
            format_share(found.mfu),
            format_share(found.mbu),
        )
        for found in accounts
    ]
    return section(heading(say("phases"), say("phases.aside")), table(heads, rows))


def modules_table(found: Account, say: Words) -> RenderableType:
    """Every module, all layers together: its roofline beside its time, and its share of the step."""
    say = account_words(say)
    numbers = ("roofline", "measured", "ratio", "share", "mfu", "mbu")
    heads = [Head(say("module")), *(Head(say(name), number=True) for name in numbers)]
    rows: list[tuple[RenderableType, ...]] = [
        (
            _module(row.name, row.calls),
            format_seconds(row.roofline_s),
            format_seconds(row.measured_s),
            _ratio(row.measured_s, row.roofline_s),
            format_share(row.measured_s / found.clock_s),
            format_share(row.mfu),
            format_share(row.mbu),
        )
        for row in found.modules
    ]
    other_s = found.clock_s - sum(row.measured_s for row in found.modules)
    other = format_share(other_s / found.clock_s)
    rows.append((Text(say("other"), style=QUIET), "", format_seconds(other_s), "", other, "", ""))
    rows.append(
        (
            Text(say("whole"), style=KEY),
            format_seconds(found.roofline_s),
            Text(format_seconds(found.clock_s), style=KEY),
            _ratio(found.clock_s, found.roofline_s),
            "",
            format_share(found.mfu),
            format_share(found.mbu),
        )
    )
    parts: list[RenderableType] = [table(heads, rows)]
    for key, names in (("only_predicted", found.only_predicted), ("only_measured", found.only_measured)):
        if names:
            parts.append(Text(say(key, names=", ".join(names)), style=QUIET))
    title = say("modules", phase=say(f"phase.{found.phase}"))
    aside = say("modules.aside", tokens=f"{found.new_tokens:,.0f}", context=f"{found.context:,.0f}")
    return section(heading(title, aside), *parts)


def waterfall(found: Account, say: Words) -> RenderableType:
    """The rows from the bound to the clock; those that are nothing are left out."""
    say = account_words(say)
    heads = [Head(say("part")), Head(say("measured"), number=True), Head(say("share"), number=True), Head()]
    rows: list[tuple[RenderableType, ...]] = [
        (
            say(f"row.{row.name}"),
            format_seconds(row.seconds),
            format_share(row.share),
            Bar(row.share, style="cyan" if row.group == "roofline" else "yellow"),
        )
        for row in found.rows
        if row.seconds or row.name == "unexplained"
    ]
    rows.append((Text(say("whole"), style=KEY), Text(format_seconds(found.clock_s), style=KEY), "", ""))
    return section(heading(say("waterfall", phase=say(f"phase.{found.phase}"))), table(heads, rows))


def account_report(found: Account, say: Words) -> RenderableType:
    """One phase alone."""
    return Group(modules_table(found, say), waterfall(found, say))


def profile_report(found: RunProfile, say: Words) -> RenderableType:
    """A profiled run: both phases side by side, each phase, and the reading."""
    return Group(*accounts_sections(found, say), explained_reading(found, say))


def accounts_sections(found: RunProfile, say: Words) -> list[RenderableType]:
    """Phases side by side, then each by its modules and as a waterfall."""
    parts = [phases_table(found.accounts, say)]
    for account in found.accounts:
        parts += [modules_table(account, say), waterfall(account, say)]
    return parts


def explained_reading(found: RunProfile, say: Words) -> RenderableType:
    """What is in the way, with the remarks of the run and of its phases."""
    remarks = [remark for account in found.accounts for remark in account.remarks]
    if account_words(say).language == "zh":
        own = [CHINESE_REMARKS[remark.key].format(**remark.figures) for remark in remarks]
    else:
        own = [remark.sentence for remark in remarks]
    notes = [*found.notes, *own]
    return reading_lines(found.reading, notes, say)


def reading_lines(reading: Reading | None, notes: Sequence[str], say: Words) -> RenderableType:
    """The sentence on what is in the way, what to do, and remarks."""
    if reading is None:
        return Group()
    own = account_words(say)
    lines = [Text(reading_sentence(reading, own), style=KEY)]
    if own.language == "en":
        lines.append(Text(f"{reading.next[:1].upper()}{reading.next[1:]}."))
    elif reading.key in CHINESE_NEXT:
        lines.append(Text(f"{CHINESE_NEXT[reading.key]}。"))
    stop = "." if own.language == "en" else "。"
    lines += [Text(f"{note[:1].upper()}{note[1:]}{stop}", style=QUIET) for note in dict.fromkeys(notes)]
    return section(heading(own("reading")), *lines)


def times_only(profile: EngineProfile, say: Words) -> RenderableType:
    """Modules by their times alone, where there is nothing to compare with."""
    say = account_words(say)
    parts = []
    for phase in PHASES:
        steps = [step for step in alike(profile, phase) if step.modules is not None]
        if not steps:
            continue
        spent: dict[str, tuple[int, float]] = {}
        for step in steps:
            assert step.modules is not None
            for name, (calls, seconds) in step.modules.by_operator().items():
                spent[name] = (calls, spent.get(name, (0, 0.0))[1] + seconds / len(steps))
        clock_s = sum(step.record.clock_s for step in steps) / len(steps)
        spent_rows = [
            (_module(name, calls), format_seconds(seconds), format_share(seconds / clock_s))
            for name, (calls, seconds) in spent.items()
        ]
        other_s = clock_s - sum(seconds for _, seconds in spent.values())
        spent_rows.append((say("other"), format_seconds(other_s), format_share(other_s / clock_s)))
        spent_rows.append((say("whole"), format_seconds(clock_s), ""))
        heads = [Head(say("module")), Head(say("measured"), number=True), Head(say("share"), number=True)]
        title = heading(
            say("modules", phase=say(f"phase.{phase}")), say("modules.bare", steps=f"{len(steps):,}")
        )
        parts.append(section(title, table(heads, spent_rows)))
    return Group(*parts)


def reading_sentence(reading: Reading, say: Words) -> str:
    """What a reading says, in the language of ``say`` (the account's words)."""
    if say.language == "en":
        return reading.sentence
    figures = {name: _figure(name, value) for name, value in reading.figures.items()}
    if reading.key in CHINESE_READINGS:
        return CHINESE_READINGS[reading.key].format(**figures)
    figures["phase"] = say(f"phase.{figures['phase']}")
    return CHINESE_READINGS["row"].format(what=say(f"row.{reading.key}"), **figures)


def _figure(name: str, value: float | str) -> str:
    """A reading's figure in Chinese text."""
    if isinstance(value, str):
        return "未知" if value == "unknown" else value
    if name.endswith("batch"):
        return f"{value:,}" if isinstance(value, int) else format_count(value)
    return format_seconds(value) if name.endswith("_s") else format_share(value)


def _module(name: str, calls: float) -> str:
    short = name.replace(_IN_LAYER, "")
    return short if round(calls) == 1 else f"{short} × {round(calls)}"


def _ratio(measured: float, predicted: float) -> str:
    return f"{measured / predicted:,.3g}" if predicted else ""
