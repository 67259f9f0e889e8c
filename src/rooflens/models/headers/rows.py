"""The report of what a checkpoint holds: its tensors by use and by type, and all findings in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.headers.match import Match
from rooflens.models.spec import ModelSpec
from rooflens.models.stored import Finding, StoredRow, StoredWeights, finding, stored_row
from rooflens.units import format_bytes

# The order of the rows; towers come between the head and what is not part of the model.
_USES = ("embedding", "attention", "recurrent", "mlp", "experts", "norms", "head", "other")


def report(
    match: Match,
    checkpoint: Checkpoint,
    *,
    described: ModelSpec,
    config_bytes: int | None,
    findings: Iterable[Finding],
) -> StoredWeights:
    """Sum up a matched checkpoint; ``findings`` of its format come before those that all have.

    ``described`` and ``config_bytes`` as in `StoredWeights`.
    """
    rows = tuple(row for row in _component_rows(match) if row.tensors)
    counted = [tensor for held in match.towers.values() for tensor in held] + match.duplicates
    return StoredWeights(
        format=checkpoint.format,
        files=len(checkpoint.files),
        file_bytes=sum(file.bytes for file in checkpoint.files),
        tensor_bytes=checkpoint.total_bytes,
        model_bytes=sum(tensor.bytes for tensor in (*match.used(), *counted)),
        config_bytes=config_bytes,
        components=rows,
        types=tuple(_type_rows(checkpoint)),
        described=described,
        findings=(*findings, *_common_findings(match, checkpoint)),
    )


def _component_rows(match: Match) -> Iterator[StoredRow]:
    by_use: dict[str, list[TensorInfo]] = {use: [] for use in _USES}
    for holding in match.holdings:
        by_use[holding.slots[0].use] += holding.tensors
    for use, held in by_use.items():
        yield stored_row(use, held)
    for kind in dict.fromkeys(kind for kind, _ in match.towers):
        yield stored_row(kind, [x for (own, _), held in match.towers.items() if own == kind for x in held])
    yield stored_row("mtp", match.predictors)
    yield stored_row("tables", match.tables)
    yield stored_row("duplicates", match.duplicates)
    yield stored_row("adapters", match.adapters)
    yield stored_row("unknown", match.unknown)


def _type_rows(checkpoint: Checkpoint) -> Iterator[StoredRow]:
    """A row for each storage type, the largest first."""
    counts = Counter(tensor.dtype for tensor in checkpoint.tensors)
    elements = checkpoint.elements_by_dtype
    for name, held in checkpoint.bytes_by_dtype.items():
        yield StoredRow(name, counts[name], elements[name], held)


def _common_findings(match: Match, checkpoint: Checkpoint) -> Iterator[Finding]:
    for kind, text, held in (
        ("unknown", "{count} tensors ({bytes}) are no part of this model and are not counted", match.unknown),
        ("unknown", "{count} tensors ({bytes}) belong to an adapter and are not counted", match.adapters),
        ("layout", "{count} tables ({bytes}) hold nothing trained and are not counted", match.tables),
        (
            "layout",
            "{count} tensors ({bytes}) predict further tokens: loaded only to speculate",
            match.predictors,
        ),
    ):
        if held:
            size = format_bytes(sum(tensor.bytes for tensor in held))
            yield finding(kind, text.format(count=f"{len(held):,}", bytes=size), held)  # type: ignore[arg-type]
    for problem in checkpoint.problems:
        yield Finding("file", problem)
