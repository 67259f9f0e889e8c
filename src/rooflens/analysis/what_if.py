"""Techniques by name, one after the other on a plan: what each adds, and what all of them come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rooflens.analysis import techniques as of
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.plan import Plan
from rooflens.analysis.techniques import Draft, Outcome, Scenario, Technique, evaluate, scenario_of
from rooflens.errors import InputError
from rooflens.hardware.catalogue import find_device
from rooflens.units import parse_bytes

FORMS: dict[str, str] = {
    "weights=FORMAT": "weights in another format",
    "kv=TYPE": "the KV cache in another type",
    "batch=N": "another number of sequences",
    "chunk=N": "prefills in chunks of at most N tokens",
    "prefix=SHARE": "so much of every prompt is cached",
    "draft=K:ACCEPTANCE[:COST]": "K guesses of a draft model, right with a probability, at a share of a step",
    "ngram=K:ACCEPTANCE": "K guesses from the text so far",
    "tp=N, pp=N, ep=N, dp=N": "another layout, as tp=2,dp=4",
    "device=NAME": "another device",
    "split": "prefills on a second pool of the same size",
    "offload=SIZE": "so much of the weights in the host's memory",
    "nvme=SIZE": "so much of the weights on a drive",
    "experts=host": "routed experts in the host's memory",
    "eager": "kernels of decode started one by one, no graphs",
    "unfused": "attention scores through memory",
}


@dataclass(frozen=True)
class Step:
    """One technique more: the outcome with it and all before it, and its gains over the step before."""

    technique: str
    outcome: Outcome
    throughput_gain: float
    tpot_gain: float
    ttft_gain: float
    memory_saved_bytes: int

    @property
    def gains(self) -> bool:
        """Whether it is worth anything here."""
        best = max(self.throughput_gain, self.tpot_gain, self.ttft_gain)
        return best > 1.02 or self.memory_saved_bytes > 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "technique": self.technique,
            **_outcome(self.outcome),
            "throughput_gain": self.throughput_gain,
            "tpot_gain": self.tpot_gain,
            "ttft_gain": self.ttft_gain,
            "memory_saved_bytes": self.memory_saved_bytes,
            "gains": self.gains,
        }


@dataclass(frozen=True)
class WhatIf:
    """The plan as it is, and each technique added to it in turn."""

    now: Outcome
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"now": _outcome(self.now), "steps": [step.to_dict() for step in self.steps]}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "tpot_s": outcome.tpot_s,
        "ttft_s": outcome.ttft_s,
        "tokens_per_s": outcome.tokens_per_s,
        "stall_s": outcome.stall_s,
        "memory_bytes": outcome.memory_bytes,
        "fits": outcome.fits,
        "devices": outcome.devices,
    }


def what_if(plan: Plan, names: Sequence[str]) -> WhatIf:
    """Price a plan with techniques added one after the other.

    ``names`` are as in FORMS. Raises InputError for a name that is none, or what ``plan_spec`` raises where
    the model, device or layout cannot have it.
    """
    scenario = scenario_of(plan)
    before = now = evaluate(scenario, plan)
    steps = []
    for name in names:
        scenario = technique_of(name)(scenario)
        after = evaluate(scenario, plan)
        steps.append(
            Step(
                technique=name,
                outcome=after,
                throughput_gain=after.tokens_per_s / before.tokens_per_s,
                tpot_gain=before.tpot_s / after.tpot_s,
                ttft_gain=before.ttft_s / after.ttft_s,
                memory_saved_bytes=before.memory_bytes - after.memory_bytes,
            )
        )
        before = after
    return WhatIf(now, tuple(steps))


def technique_of(text: str) -> Technique:
    """The technique of a name such as ``weights=fp8`` or ``draft=4:0.7:0.1``. Raises InputError."""
    name, _, value = (part.strip() for part in text.partition("="))
    plain: dict[str, Technique] = {
        "split": of.split_phases,
        "eager": of.without_graphs,
        "unfused": of.without_fused_attention,
    }
    if name in plain and not value:
        return plain[name]
    if name in ("tp", "pp", "ep", "dp"):
        return _layout(text)
    made: dict[str, Callable[[str], Technique]] = {
        "weights": of.weights_as,
        "kv": of.cache_as,
        "batch": lambda given: of.batch_of(_whole(given, text)),
        "chunk": lambda given: of.chunks_of(_whole(given, text)),
        "prefix": lambda given: of.prefix_cached(_share(given, text)),
        "draft": lambda given: of.speculating(_draft(given, text, cost=0.1)),
        "ngram": lambda given: of.speculating(_draft(given, text, cost=0.0)),
        "device": lambda given: of.device_of(find_device(given)),
        "offload": lambda given: _offload(given, on_drive=False),
        "nvme": lambda given: _offload(given, on_drive=True),
        "experts": lambda given: _experts(given, text),
    }
    if name not in made or not value:
        raise InputError("technique is not known", value=text, allowed=", ".join(FORMS))
    return made[name](value)


def _layout(text: str) -> Technique:
    ways = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in ("tp", "pp", "ep", "dp"):
            raise InputError("layout is not known", value=text, allowed="tp=N, pp=N, ep=N, dp=N by commas")
        ways[name] = _whole(value, text)

    def laid_out(scenario: Scenario) -> Scenario:
        layout = Layout(**{"tp": 1, "pp": 1, "ep": 1, "dp": 1, **ways})
        if (layout.tp * layout.dp) % layout.ep:
            raise InputError(f"ep does not divide tp x dp = {layout.tp * layout.dp}", value=layout.ep)
        return replace(scenario, workload=replace(scenario.workload, layout=layout))

    return laid_out


def _offload(given: str, *, on_drive: bool) -> Technique:
    return partial(of.offloading, missing_bytes=parse_bytes(given, field="offload"), on_drive=on_drive)


def _experts(given: str, text: str) -> Technique:
    if given != "host":
        raise InputError("experts can be put in one place", value=text, allowed="experts=host")
    return of.with_host_experts


def _draft(given: str, text: str, *, cost: float) -> Draft:
    parts = given.split(":")
    if not 1 < len(parts) <= (3 if cost else 2):
        allowed = "draft=K:ACCEPTANCE[:COST]" if cost else "ngram=K:ACCEPTANCE"
        raise InputError("guesses are not usable", value=text, allowed=allowed)
    if len(parts) == 3:
        cost = _share(parts[2], text)
    return Draft(_whole(parts[0], text), _share(parts[1], text), cost)


def _whole(given: str, text: str) -> int:
    try:
        number = int(given)
    except ValueError:
        number = 0
    if number < 1:
        raise InputError("technique is not usable", value=text, allowed="a whole number from 1")
    return number


def _share(given: str, text: str) -> float:
    try:
        share = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError("technique is not usable", value=text, allowed="a share from 0 to 1, or percent")
    return share
