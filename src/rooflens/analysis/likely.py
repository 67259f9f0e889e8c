"""The likely time of a whole step of a model cut over devices: its stages, collectives and host."""

from __future__ import annotations

from collections.abc import Sequence

from rooflens.analysis.communication import DEFAULT_NETWORK, Network, traffic
from rooflens.analysis.estimate import Setting, estimate_s
from rooflens.analysis.numeric import Quantity
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Op, Step, step_ops
from rooflens.models.spec import ModelSpec


def likely_step_s(
    spec: ModelSpec,
    layout: Layout,
    roof: Roof,
    setting: Setting,
    step: Step,
    *,
    kv_dtype: str,
    eager: bool,
    chunks: Quantity = 1,
    network: Network | None = None,
    stage_ops: Sequence[tuple[Op, ...]] | None = None,
) -> Quantity:
    """Likely seconds of a step that goes through all pipeline stages, one after the other.

    ``step`` is what one data-parallel replica runs; ``chunks`` as in ``estimate_s``. ``stage_ops`` are the
    operators of each stage where they are at hand. Raises InputError where the layout does not fit the model.
    """
    sent = traffic(spec, layout, network or DEFAULT_NETWORK, tokens=step.tokens)
    if stage_ops is None:
        stages = rank_specs(spec, layout)
        stage_ops = [step_ops(stage, step, kv_dtype=kv_dtype) for stage in stages]
    total: Quantity = 0.0
    for ops in stage_ops:
        total = total + estimate_s(
            ops,
            roof,
            setting,
            tokens=step.tokens,
            sequences=step.sequences,
            eager=eager,
            chunks=chunks,
            traffic=sent,
            network=network,
        )
    return total
