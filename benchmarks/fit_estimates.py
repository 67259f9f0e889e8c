"""Fit the estimate's figures to published measurements, and say how well they predict other sources.

    python benchmarks/fit_estimates.py [--write] [--file tests/data/measurements/measurements.csv]

Every figure is fitted as a logarithm with a prior (its centre from published kernel measurements, its
width saying how sure that is), so that few rows move it little; the residual is the logarithm of
predicted over measured time, robustly weighted, each group of rows (source, engine, kind) counting
less per row the larger it is. Leave-one-source-out: the figures are fitted without a source, then that
source is predicted. ``--write`` stores ``analysis/data/calibration.json`` and the tables of
``docs/accuracy.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from rooflens.analysis import calibration as cal
from rooflens.analysis.cases import Case, Kind
from rooflens.analysis.features import Features, features_of, predict
from rooflens.interop.measured_models import resolve_cases
from rooflens.interop.measurements import load_measurements

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "measurements" / "measurements.csv"

# path -> (centre, width of the prior in log units). Centres: weight streaming and GEMM rates published for
# the kind of device (data-centre 0.83 and 0.7, GDDR 0.88 and 0.75; Apple's GPU 0.75 of its ALUs, what
# tinygrad's Metal matmul reaches on an M1), 5 us all-reduces on NVLink.
PRIORS: dict[str, tuple[float, float]] = {
    "general.padding_rows": (48, 0.28),
    "general.sharpness": (2.5, 0.16),
    "general.expert_bandwidth": (0.85, 0.1),
    "general.expert_compute": (0.7, 0.16),
    "general.kv_bandwidth": (0.85, 0.1),
    "general.attention_compute": (0.6, 0.16),
    "general.activation_bandwidth": (0.7, 0.16),
    "general.small_launch": (0.5, 0.2),
    "general.mix": (0.8, 0.16),
    "general.queue": (0.5, 0.24),
}
_DEVICES = {
    "nvidia-hbm": (0.83, 0.70, 2.0e-6), "nvidia-gddr": (0.88, 0.70, 2.0e-6), "amd": (0.78, 0.50, 3.5e-6),
    "intel": (0.70, 0.45, 6.0e-6), "apple": (0.85, 0.75, 1.0e-5),
    "unified": (0.85, 0.60, 1.0e-5), "cpu": (0.75, 0.55, 3.0e-6),
    "other": (0.78, 0.55, 4.0e-6),
}  # fmt: skip
for _name, (_bandwidth, _compute, _launch) in _DEVICES.items():
    PRIORS[f"devices.{_name}.bandwidth"] = (_bandwidth, 0.04)
    PRIORS[f"devices.{_name}.compute"] = (_compute, 0.10)
    PRIORS[f"devices.{_name}.launch_s"] = (_launch, 0.2)
for _name in cal.FORMATS:
    if _name != cal.FORMATS[0]:
        PRIORS[f"formats.{_name}.bandwidth"] = (0.95 if _name == "8-bit" else 0.9, 0.06)
        PRIORS[f"formats.{_name}.compute"] = (0.5 if _name == "gguf-4-bit" else 0.8, 0.15)
_ENGINE_PRIORS = {  # enqueue_s, host_s, host_per_sequence_s, request_s
    "default": (5e-6, 0.6e-3, 15e-6, 8e-3),
    "vllm": (6e-6, 1.0e-3, 20e-6, 15e-3),
    "sglang": (6e-6, 0.8e-3, 20e-6, 15e-3),
    "tensorrt-llm": (4e-6, 0.4e-3, 10e-6, 8e-3),
    "llama.cpp": (2e-6, 0.1e-3, 10e-6, 0.2e-3),
    "llama.cpp on nvidia-hbm": (2e-6, 0.1e-3, 10e-6, 0.2e-3),
    "llama.cpp on apple": (2e-6, 0.1e-3, 10e-6, 0.2e-3),
    "gpt-fast": (2e-6, 0.15e-3, 10e-6, 0.2e-3),
    "rooflens": (5e-6, 0.6e-3, 20e-6, 5e-3),
}
_ENGINE_SHARES = {  # bandwidth, compute, attention: llama.cpp trades matrix units for portability
    "llama.cpp": (1.0, 0.55, 0.6),
    "llama.cpp on nvidia-hbm": (0.75, 0.35, 0.6),
}
for _name, _values in _ENGINE_PRIORS.items():
    if _name != "default":
        _shares = _ENGINE_SHARES.get(_name, (1.0, 1.0, 1.0))
        for _field, _value, _width in zip(
            ("bandwidth", "compute", "attention"), _shares, (0.05, 0.15, 0.15), strict=True
        ):
            PRIORS[f"engines.{_name}.{_field}"] = (_value, _width)
        PRIORS[f"engines.{_name}.launch"] = (1.0, 0.2)
    for _field, _value in zip(
        ("enqueue_s", "host_s", "host_per_sequence_s", "request_s"), _values, strict=True
    ):
        PRIORS[f"engines.{_name}.{_field}"] = (_value, 0.4)
for _name, (_share, _latency) in {
    "nvlink": (0.75, 8e-6),
    "pcie": (0.6, 12e-6),
    "network": (0.6, 15e-6),
}.items():
    PRIORS[f"links.{_name}.share"] = (_share, 0.15)
    PRIORS[f"links.{_name}.latency_s"] = (_latency, 0.25)
PRIORS["links.pcie.crowding"] = (0.3, 0.3)

FIXED: dict[str, float] = {
    "formats.16-bit.bandwidth": 1.0, "formats.16-bit.compute": 1.0,
    "engines.default.bandwidth": 1.0, "engines.default.compute": 1.0, "engines.default.attention": 1.0,
    "engines.default.launch": 1.0, "links.nvlink.crowding": 0.0, "links.network.crowding": 0.0,
}  # fmt: skip

# Engines have moved on since: builds of 2024-05 tell less of those in use.
OLD = {"xdai": 0.5}

NAMES = list(PRIORS)
CENTRES = np.log([PRIORS[name][0] for name in NAMES])
WIDTHS = np.array([PRIORS[name][1] for name in NAMES])


def table(theta: np.ndarray) -> dict[str, Any]:
    """The nested table of a vector of logarithms."""
    result: dict[str, Any] = {}
    for name, value in [*FIXED.items(), *zip(NAMES, np.exp(theta).tolist(), strict=True)]:
        section, *path = name.split(".")
        if section == "engines":  # an engine's name may have a dot
            path = [".".join(path[:-1]), path[-1]]
        if len(path) == 1:
            result.setdefault(section, {})[path[0]] = value
        else:
            result.setdefault(section, {}).setdefault(path[0], {})[path[1]] = value
    return result


def weights(cases: list[Case]) -> np.ndarray:
    """Rows of a large group count less each, so that no source decides alone."""
    groups = [(case.row.source_id, case.row.engine, case.kind) for case in cases]
    sizes = Counter(groups)
    # Queued first tokens depend on how requests arrive: they inform the queue, hardly the kernels.
    queued = np.array([0.3 if case.kind is Kind.SERVED_TTFT else 1.0 for case in cases])
    old = np.array([OLD.get(case.row.source_id, 1.0) for case in cases])
    return old * queued * np.array([sizes[group] ** -0.4 for group in groups])


def fit(features: Features, measured: np.ndarray, keep: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Levenberg-Marquardt on the kept rows: robust residuals and the priors."""
    theta = CENTRES.copy()

    def residuals(vector: np.ndarray) -> np.ndarray:
        logs = np.log(predict(features, cal.Calibration(table(vector)))[keep] / measured[keep])
        # Student-like: a residual beyond about 0.25 pulls no more than in proportion to its logarithm.
        scale = 0.25
        robust = np.sign(logs) * scale * np.sqrt(2 * np.log1p((logs / scale) ** 2 / 2))
        return np.concatenate([robust / 0.12 * weight[keep], (vector - CENTRES) / WIDTHS])

    current = residuals(theta)
    damping, step = 1.0, 1e-4
    for _ in range(25):
        jacobian = np.stack(
            [(residuals(theta + step * row) - current) / step for row in np.eye(len(theta))], axis=1
        )
        before = float(current @ current)
        for _ in range(6):
            normal = jacobian.T @ jacobian
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -jacobian.T @ current)
            trial = residuals(theta + move)
            if trial @ trial < before:
                theta, current, damping = theta + move, trial, damping / 5
                break
            damping *= 4
        if before - float(current @ current) < 1e-4 * before:
            break
    return theta


def report(cases: list[Case], logs: np.ndarray, title: str) -> None:
    """Median absolute error and bias by kind, engine and source."""
    print(f"\n{title}")
    rows: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for case, value in zip(cases, logs, strict=True):
        for key in ((case.kind.value, "all"), (case.kind.value, case.row.source_id, case.row.engine)):
            rows[key].append(value)
    for key in sorted(rows):
        values = np.exp(np.array(rows[key])) - 1
        low, high = np.quantile(values, [0.1, 0.9])
        print(
            f"{' | '.join(key):60s} n={len(values):4d} median|e|={np.median(np.abs(values)):6.1%}"
            f" bias={np.median(values):+6.1%} p10={low:+.0%} p90={high:+.0%}"
        )


def main() -> None:
    """Fit on everything, then without each source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=DATA)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true", help="no leave-one-source-out")
    arguments = parser.parse_args()
    cases, _ = resolve_cases(load_measurements(arguments.file).rows)
    cases = [case for case in cases if not case.row.flags]
    cases = [case for case, usable in zip(cases, features_of(cases).usable, strict=True) if usable]
    features = features_of(cases)
    measured = np.array([case.row.seconds for case in cases])
    weight = weights(cases)
    everything = np.ones(len(cases), dtype=bool)
    theta = fit(features, measured, everything, weight)
    logs = np.log(predict(features, cal.Calibration(table(theta))) / measured)
    if arguments.quick:
        report(cases, logs, "fitted on everything")
        return
    held = np.zeros(len(cases))
    sources = np.array([case.row.source_id for case in cases])
    for source in sorted(set(sources)):
        out = sources == source
        without = fit(features, measured, ~out, weight)
        held[out] = np.log(predict(features, cal.Calibration(table(without)))[out] / measured[out])
    widths = {kind: interval(cases, held, members) for kind, members in WIDTHS_OF.items()}
    rows = [*accuracy(cases, held, widths, sources)]
    report(cases, logs, "fitted on everything")
    report(cases, held, "leave one source out")
    text = "\n".join(rows)
    print(text)
    if arguments.write:
        write_table(theta, widths, cases, arguments.file)
        write_docs(text, theta)


# Which rows the width of each kind of figure is taken from.
WIDTHS_OF = {
    "decode, batch 1": (Kind.DECODE_1,),
    "decode, batched": (Kind.DECODE, Kind.SERVED_TPOT),
    "prefill": (Kind.PREFILL,),
    "TTFT, queued": (Kind.SERVED_TTFT,),
}


def interval(cases: list[Case], held: np.ndarray, kinds: tuple[Kind, ...]) -> tuple[float, float]:
    """Logarithms of low and high over mid: measured over predicted, 10 % and 90 % of the held-out rows."""
    chosen = np.array([case.kind in kinds for case in cases])
    low, high = np.quantile(-held[chosen], [COVERAGE[0], COVERAGE[1]])
    return round(float(min(low, -0.03)), 4), round(float(max(high, 0.03)), 4)


# A little wider than 80 % of these rows, so that a source that was not among them finds 80 %.
COVERAGE = (0.065, 0.935)


def accuracy(
    cases: list[Case], held: np.ndarray, widths: dict[str, tuple[float, float]], sources: np.ndarray
) -> list[str]:
    """The table of the accuracy page: one line per kind and source, predicted without that source."""
    lines = [
        "| figure | left-out source | engine | rows | median abs. error | bias | within | by others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, kinds in WIDTHS_OF.items():
        low, high = widths[name]
        chosen = np.array([case.kind in kinds for case in cases])
        keys = sorted(
            {(case.row.source_id, case.row.engine) for case, one in zip(cases, chosen, strict=True) if one}
        )
        for key in [("all", ""), *keys]:
            own = chosen & np.array(
                [key[0] == "all" or (c.row.source_id, c.row.engine) == key for c in cases]
            )
            error = np.exp(held[own]) - 1
            inside = np.mean((-held[own] >= low) & (-held[own] <= high))
            blind = within_width_of_others(held, chosen, own, sources)
            lines.append(
                f"| {name} | {key[0]} | {key[1]} | {own.sum()} | {np.median(np.abs(error)):.1%} |"
                f" {np.median(error):+.1%} | {inside:.0%} | {blind} |"
            )
    return lines


def within_width_of_others(held: np.ndarray, chosen: np.ndarray, own: np.ndarray, sources: np.ndarray) -> str:
    """Share of rows within the interval that the errors of the other sources alone would give."""
    hits = rows = 0
    for source in sorted(set(sources[own])):
        others = chosen & (sources != source)
        if not others.any():
            return "no other"
        low, high = np.quantile(-held[others], COVERAGE)
        mine = own & (sources == source)
        hits += int(((-held[mine] >= low) & (-held[mine] <= high)).sum())
        rows += int(mine.sum())
    return f"{hits / rows:.0%}"


def write_table(
    theta: np.ndarray, widths: dict[str, tuple[float, float]], cases: list[Case], file: Path
) -> None:
    """analysis/data/calibration.json, figures to four digits."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: short(inner) for name, inner in value.items()}
        return float(f"{value:.4g}")

    document = {
        "schema": "rooflens.calibration/1",
        "provenance": {
            "script": "benchmarks/fit_estimates.py",
            "data": "tests/data/measurements/measurements.csv",
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "rows": len(cases),
            "sources": dict(sorted(Counter(case.row.source_id for case in cases).items())),
            "engines": dict(sorted(Counter(case.row.engine for case in cases).items())),
        },
        **short(table(theta)),
        "measured": MEASURED,
        "widths": {name: list(pair) for name, pair in widths.items()},
    }
    cal.TABLE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# A probed device: what kernels of engines reach of the roof that the probe measured (itself 0.85 to 0.93 of
# the data sheet), and the share of the interval's width that is left. Assumed, not fitted.
MEASURED = {"bandwidth": 0.92, "compute": 0.85, "width": 0.75}
BEGIN, END = "<!-- generated by benchmarks/fit_estimates.py -->", "<!-- end -->"


def write_docs(rows: str, theta: np.ndarray) -> None:
    """The generated part of docs/accuracy.md."""
    page = ROOT / "docs" / "accuracy.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    fitted = table(theta)
    shares = [
        "| kind of device | bandwidth share | matrix-multiply share | start of a kernel |",
        "|---|---|---|---|",
    ]
    for name, values in fitted["devices"].items():
        shares.append(
            f"| {name} | {values['bandwidth']:.2f} | {values['compute']:.2f} |"
            f" {values['launch_s'] * 1e6:.1f} us |"
        )
    text = "\n".join([BEGIN, "", rows, "", *shares, "", END])
    page.write_text(before + text + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
