"""A plan in one picture: its memory over its roofline."""

from __future__ import annotations

from typing import Any

from rooflens.analysis.plan import Plan
from rooflens.analysis.points import roofline_view
from rooflens.report.charts.memory import NamedLedger, memory_panel
from rooflens.report.charts.roofline import roofline_panel
from rooflens.report.charts.theme import DARK, LIGHT, finish, require_altair, wrapped
from rooflens.report.rooflines import view_points
from rooflens.report.tables.plan import device_name, speed_sentence, workload_facts
from rooflens.report.words import Words

_LINE = 130  # characters of a subtitle


def plan_chart(plan: Plan, say: Words, *, dark: bool = False, title: str | None = None) -> Any:
    """An Altair chart of one plan. Raises DependencyError without the extra ``plot``."""
    altair = require_altair()
    theme = DARK if dark else LIGHT
    view = roofline_view(plan.device, plans=[plan])
    roofline, explained = roofline_panel(view, view_points(view, say), say, theme)
    named = [NamedLedger(say("memory.title"), plan.ledger)]
    panels = altair.vconcat(memory_panel(named, say, theme), roofline, spacing=30)
    head = title or plan.spec.name + say("plan.title.on", device=device_name(plan, say))
    lines = [" · ".join(workload_facts(plan, say)), *wrapped(speed_sentence(plan, say), _LINE)]
    return finish(panels.resolve_scale(color="independent"), theme, head, *lines, *explained)
