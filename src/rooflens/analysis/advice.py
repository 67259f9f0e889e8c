"""Ranked advice: every technique tried on the case at hand, with its predicted gain, or that it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rooflens.analysis import advice_devices as of_devices
from rooflens.analysis import advice_steps as of_steps
from rooflens.analysis.advice_case import LEAST_GAIN, Advice, Case
from rooflens.analysis.advice_steps import FORMATS
from rooflens.analysis.plan import Plan
from rooflens.errors import RooflensError

__all__ = ["FORMATS", "LEAST_GAIN", "Advice", "advise"]

_TECHNIQUES: tuple[Callable[[Case], Advice | None], ...] = (
    of_steps.weights, of_steps.cache, of_steps.batching, of_steps.speculation, of_steps.look_up,
    of_steps.chunking, of_steps.prefix, of_steps.graphs, of_steps.fused_attention, of_devices.experts,
    of_devices.host_experts, of_devices.offload, of_devices.nvme, of_devices.device, of_devices.layout,
    of_devices.other_layout, of_devices.split,
)  # fmt: skip


def advise(plan: Plan) -> tuple[Advice, ...]:
    """Every technique on the plan's case: those that gain first, the largest gain first; where
    the plan does not fit, those that make it fit before the others.

    A technique that the model, the device or the engine cannot have is left out.
    """
    if plan.spec.free_form is not None:
        return ()
    found = list(_tried(Case(plan)))
    runs_not = plan.fits is False

    def order(one: Advice) -> tuple[bool, bool, float]:
        return not one.gains, runs_not and one.fits is not True, -one.rank

    return tuple(sorted(found, key=order))


def _tried(case: Case) -> Iterator[Advice]:
    for technique in _TECHNIQUES:
        try:
            made = technique(case)
        except RooflensError:
            continue  # not possible here: the shapes, formats or figures refuse it
        if made is not None:
            yield made
