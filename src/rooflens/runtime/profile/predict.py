"""The prediction for a step as the engine ran it: ragged, prompts and decodes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from rooflens.analysis.costs import Cost
from rooflens.analysis.step import Op, Phase, Step, step_ops
from rooflens.models.spec import ModelSpec
from rooflens.runtime.engine.records import Work

#: The operators that depend on each sequence's own length; all others only on the step's tokens.
_PER_SEQUENCE = ".core"


def ops_of(spec: ModelSpec, work: Sequence[Work], *, kv_dtype: str) -> tuple[Op, ...]:
    """The operators of a step that does ``work``; exact for any mix of lengths.

    Matrix multiplies count the tokens of all sequences together, attention each sequence by itself.
    """
    phase = Phase.PREFILL if any(item.prefill for item in work) else Phase.DECODE
    tokens = sum(item.new_tokens for item in work)
    sampled = sum(item.sampled for item in work)
    together = step_ops(spec, Step(phase, 1, tokens, 0, sampled), kv_dtype=kv_dtype)
    if len(work) == 1:
        alone = Step(phase, 1, tokens, work[0].context, sampled)
        return step_ops(spec, alone, kv_dtype=kv_dtype)
    new = np.array([item.new_tokens for item in work], dtype=np.int64)
    context = np.array([item.context for item in work], dtype=np.int64)
    apart = step_ops(spec, Step(phase, 1, new, context, 0), kv_dtype=kv_dtype)
    return tuple(
        replace(whole, cost=_summed(each.cost)) if whole.name.endswith(_PER_SEQUENCE) else whole
        for whole, each in zip(together, apart, strict=True)
    )


def mean_ops(spec: ModelSpec, steps: Sequence[Sequence[Work]], *, kv_dtype: str) -> tuple[Op, ...]:
    """The operators of the mean of several steps: each cost is the mean of theirs."""
    total: tuple[Op, ...] | None = None
    for work in steps:
        ops = ops_of(spec, work, kv_dtype=kv_dtype)
        if total is None:
            total = ops
        else:
            total = tuple(
                replace(a, cost=a.cost + b.cost, expected_weight_bytes=_plus(a, b))
                for a, b in zip(total, ops, strict=True)
            )
    if total is None:
        raise ValueError("the mean of no steps")
    share = 1 / len(steps)
    return tuple(
        replace(
            op,
            cost=op.cost * share,
            expected_weight_bytes=None
            if op.expected_weight_bytes is None
            else op.expected_weight_bytes * share,
        )
        for op in total
    )


def _plus(a: Op, b: Op) -> Any:
    if a.expected_weight_bytes is None or b.expected_weight_bytes is None:
        return None
    return a.expected_weight_bytes + b.expected_weight_bytes


def _summed(cost: Cost) -> Cost:
    return Cost(**{field.name: _sum(getattr(cost, field.name)) for field in fields(Cost)})


def _sum(value: Any) -> Any:
    return value.sum().item() if isinstance(value, np.ndarray) else value
