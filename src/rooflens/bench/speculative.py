"""Speculative decoding, measured: with and without guesses in turn, beside the plan's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from rooflens.analysis.engines.native import BLOCK_TOKENS
from rooflens.analysis.plan import Plan, plan_spec
from rooflens.analysis.roofline import time_ops
from rooflens.analysis.speculation import StepCosts, gain_factors
from rooflens.analysis.step import Phase, Step, step_ops
from rooflens.analysis.techniques import Draft, guess_cost_share, verifying_step_s
from rooflens.analysis.workload import make_workload
from rooflens.bench.answers import answers_of
from rooflens.bench.cases import SpeculativeCase
from rooflens.bench.equal import check_equal
from rooflens.bench.prompts import random_prompt
from rooflens.bench.texts import Text, prompts_of
from rooflens.hardware.device import Device
from rooflens.measure.statistics import median, summarize
from rooflens.models.inspection import inspect_spec
from rooflens.runtime.backend import NativeBackend
from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.engine.records import StepRecord
from rooflens.runtime.engine.settings import EngineSettings
from rooflens.runtime.engine.speculative import DraftModel, PromptLookup
from rooflens.runtime.profile.engine import EngineProfiler
from rooflens.runtime.profile.guessing import Guessing, read_guessing

#: Steps of one kind whose median is told.
_FEWEST = 3


def run_speculative(
    backend: NativeBackend, case: SpeculativeCase, *, device: Device | None, draft: NativeBackend | None
) -> dict[str, Any]:
    """The figures of one case: equal answers first, then both ways of decoding in turn, prompt by prompt.

    Rates count steps that only decode, guessing included. ``device``: whose prediction stands beside them,
    None for none. Raises as ``run_case``.
    """
    prompts = _prompts(backend, case)
    runs = _Runs(backend, case, draft)
    # First uses of kernels and memory, too.
    plain, guessed = (runs.answers(prompts, guess=guess) for guess in (False, True))
    equality = check_equal(backend, prompts, plain, guessed)
    samples: dict[bool, list[float]] = {False: [], True: []}
    steps: dict[bool, list[StepRecord]] = {False: [], True: []}
    groups = [prompts[start : start + case.batch] for start in range(0, len(prompts), case.batch)]
    for number in range(case.rounds):
        own: dict[bool, list[StepRecord]] = {False: [], True: []}
        for place, group in enumerate(groups):
            # The first of a pair changes, so that a change of the machine meets both.
            for guess in (False, True) if (number + place) % 2 == 0 else (True, False):
                own[guess] += runs.steps(group, guess=guess)
        for guess, records in own.items():
            steps[guess] += records
            samples[guess].append(sum(r.output_tokens for r in records) / sum(r.clock_s for r in records))
    gains = [after / before for before, after in zip(samples[False], samples[True], strict=True)]
    figures: dict[str, Any] = {
        "answers": equality.answers,
        "answers_equal": equality.equal,
        "tie_gap": equality.gap,
        **_spread("plain_tokens_per_s", samples[False]),
        **_spread("tokens_per_s", samples[True]),
        **_spread("gain", gains),
        "samples": {"plain_tokens_per_s": samples[False], "tokens_per_s": samples[True]},
    }
    found = read_guessing(steps[True])
    plain_s = median([record.clock_s for record in steps[False] if len(record.work) == case.batch])
    context = round(sum(map(len, prompts)) / len(prompts) + case.output / 2)
    predicted = None if device is None else _predict(backend, case, device, draft, context=context)
    return figures | _beside(case, found, steps[True], plain_s, predicted, gain=figures["gain"])


def _prompts(backend: NativeBackend, case: SpeculativeCase) -> list[list[int]]:
    if backend.tokenizer is None:
        vocabulary = backend.spec.vocab_size
        return [random_prompt(vocabulary, tokens=case.prompt, seed=index) for index in range(case.requests)]
    text = cast(Text, case.text)
    return prompts_of(text, backend.tokenizer, count=case.requests, limit=case.prompt)


class _Runs:
    """The same prompts through a new engine each time."""

    def __init__(self, backend: NativeBackend, case: SpeculativeCase, draft: NativeBackend | None) -> None:
        self.backend, self.case, self.draft = backend, case, draft
        if draft is not None:
            longest = case.prompt + case.output + case.guesses
            draft.cache = draft.new_cache(blocks=case.batch * -(-longest // BLOCK_TOKENS) + 1)

    def _engine(self, *, guess: bool) -> Engine:
        tokens = self.case.guesses
        proposer = None
        if guess and self.draft is not None:
            proposer = DraftModel(self.draft, target=self.backend, tokens=tokens)
        settings = EngineSettings(max_sequences=self.case.batch, prefix_caching=False, synchronize=True)
        lookup = PromptLookup(tokens=tokens) if guess and self.draft is None else None
        return Engine(self.backend, settings, proposer=proposer or lookup)

    def answers(self, prompts: Sequence[Sequence[int]], *, guess: bool) -> list[tuple[int, ...]]:
        engine = self._engine(guess=guess)
        return [answer.token_ids for answer in answers_of(engine, prompts, output=self.case.output)]

    def steps(self, prompts: Sequence[Sequence[int]], *, guess: bool) -> list[StepRecord]:
        engine, profiler = self._engine(guess=guess), EngineProfiler()
        engine.observers.append(profiler)
        answers_of(engine, prompts, output=self.case.output)
        records = [step.record for step in profiler.profile().steps]
        return [record for record in records if record.phase == "decode"]


def _spread(name: str, samples: Sequence[float]) -> dict[str, float]:
    found = summarize(samples)
    return {name: found.median, f"{name}_p10": found.p10, f"{name}_p90": found.p90}


@dataclass(frozen=True)
class _Predicted:
    """Likely costs of a step, and the bounds of a plain and a verifying one. Seconds."""

    costs: StepCosts
    plain_bound_s: float
    verify_bound_s: float


def _predict(
    backend: NativeBackend,
    case: SpeculativeCase,
    device: Device,
    draft: NativeBackend | None,
    *,
    context: int,
) -> _Predicted:
    """What ``rooflens plan`` says of this case on ``device``."""
    plan = _plan(backend, case, device, context=context)
    rows = case.guesses + 1
    step = Step(Phase.DECODE, case.batch, rows, context, case.batch * rows)
    ops = step_ops(plan.spec, step, kv_dtype=plan.workload.kv_dtype)
    plain_s = float(plan.decode.estimate.mid)
    share = 0.0 if draft is None else guess_cost_share(plan, _plan(draft, case, device, context=context))
    return _Predicted(
        StepCosts(plain_s, verifying_step_s(plan, case.batch, rows), case.guesses * share * plain_s),
        float(plan.decode.bound_s),
        float(time_ops(ops, plan.rates.roof).bound_s),
    )


def _plan(backend: NativeBackend, case: SpeculativeCase, device: Device, *, context: int) -> Plan:
    work = make_workload(
        backend.spec,
        batch=case.batch,
        prompt=case.prompt,
        output=case.output,
        context=context,
        engine="rooflens",
        kv_dtype=backend.kv_dtype,
    )
    inspection = inspect_spec(backend.spec, kv_dtype=backend.kv_dtype)
    return plan_spec(backend.spec, device, work, inspection=inspection, strict=False, remedies=False)


def _beside(
    case: SpeculativeCase,
    found: Guessing | None,
    steps: Sequence[StepRecord],
    plain_s: float,
    predicted: _Predicted | None,
    *,
    gain: float,
) -> dict[str, Any]:
    """Acceptance, step times and gains, measured and predicted, and the factors between the gains."""
    chance, offered = (0.0, 0.0) if found is None else (found.chance, found.offered)
    draft = Draft(case.guesses, chance, offered=offered)
    full = [record for record in steps if _checks_all(record, case)]
    verify_s = median([r.clock_s - r.draft_s for r in full]) if len(full) >= _FEWEST else None
    measured = StepCosts(plain_s, verify_s, 0.0 if found is None else found.draft_step_s)
    tokens_per_step = 1.0 if found is None else found.tokens_per_step
    row: dict[str, Any] = {
        "proposed": 0 if found is None else found.drafted_tokens,
        "accepted": 0 if found is None else found.accepted_tokens,
        "acceptance": None if found is None else found.acceptance,
        "chance": None if found is None else found.chance,
        "offered": offered,
        "tokens_per_step": tokens_per_step,
        "plain_step_s": plain_s,
        "verify_step_s": verify_s,
        "draft_step_s": None if found is None else found.draft_step_s,
        "gain_of_measured_steps": measured.gain(draft),
    }
    names = (
        "gain_predicted", "plain_predicted_s", "verify_predicted_s", "draft_predicted_s", "plain_bound_s",
        "verify_bound_s", "factor_tokens", "factor_verify", "factor_draft", "factor_rest",
    )  # fmt: skip
    if predicted is None:
        return row | dict.fromkeys(names)
    costs = predicted.costs
    factors = gain_factors(
        draft, gain=gain, tokens_per_step=tokens_per_step, predicted=costs, measured=measured
    )
    values = (
        costs.gain(draft), costs.plain_s, costs.verify_s, costs.guesses_s, predicted.plain_bound_s,
        predicted.verify_bound_s, factors.tokens, factors.verify, factors.draft, factors.rest,
    )  # fmt: skip
    return row | dict(zip(names, values, strict=True))


def _checks_all(record: StepRecord, case: SpeculativeCase) -> bool:
    """Whether every sequence of a full batch has all the guesses that there may be."""
    return len(record.work) == case.batch and all(share.drafted == case.guesses for share in record.work)
