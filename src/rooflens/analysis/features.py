"""Many measurements as arrays: every operator of every step, so that all are predicted in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rooflens.analysis.calibration import Calibration, device_class, engine_class, format_class, link_class
from rooflens.analysis.cases import Case, Term, groups
from rooflens.analysis.communication import collectives, communication_bytes, group_size
from rooflens.analysis.kernels import (
    KINDS,
    KernelRates,
    Load,
    load_seconds,
    loads,
    reduce_seconds,
    step_seconds,
)
from rooflens.analysis.parallelism import rank_specs
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Phase, Step, decode_step, step_ops
from rooflens.analysis.workload import device_rates
from rooflens.errors import UnsupportedError

Array = np.ndarray[Any, Any]
Setting = tuple[str, str, str, str]

# No arithmetic bound where a device's peak is unknown.
_NO_PEAK = 1e30


@dataclass(frozen=True)
class Features:
    """``columns`` hold one value per operator row, ``terms`` one per step, ``usable`` one per case."""

    settings: tuple[Setting, ...]
    columns: dict[str, dict[str, Array]]
    terms: dict[str, Array]
    cases: int
    usable: Array


def case_roof(case: Case) -> tuple[Roof, bool]:
    """The roof a case runs under, and whether the device's peak is known."""
    probe = step_ops(case.spec, decode_step(sequences=1, context=1), kv_dtype=case.kv_dtype)
    try:
        return device_rates(case.spec, case.device, probe, strict=False, engine=case.row.engine).roof, True
    except UnsupportedError:
        dtypes = {op.compute_dtype for op in probe}
        return Roof(dict.fromkeys(dtypes, _NO_PEAK), case.device.bandwidth()), False


def term_step(terms: Sequence[Term]) -> Step:
    """All terms as one step of arrays."""
    sequences = np.array([term.sequences for term in terms], dtype=float)
    new_tokens = np.array([term.new_tokens for term in terms], dtype=float)
    context = np.array([term.context for term in terms], dtype=float)
    return Step(Phase.DECODE, sequences, new_tokens, context, sequences)


def features_of(cases: Sequence[Case]) -> Features:
    """The arrays of ``cases``. A case whose device has no known peak is usable only for decode."""
    settings: dict[Setting, int] = {}
    parts: dict[str, list[dict[str, Array]]] = {kind: [] for kind in KINDS}
    term_parts: list[dict[str, Array]] = []
    usable = np.ones(len(cases), dtype=bool)
    offset = 0
    for indices in groups(cases).values():
        first = cases[indices[0]]
        roof, known = case_roof(first)
        owners, terms = zip(*((i, term) for i in indices for term in cases[i].terms), strict=True)
        if not known:
            for i in indices:
                usable[i] = all(term.new_tokens == 1 for term in cases[i].terms)
        step = term_step(terms)
        count = len(terms)

        def full(values: Any, count: int = count) -> Array:
            return np.broadcast_to(np.asarray(values, dtype=float), (count,))

        setting = np.array(
            [
                settings.setdefault(
                    (
                        device_class(first.device),
                        engine_class(cases[i].row.engine, device_class(first.device)),
                        format_class(first.spec),
                        link_class(first.device),
                    ),
                    len(settings),
                )
                for i in owners
            ]
        )
        launches = 0
        for stage in rank_specs(first.spec, first.layout):
            ops = step_ops(stage, step, kv_dtype=first.kv_dtype)
            for load in loads(ops, roof, tokens=step.tokens):
                launches += load.count
                parts[load.kind].append(
                    {
                        "term": np.arange(offset, offset + count),
                        "setting": setting,
                        "count": full(load.count),
                        "compute_s": full(load.compute_s),
                        "weight_s": full(load.weight_s),
                        "kv_s": full(load.kv_s),
                        "activation_s": full(load.activation_s),
                        "rows": full(load.rows),
                    }
                )
        sent = communication_bytes(first.spec, first.layout, tokens=step.tokens)
        link = roof.link_bytes_per_s
        term_parts.append(
            {
                "case": np.array(owners),
                "setting": setting,
                "times": full([term.times for term in terms]),
                "role": np.array([term.role for term in terms]),
                "eager": full([float(term.new_tokens > 1) for term in terms]),
                "request": full(
                    [
                        float(
                            cases[i].row.metric == "ttft_ms" and cases[i].row.output_tokens > 1 and not t.role
                        )
                        for i, t in zip(owners, terms, strict=True)
                    ]
                ),
                "sequences": full(step.sequences),
                "launches": full(launches),
                "reduces": full(collectives(first.spec, first.layout)),
                "sent_s": full(sent / link if link else 0 * sent),
                "devices": full(group_size(first.layout)),
            }
        )
        offset += count
    columns = {
        kind: {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        for kind, found in parts.items()
        if found
    }
    terms_all = {name: np.concatenate([part[name] for part in term_parts]) for name in term_parts[0]}
    return Features(tuple(settings), columns, terms_all, len(cases), usable)


def _taken(rates: Sequence[Any], setting: Array) -> Any:
    """One object whose fields are arrays: each row's own."""
    kind = type(rates[0])
    return kind(
        **{
            name: np.array([getattr(one, name) for one in rates])[setting]
            for name in kind.__dataclass_fields__
        }
    )


def predict(features: Features, calibration: Calibration) -> Array:
    """Likely seconds of every case."""
    kernel = [
        calibration.kernel_rates(device, engine, weights) for device, engine, weights, _ in features.settings
    ]
    engines = [calibration.engine_rates(engine) for _, engine, _, _ in features.settings]
    links = [calibration.link_rates(link) for _, _, _, link in features.settings]
    terms = features.terms
    busy = np.zeros(len(terms["case"]))
    for kind, column in features.columns.items():
        rates: KernelRates = _taken(kernel, column["setting"])
        load = Load(
            kind=kind,
            count=1,
            compute_s=column["compute_s"],
            weight_s=column["weight_s"],
            kv_s=column["kv_s"],
            activation_s=column["activation_s"],
            rows=column["rows"],
        )
        busy += np.bincount(column["term"], load_seconds(load, rates) * column["count"], minlength=len(busy))
    link, engine = _taken(links, terms["setting"]), _taken(engines, terms["setting"])
    sent_s = reduce_seconds(
        reduces=terms["reduces"],
        sent_s=terms["sent_s"],
        devices=terms["devices"],
        share=link.share,
        latency_s=link.latency_s,
        crowding=link.crowding,
    ) * (terms["devices"] > 1)
    seconds = step_seconds(
        busy,
        launches=terms["launches"],
        eager=terms["eager"],
        enqueue_s=engine.enqueue_s,
        host_s=engine.host_s,
        host_per_sequence_s=engine.host_per_sequence_s,
        sequences=terms["sequences"],
        communication_s=sent_s,
    )
    general = calibration.table["general"]
    share = np.where(
        terms["role"] == "mix", general["mix"], np.where(terms["role"] == "queue", general["queue"], 1.0)
    )
    total = seconds * terms["times"] * share + engine.request_s * terms["request"]
    return np.bincount(terms["case"], total, minlength=features.cases)
