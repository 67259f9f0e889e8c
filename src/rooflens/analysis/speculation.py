"""A measured gain of speculative decoding beside the predicted one: where the difference comes from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from rooflens.analysis.techniques import Draft


@dataclass(frozen=True)
class StepCosts:
    """What a step takes: plain, verifying k guesses (None: unknown), and all k guesses of it. Seconds."""

    plain_s: float
    verify_s: float | None
    guesses_s: float

    def gain(self, draft: Draft) -> float | None:
        """The gain of ``draft`` at these costs: ``Draft.gain`` with the guesses' share of them."""
        if not draft.offered:
            return 1.0  # plain steps only
        if self.verify_s is None:
            return None
        share = self.guesses_s / (draft.tokens * self.plain_s)
        return replace(draft, cost_share=share).gain(plain_s=self.plain_s, verify_s=self.verify_s)


@dataclass(frozen=True)
class GainFactors:
    """Measured gain over predicted gain, as a product; None for what cannot be told.

    ``tokens``: tokens per step over those that the chance of a right guess makes (right guesses come in
    runs). ``verify``: from a verifying step that costs more, or less, of a plain one than predicted.
    ``draft``: the same of the guesses. ``rest``: what steps of the usual kind do not show, such as running
    the prompts through the draft model, or steps that are longer than their median.
    """

    tokens: float | None
    verify: float | None
    draft: float | None
    rest: float | None

    def to_dict(self) -> dict[str, float | None]:
        """As JSON."""
        return asdict(self)


def gain_factors(
    draft: Draft, *, gain: float, tokens_per_step: float, predicted: StepCosts, measured: StepCosts
) -> GainFactors:
    """Put measured figures into the formula in place of predicted ones, one after the other.

    ``draft`` has the measured chance and share of steps with guesses. The factors that are known multiply to
    ``gain`` over the predicted gain wherever ``rest`` is known.
    """
    tokens = tokens_per_step / draft.expected_tokens
    before, now = predicted.gain(draft), measured.gain(draft)
    if before is None or now is None:
        return GainFactors(tokens, None, None, None)
    # Guesses as predicted, in plain steps: only the verifying step is the measured one.
    guesses_s = predicted.guesses_s / predicted.plain_s * measured.plain_s
    verified = StepCosts(measured.plain_s, measured.verify_s, guesses_s).gain(draft)
    assert verified is not None
    return GainFactors(
        tokens=tokens, verify=verified / before, draft=now / verified, rest=gain / (now * tokens)
    )
