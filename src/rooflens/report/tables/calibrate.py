"""What ``rooflens calibrate`` prints."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.calibrate import CalibrationResult
from rooflens.report.tables.layout import KEY, QUIET, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_validate import validate_words

LONGEST = 10


def calibrate_report(result: CalibrationResult, say: Words) -> RenderableType:
    """How each kind of figure moves and narrows, where it was kept, what was left out."""
    words = validate_words(say)
    heads = [
        Head(words("device")),
        Head(words("engine")),
        Head(words("kind")),
        Head(words("runs"), number=True),
        Head(words("shift"), number=True),
        Head(words("range.before"), number=True),
        Head(words("range.after"), number=True),
        Head(words("narrower"), number=True),
    ]
    rows = [
        (
            one.residuals.device,
            one.residuals.engine,
            one.residuals.kind,
            f"{len(one.residuals.logs):,}",
            Text(f"{one.shift:.2f}×", style=KEY),
            f"{one.before:.2f}×",
            Text(f"{one.after:.2f}×", style=KEY),
            f"{one.narrower_by:.0%}",
        )
        for one in result.tightened
    ]
    parts: list[RenderableType] = [
        Text(words("calibrated"), style="bold"),
        Text(words("calibrated.aside"), style=QUIET),
        table(heads, rows),
    ]
    if result.path:
        parts += [Text(), Text(words("kept", path=result.path))]
    if result.unusable:
        shown = list(result.unusable[:LONGEST])
        left = section(
            heading(words("problems"), str(len(result.unusable))),
            table([Head(words("row")), Head(words("why"))], shown),
        )
        parts.append(left)
        if len(result.unusable) > LONGEST:
            parts.append(Text(words("more", count=f"{len(result.unusable) - LONGEST:,}"), style=QUIET))
    return Group(*parts)
