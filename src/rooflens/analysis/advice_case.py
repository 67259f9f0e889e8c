"""One plan's case, which every technique is priced on and compared with, and what is said of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rooflens.analysis.advice_text import ACTS_ON, WHY
from rooflens.analysis.plan import Plan
from rooflens.analysis.techniques import Outcome, Scenario, evaluate, scenario_of

LEAST_GAIN = 1.02
"""A technique that gains less than 2 % in everything has no gain here."""
MOST_SEQUENCES = 1024


@dataclass(frozen=True)
class Advice:
    """One technique for one case. Gains are ratios: 1.5 is one and a half times as fast, 1 no change.

    ``decode_gain`` is of tokens a second over all sequences, ``tpot_gain`` of one sequence's,
    ``prefill_gain`` of the time to the first token. None where the case could not run before.
    """

    technique: str
    change: str | None
    decode_gain: float | None
    tpot_gain: float | None
    prefill_gain: float | None
    memory_saved_bytes: int | None
    why: str
    facts: dict[str, str] = field(default_factory=dict)
    fits: bool | None = None
    assumed: bool = False  # it rests on a share that only the user's requests tell

    @property
    def acts_on(self) -> str:
        """What the technique changes in the roofline picture."""
        return ACTS_ON[self.technique]

    @property
    def gains(self) -> bool:
        """Whether it is worth anything here."""
        best = max(self.decode_gain or 0, self.tpot_gain or 0, self.prefill_gain or 0)
        return best >= LEAST_GAIN or (self.memory_saved_bytes or 0) > 0

    @property
    def rank(self) -> float:
        """The larger the better: the best of its gains, less what it costs elsewhere;
        assumed ones count half (of the logarithm)."""
        gains = [gain for gain in (self.decode_gain, self.prefill_gain) if gain is not None]
        if not gains:
            return 0.0
        gain = float(max(gains) * min(1.0, *gains) ** 0.5)
        return float(gain**0.5) if self.assumed else gain

    def to_dict(self) -> dict[str, Any]:
        """As JSON, ``why`` in English."""
        return {
            "technique": self.technique,
            "acts_on": self.acts_on,
            "change": self.change,
            "decode_gain": self.decode_gain,
            "tpot_gain": self.tpot_gain,
            "prefill_gain": self.prefill_gain,
            "memory_saved_bytes": self.memory_saved_bytes,
            "fits": self.fits,
            "gains": self.gains,
            "assumed": self.assumed,
            "stops_at": self.facts.get("until"),
            "why": WHY[self.why].format(**self.facts),
        }


class Case:
    """The plan's case and its price, which all techniques are compared with."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.base = scenario_of(plan)
        self.now = evaluate(self.base, plan)
        self.work = plan.workload
        self.runs = plan.fits is not False

    def priced(self, scenario: Scenario) -> Outcome:
        return evaluate(scenario, self.plan)

    def made(self, technique: str, change: str | None, outcome: Outcome, why: str, /, **facts: str) -> Advice:
        """Advice from a changed outcome."""
        now = self.now
        return Advice(
            technique=technique,
            change=change,
            decode_gain=outcome.tokens_per_s / now.tokens_per_s,
            tpot_gain=now.tpot_s / outcome.tpot_s,
            prefill_gain=now.ttft_s / outcome.ttft_s,
            memory_saved_bytes=now.memory_bytes - outcome.memory_bytes,
            why=why,
            facts=facts,
            fits=outcome.fits,
        )

    def none(self, technique: str, why: str, /, **facts: str) -> Advice:
        """Advice that says there is nothing to gain."""
        return Advice(technique, None, 1.0, 1.0, 1.0, 0, why, facts, self.plan.fits)
