"""What a step consists of: the operators of one device, those of equal layers in one row."""

from __future__ import annotations

from typing import Any

from rooflens import api
from rooflens.analysis.costs import Cost
from rooflens.analysis.parallelism import rank_specs
from rooflens.analysis.plan import Plan
from rooflens.analysis.roofline import Roof, time_ops
from rooflens.analysis.step import Op, Step, decode_step, prefill_step, step_ops
from rooflens.web.bodies import CaseBody
from rooflens.web.settings import WebSettings
from rooflens.web.sources import device_of, plan_settings, required_model

Document = dict[str, Any]


def operators_answer(body: CaseBody, settings: WebSettings) -> Document:
    """The operators of both phases on one device (of the first pipeline stage), the costliest first."""
    model, device = required_model(body, settings), device_of(body, settings)
    plan = api.plan(model, device, **plan_settings(body), remedies=False)
    work = plan.workload
    steps = {
        "prefill": prefill_step(sequences=work.replica_batch, prompt=work.prompt),
        "decode": decode_step(sequences=work.replica_batch, context=work.context),
    }
    return {
        "schema": "rooflens.operators/1",
        **{phase: _rows(plan, step) for phase, step in steps.items()},
    }


def _rows(plan: Plan, step: Step) -> list[Document]:
    stage = rank_specs(plan.spec, plan.workload.layout)[0]
    groups: dict[str, list[Op]] = {}
    for op in step_ops(stage, step, kv_dtype=plan.workload.kv_dtype):
        groups.setdefault(op.name, []).append(op)
    rows = [_row(name, ops, plan.rates.roof) for name, ops in groups.items()]
    return sorted(rows, key=lambda row: -float(row["bound_s"]))


def _row(name: str, ops: list[Op], roof: Roof) -> Document:
    cost = sum((op.total for op in ops), Cost())
    times = time_ops(ops, roof)
    return {
        "name": name,
        "count": sum(op.count for op in ops),
        "compute_dtype": ops[0].compute_dtype,
        "flops": float(cost.flops),
        "weight_bytes": float(cost.weight_bytes),
        "kv_bytes": float(cost.kv_read_bytes) + float(cost.kv_write_bytes),
        "compute_s": float(times.compute_s),
        "memory_s": float(times.memory_s),
        "bound_s": float(times.bound_s),
    }
