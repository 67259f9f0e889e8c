"""Answers of a benchmark: complete, or no figures."""

from __future__ import annotations

from collections.abc import Sequence

from rooflens.errors import RooflensError
from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.engine.request import Completion
from rooflens.runtime.sampling import SamplingParams


class CutShortError(RooflensError):
    """Ctrl-C: the case at hand has no figures."""

    exit_code = 1


class CaseFailedError(RooflensError):
    """The answers are not what was asked for, so their speed means nothing."""


def answers_of(engine: Engine, prompts: Sequence[Sequence[int]], *, output: int) -> list[Completion]:
    """All greedy answers of ``output`` tokens each. Raises CutShortError after Ctrl-C, or CaseFailedError."""
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    answers = engine.generate(list(prompts), params)
    if any(answer.finish_reason == "cancelled" for answer in answers):
        raise CutShortError("interrupted")
    wrong = [answer for answer in answers if answer.usage.output_tokens != output]
    if wrong or len(answers) != len(prompts):
        raise CaseFailedError("answers are not as long as asked for", value=len(wrong))
    return answers
