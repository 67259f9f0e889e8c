"""What ``rooflens inspect`` prints of a model's own files: bytes by part and by stored type, and findings."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.models.stored import NOT_COUNTED, StoredRow, StoredWeights
from rooflens.report.tables.layout import QUIET, Bar, Head, heading, indented, section, table
from rooflens.report.words import Words
from rooflens.report.words_checkpoint import checkpoint_words
from rooflens.units import BITS_PER_BYTE, format_bytes, format_share


def checkpoint_report(stored: StoredWeights, say: Words) -> RenderableType:
    """The rows of the files; ``say`` gives the language."""
    own = checkpoint_words(say)
    many = "aside.many" if stored.files > 1 else "aside.one"
    head = heading(own("title"), own(many, format=stored.format, count=f"{stored.files:,}"))
    parts: list[RenderableType] = [section(head, _parts(stored, own)), Text(), indented(_types(stored, own))]
    if stored.findings:
        rows = [("-", finding.text) for finding in stored.findings]
        parts.append(section(heading(own("findings")), table([Head(), Head()], rows)))
    return Group(*parts)


def _parts(stored: StoredWeights, own: Words) -> RenderableType:
    rows = [_part(row, stored, own) for row in stored.components if row.name not in NOT_COUNTED]
    total = f"{stored.model_bytes:,}"
    rows.append((Text(own("model"), style="bold"), "", Text(total, style="bold"), "", ""))
    for row in stored.components:
        if row.name in NOT_COUNTED:
            remark = Text(own("not_counted"), style=QUIET)
            rows.append((own.term("part", row.name), f"{row.tensors:,}", f"{row.bytes:,}", "", remark))
    heads = [
        Head(own("use")),
        Head(own("tensors"), number=True),
        Head(own("bytes"), number=True),
        Head(own("share"), number=True),
        Head(),
    ]
    return table(heads, rows)


def _part(row: StoredRow, stored: StoredWeights, own: Words) -> tuple[RenderableType, ...]:
    share = row.bytes / stored.model_bytes if stored.model_bytes else 0.0
    return (own.term("part", row.name), f"{row.tensors:,}", f"{row.bytes:,}", format_share(share), Bar(share))


def _types(stored: StoredWeights, own: Words) -> RenderableType:
    rows = [
        (
            row.name,
            f"{row.tensors:,}",
            format_bytes(row.bytes),
            f"{BITS_PER_BYTE * row.bytes / row.elements:.4g}" if row.elements else "-",
        )
        for row in stored.types
    ]
    heads = [
        Head(own("type")),
        Head(own("tensors"), number=True),
        Head(own("bytes"), number=True),
        Head(own("bits"), number=True),
    ]
    return table(heads, rows)
