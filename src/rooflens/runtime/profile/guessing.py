"""What guesses came to: how many were right, what steps with and without them took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rooflens.measure.statistics import median
from rooflens.runtime.engine.records import StepRecord, Work

#: Plain steps among those with guesses from which a gain is estimated.
_FEWEST_PLAIN = 3


@dataclass(frozen=True)
class Guessing:
    """Speculative decoding as it went, over steps that only decode. Counts are exact, times measured.

    drafted_tokens were checked, accepted_tokens of them right. ``chance`` is the share of right ones among
    the guesses whose forerunners were right: what formulas call acceptance (those after a wrong guess are
    lost with it). ``offered``: share of the sequences' steps that had guesses. tokens_per_step: of one
    sequence. verify_step_s (median; without the guessing) and plain_step_s are of steps with and without
    guesses, draft_step_s is the median time of guessing in steps that had some, drafting_s the sum of it.
    """

    drafted_tokens: int
    accepted_tokens: int
    chance: float
    offered: float
    tokens_per_step: float
    verify_step_s: float
    draft_step_s: float
    plain_step_s: float | None
    plain_tokens_per_s: float | None
    plain_steps: int
    decode_s: float
    decode_tokens: int
    drafting_s: float

    @property
    def acceptance(self) -> float:
        """Right guesses over all that were checked."""
        return self.accepted_tokens / self.drafted_tokens

    @property
    def gain(self) -> float | None:
        """Estimate: tokens per second over those of plain steps alone; None with fewer than three of them."""
        if self.plain_tokens_per_s is None or self.plain_steps < _FEWEST_PLAIN:
            return None
        return self.decode_tokens / self.decode_s / self.plain_tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "acceptance": self.acceptance, "gain": self.gain}


def read_guessing(records: Sequence[StepRecord]) -> Guessing | None:
    """What the guesses in these steps came to; None where none were checked."""
    decodes = [record for record in records if record.phase == "decode"]
    verifying = [record for record in decodes if record.drafted_tokens]
    if not verifying:
        return None
    plain = [record for record in decodes if not record.drafted_tokens]
    shares = [share for record in decodes for share in record.work]
    guessed = [share for share in shares if share.drafted]
    accepted = sum(share.accepted for share in guessed)
    tokens = sum(record.output_tokens for record in decodes)
    return Guessing(
        drafted_tokens=sum(share.drafted for share in guessed),
        accepted_tokens=accepted,
        chance=chance_of(guessed),
        offered=len(guessed) / len(shares),
        tokens_per_step=tokens / len(shares),
        verify_step_s=median([record.clock_s - record.draft_s for record in verifying]),
        draft_step_s=median([record.draft_s for record in verifying]),
        plain_step_s=median([record.clock_s for record in plain]) if plain else None,
        plain_tokens_per_s=median([r.output_tokens / r.clock_s for r in plain]) if plain else None,
        plain_steps=len(plain),
        decode_s=sum(record.clock_s for record in decodes),
        decode_tokens=tokens,
        drafting_s=sum(record.draft_s for record in decodes),
    )


def chance_of(guessed: Sequence[Work]) -> float:
    """Right guesses over those that a first wrong one has not made moot: they, and each first wrong one."""
    right = sum(share.accepted for share in guessed)
    wrong = sum(share.accepted < share.drafted for share in guessed)
    return right / (right + wrong)
