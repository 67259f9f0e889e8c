"""From a profile to accounts: steps of one kind, averaged, beside the prediction for exactly these steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from rooflens.analysis.engines.native import BLOCK_TOKENS
from rooflens.analysis.roofline import Roof
from rooflens.explain import Account, MeasuredModule, MeasuredStep, account
from rooflens.measure.statistics import median, percentile, summarize
from rooflens.models.spec import ModelSpec
from rooflens.runtime.batch import Chunk, StepBatch
from rooflens.runtime.engine.records import Work
from rooflens.runtime.kernels.steps import StepRunner
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.model import DecoderModel
from rooflens.runtime.profile.engine import EngineProfile, ProfiledStep
from rooflens.runtime.profile.modules import Overheads, count_dispatches
from rooflens.runtime.profile.predict import mean_ops

#: Steps left out of the averages: slowest and fastest quarter, which a busy machine and first uses make.
_MIDDLE = (0.25, 0.75)


class ProfiledBackend(Protocol):
    """What an account needs of a backend; ``NativeBackend`` has it."""

    spec: ModelSpec
    model: DecoderModel
    kv_dtype: str
    device: torch.device

    @property
    def runner(self) -> StepRunner | None:
        """What runs whole steps, if anything does."""
        ...

    def new_cache(self, *, blocks: int) -> PagedKVCache:
        """A cache to try things in."""
        ...


def alike(profile: EngineProfile, phase: str) -> list[ProfiledStep]:
    """The steps of ``phase`` that can be averaged: of equal shape, and of the shape that took the most time.

    The shape is the number of sequences, and for prefills the number of tokens too; shapes with timed modules
    go first. Steps without are among them too, steps that check guesses are not.
    """
    groups: dict[tuple[int, int], list[ProfiledStep]] = defaultdict(list)
    for step in profile.steps:
        record = step.record
        if record.phase == phase and not record.drafted_tokens:
            tokens = record.prefill_tokens if phase == "prefill" else 0
            groups[len(record.work), tokens].append(step)
    timed = [steps for steps in groups.values() if any(step.modules is not None for step in steps)]
    return max(
        timed or groups.values(), key=lambda steps: sum(step.record.clock_s for step in steps), default=[]
    )


def measured_step(
    steps: Sequence[ProfiledStep],
    overheads: Overheads,
    dispatches: Mapping[str, int],
    *,
    containers: int,
    one_call: bool = False,
) -> tuple[MeasuredStep, list[tuple[Work, ...]]]:
    """The mean of ``steps`` (of their middle half by the clock), and the work of those in it.

    Steps whose modules were timed are taken, if there are any, and the others tell what timing costs.
    ``dispatches``: framework calls by operator name; ``containers``: modules called that are not timed.
    ``one_call``: the modules' times come from one call, whose own start and end are then known too.
    """
    timed = [step for step in steps if step.modules is not None]
    plain = [step.record.clock_s for step in steps if step.modules is None]
    chosen = _middle(timed or list(steps))
    records = [step.record for step in chosen]
    count = len(chosen)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    around_s = 0.0
    for step in chosen:
        if step.modules is not None:
            around_s += step.modules.between_s / count if one_call else 0.0
            for name, (calls, seconds) in step.modules.by_operator().items():
                spent[name][0] += calls / count
                spent[name][1] += seconds / count

    def mean(*fields: str) -> float:
        return sum(getattr(record, field) or 0.0 for record in records for field in fields) / count

    modules = tuple(
        MeasuredModule(name, calls, seconds, dispatches.get(name, 0))
        for name, (calls, seconds) in spent.items()
    )
    work = [record.work for record in records]
    measured = MeasuredStep(
        phase=records[0].phase,
        steps=count,
        sequences=sum(len(items) for items in work) / count,
        new_tokens=sum(item.new_tokens for items in work for item in items) / count,
        context=sum(item.context for items in work for item in items) / sum(len(items) for items in work),
        clock_s=sum(record.clock_s for record in records) / count,
        model_s=mean("model_s"),
        sampling_s=mean("sample_s"),
        scheduling_s=mean("schedule_s", "prepare_s", "commit_s"),
        detokenisation_s=mean("detokenise_s"),
        drafting_s=mean("draft_s"),
        queues_s=mean("gap_s"),
        modules=modules,
        module_calls=sum(module.calls for module in modules) + containers,
        loose_dispatches=sum(number for name, number in dispatches.items() if name not in spent),
        dispatch_s=overheads.dispatch_s,
        module_call_s=overheads.module_call_s,
        timer_s=overheads.timer_s,
        around_call_s=around_s,
        whole_s=median(plain) if timed and plain else None,
        spread=summarize([step.record.clock_s for step in timed or steps]).spread,
    )
    return measured, work


def phase_account(
    backend: ProfiledBackend,
    profile: EngineProfile,
    phase: str,
    overheads: Overheads,
    roof: Roof,
    *,
    whole: bool = False,
) -> Account | None:
    """The account of a profile's steps of ``phase``; None if there were none.

    ``whole``: of the steps that ran as they always do, captured or compiled where the backend does that.
    """
    steps = alike(profile, phase)
    if whole:
        steps = [step for step in steps if step.modules is None]
    if not steps:
        return None
    example = steps[len(steps) // 2].record.work
    containers = container_calls(backend.model)
    one_call = in_one_call(backend, example)
    if one_call:
        # Nothing of the framework is called, and a module's time comes without looking at it.
        dispatches: dict[str, int] = {}
        overheads, containers = Overheads(0.0, 0.0, 0.0), 0
    else:
        dispatches = count_step_dispatches(backend, example)
    measured, work = measured_step(steps, overheads, dispatches, containers=containers, one_call=one_call)
    return account(mean_ops(backend.spec, work, kv_dtype=backend.kv_dtype), measured, roof)


def in_one_call(backend: ProfiledBackend, work: Sequence[Work]) -> bool:
    """Whether steps that do ``work`` are one call that tells the modules' times by itself."""
    runner = backend.runner
    if runner is None or not runner.times_modules:
        return False
    return runner.takes(example_batch(backend, work))


def count_step_dispatches(backend: ProfiledBackend, work: Sequence[Work]) -> dict[str, int]:
    """Framework calls of a step that does ``work``, by operator name; run once, in a cache of its own."""
    batch = example_batch(backend, work)
    cache = backend.new_cache(blocks=batch.block_tables.shape[1])
    return count_dispatches(backend.model, lambda: backend.model(batch, cache))


def example_batch(backend: ProfiledBackend, work: Sequence[Work]) -> StepBatch:
    """A step that does ``work`` in the first blocks of a cache."""
    longest = max(item.context + item.new_tokens for item in work)
    table = list(range(-(-longest // BLOCK_TOKENS)))
    # All sequences share the blocks: what they compute is nonsense, how many calls it takes is not.
    chunks = [Chunk([0] * item.new_tokens, item.context, table, item.sampled) for item in work]
    return StepBatch.build(chunks, device=backend.device)


def container_calls(model: nn.Module) -> int:
    """Modules that a pass calls and that only call others."""
    return sum(
        1 for module in model.modules() if any(module.children()) and not isinstance(module, nn.ModuleList)
    )


def _middle(steps: Sequence[ProfiledStep]) -> list[ProfiledStep]:
    clocks = [step.record.clock_s for step in steps]
    low, high = (percentile(clocks, share) for share in _MIDDLE)
    return [step for step, clock in zip(steps, clocks, strict=True) if low <= clock <= high] or list(steps)
