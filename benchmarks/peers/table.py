"""The result file as Markdown: rates, ratios, checks, and who was left out and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES
from benchmarks.peers.compare import Row, rows
from benchmarks.peers.engines import OURS
from benchmarks.peers.protocol import Case
from benchmarks.peers.quality_table import quality_parts, table_line
from rooflens.measure.statistics import summarize
from rooflens.units import format_bandwidth, format_flops_per_s

#: Beside engines whose quality was measured and is too low.
FAILS = " (**fails quality: does not count**)"


def write_table(document: Mapping[str, Any], path: Path) -> Path:
    """Write the Markdown beside the result file."""
    path.write_text(markdown(document), encoding="utf-8")
    return path


def markdown(document: Mapping[str, Any]) -> str:
    """The whole page."""
    found = rows(document, CASES)
    cases = [case for case in CASES if any(row.case == case.name for row in found)]
    parts = [_head(document)]
    for weights in dict.fromkeys(row.weights for row in found):
        here = [row for row in found if row.weights == weights]
        parts += [
            f"## {weights} (rounds: {document['rounds'].get(weights, 0)})",
            _surroundings(document, weights),
        ]
        parts += [
            "Tokens per second: median (p10 to p90); MBU while decoding, MFU of prompts.",
            _rates(here, cases),
        ]
        if any(row.engine == OURS and not row.counts for row in here):
            parts.append(f"{OURS} itself fails the limits of quality here: no ratio below counts.")
        if any(row.ratio for row in here):
            parts += [f"How many times as fast {OURS} was, paired round by round: median (p10 to p90).",
                      _ratios(here, cases)]  # fmt: skip
    parts += ["## Outputs", _checks(document), *quality_parts(document), *_absent(document)]
    return "\n\n".join(parts) + "\n"


def case_title(case: Case) -> str:
    """A case in words."""
    if case.kind == "prefill":
        return f"prefill {case.context:,}"
    return f"decode, {case.context:,} held" + (f", batch {case.batch}" if case.batch > 1 else "")


def _head(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    return (
        f"# {document['shape']} on {cpu_title(machine['cpu'])}\n\n"
        f"Measured {document['created'][:10]} with {document['threads']} threads, {machine['system']}, "
        f"Rooflens {machine['rooflens']}. Written by `python -m benchmarks.peers`; "
        "docs/benchmarks.md says how to read it."
    )


def cpu_title(cpu: Mapping[str, Any]) -> str:
    """The processor's name; its family and model too, where the record has them."""
    if cpu.get("family") is None:
        return str(cpu["name"])
    return f"{cpu['name']} (family {cpu['family']}, model {cpu['model']})"


def _surroundings(document: Mapping[str, Any], weights: str) -> str:
    samples = [s for s in document["samples"] if s["weights"] == weights]
    read = summarize([s["read_bytes_per_s"] for s in samples])
    text = (
        f"Read bandwidth around the samples: {format_bandwidth(read.median)} "
        f"({format_bandwidth(read.p10)} to {format_bandwidth(read.p90)})."
    )
    rates = [s["gemm_flops_per_s"] for s in samples if s["gemm_flops_per_s"]]
    if rates:
        gemm, dtype = summarize(rates), document["probes"][weights]["gemm_dtype"]
        text += (
            f" {dtype} matrix rate at the model's shapes: {format_flops_per_s(gemm.median)} "
            f"({format_flops_per_s(gemm.p10)} to {format_flops_per_s(gemm.p90)})."
        )
    return text


def _rates(found: Sequence[Row], cases: Sequence[Case]) -> str:
    def cell(row: Row) -> str:
        text = f"{row.rate.median:,.1f} ({row.rate.p10:,.1f} to {row.rate.p90:,.1f})"
        if row.mbu is not None:
            text += f", MBU {row.mbu:.2f}"
        if row.mfu is not None:
            text += f", MFU {row.mfu:.2f}"
        return text + (f", {row.disturbed} disturbed" if row.disturbed else "")

    return _grid(found, cases, cell)


def _ratios(found: Sequence[Row], cases: Sequence[Case]) -> str:
    def cell(row: Row) -> str:
        ratio = row.ratio
        return "" if ratio is None else f"{ratio.median:.2f} ({ratio.p10:.2f} to {ratio.p90:.2f})"

    return _grid([row for row in found if row.ratio], cases, cell)


def _grid(found: Sequence[Row], cases: Sequence[Case], cell: Any) -> str:
    by_place = {(row.engine, row.case): row for row in found}
    labels = {row.engine: row.label + ("" if row.counts else FAILS) for row in found}
    lines = [
        table_line("engine", *(case_title(case) for case in cases)),
        table_line(*["---"] * (len(cases) + 1)),
    ]
    for engine, label in labels.items():
        cells = [by_place.get((engine, case.name)) for case in cases]
        lines.append(table_line(f"{engine}, {label}", *("" if row is None else cell(row) for row in cells)))
    return "\n".join(lines)


def _checks(document: Mapping[str, Any]) -> str:
    lines = [
        table_line(
            "engine", "weights", "equal choices", "gap (limit)", "error of logits", "cache", "versions"
        ),
        table_line(*["---"] * 7),
    ]
    for engine, formats in document["engines"].items():
        for weights, facts in formats.items():
            check = facts["check"]
            versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
            lines.append(
                table_line(
                    engine,
                    f"{weights}: {facts['label']}",
                    f"{check['equal']:.0%} of {check['prompts']}",
                    f"{check['gap']:.3f} ({check['limit']:g})",
                    "not told" if check["error"] is None else f"{check['error']:.2%}",
                    facts["kv_dtype"],
                    versions,
                )
            )
    return "\n".join(lines)


def _absent(document: Mapping[str, Any]) -> list[str]:
    told = [f"- {row['engine']}, {row['weights']}: {row['why']}" for row in document["left_out"]]
    told += [
        f"- {row['engine']}, {row['weights']}, {row['case']}: {row['why']}" for row in document["failures"]
    ]
    return ["## Left out", "\n".join(told)] if told else []
