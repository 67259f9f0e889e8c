"""From raw samples to figures: medians with spread, and ratios paired round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.cases import tokens_per_s
from benchmarks.peers.engines import ENGINES, FORMATS, OURS, STORED
from benchmarks.peers.protocol import Case
from rooflens.measure.statistics import Summary, median, summarize


@dataclass(frozen=True)
class Row:
    """One engine, one weights, one case. ``ratio``: how many times as fast Rooflens was, round by round.

    ``mbu``: bytes that must be read / time / bandwidth probed around the sample. ``mfu``: least time of the
    FLOPs at the matrix rates probed before it / time (prefill alone). ``disturbed``: samples left out
    because other work ran. ``counts``: False where the form's quality on real weights was measured and is
    below the limits.
    """

    engine: str
    label: str
    weights: str
    case: str
    rate: Summary
    mbu: float | None
    mfu: float | None
    ratio: Summary | None
    disturbed: int
    counts: bool = True


def rows(document: Mapping[str, Any], cases: Sequence[Case]) -> list[Row]:
    """All figures of a document, by weights, case and engine in the order of the comparison."""
    made = []
    order = [engine.name for engine in ENGINES]
    found = {sample["weights"] for sample in document["samples"]}
    formats = [weights for weights in (STORED, *FORMATS) if weights in found]
    for weights in formats:
        for case in cases:
            here = [s for s in document["samples"] if (s["weights"], s["case"]) == (weights, case.name)]
            ours = {s["round"]: s for s in undisturbed(here) if s["engine"] == OURS}
            for engine in sorted({s["engine"] for s in here}, key=order.index):
                samples = [s for s in here if s["engine"] == engine]
                if row := _row(document["engines"][engine][weights], case, samples, ours):
                    made.append(row)
    return made


def counts(facts: Mapping[str, Any]) -> bool:
    """Whether an engine's speeds count: not where its quality was measured and found too low."""
    quality = facts.get("quality")
    return quality is None or bool(quality["passed"])


def undisturbed(samples: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples during which nothing else ran."""
    return [sample for sample in samples if not sample["disturbed"]]


def paired_ratios(theirs: Iterable[Mapping[str, Any]], ours: Mapping[int, Mapping[str, Any]]) -> list[float]:
    """Their seconds over ours, for the rounds that have both."""
    return [s["seconds"] / ours[s["round"]]["seconds"] for s in theirs if s["round"] in ours]


def least_s(need: Mapping[str, float], sample: Mapping[str, Any]) -> float:
    """Seconds of the case's FLOPs at the rates probed before it; attention's at the cache's, where probed."""
    attention = need.get("attention_flops", 0.0)
    rate: float = sample["gemm_flops_per_s"]
    return (need["flops"] - attention) / rate + attention / (sample.get("attention_flops_per_s") or rate)


def _row(
    facts: Mapping[str, Any],
    case: Case,
    samples: list[dict[str, Any]],
    ours: Mapping[int, Mapping[str, Any]],
) -> Row | None:
    quiet = undisturbed(samples)
    if not quiet:
        return None
    need = facts["needs"].get(case.name)
    ratios = paired_ratios(quiet, ours)
    mfu = [least_s(need, s) / s["seconds"] for s in quiet if need and s["gemm_flops_per_s"]]
    return Row(
        engine=quiet[0]["engine"],
        label=facts["label"],
        weights=quiet[0]["weights"],
        case=case.name,
        rate=summarize([tokens_per_s(case, s["seconds"]) for s in quiet]),
        mbu=median([need["read_bytes"] / s["seconds"] / s["read_bytes_per_s"] for s in quiet])
        if need and case.kind == "decode"
        else None,
        mfu=median(mfu) if mfu else None,
        ratio=summarize(ratios) if ratios and quiet[0]["engine"] != OURS else None,
        disturbed=len(samples) - len(quiet),
        counts=counts(facts),
    )
