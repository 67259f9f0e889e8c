"""What arrives: lengths of prompts and outputs, fixed, spread, or as they were met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

from rooflens.errors import InputError

POINTS = 8
"""Prompt lengths that stand for a spread: the middles of eight equally likely classes."""


@dataclass(frozen=True)
class Requests:
    """Lengths in tokens: means, and standard deviations over means (``_cv``).

    ``shared_prefix`` is the share of each prompt that is cached already; ``coupling`` the covariance of
    prompt and output over the product of their means; ``prompts`` equally likely lengths where they are known
    better than by mean and spread; ``longest`` the longest prompt and output together.
    """

    prompt: int
    output: int
    output_cv: float = 0.0
    shared_prefix: float = 0.0
    prompt_cv: float = 0.0
    coupling: float = 0.0
    prompts: tuple[int, ...] = ()
    longest: int | None = None

    @property
    def computed(self) -> int:
        """Prompt tokens that are computed: at least the last one."""
        return self._computed(self.prompt)

    def _computed(self, prompt: int) -> int:
        return max(1, round(prompt * (1 - self.shared_prefix)))

    @property
    def full_context(self) -> int:
        """Tokens that the longest request holds at its end."""
        return self.longest or self.prompt + self.output

    @property
    def mean_context(self) -> float:
        """Tokens held by a sequence at a random moment: long outputs are met more often than short ones.

        E[output x (prompt + output / 2)] / E[output].
        """
        return self.prompt * (1 + self.coupling) + self.output * (1 + self.output_cv**2) / 2

    @property
    def context_variance(self) -> float:
        """Variance of the tokens held at a random moment, for outputs spread like a log-normal.

        Var(prompt) + E[O^3] / (3 E[O]) - (E[O^2] / (2 E[O]))^2; of fixed outputs O^2 / 12.
        """
        spread = 1 + self.output_cv**2
        return (self.prompt * self.prompt_cv) ** 2 + self.output**2 * (spread**3 / 3 - spread**2 / 4)

    def prompt_points(self) -> tuple[tuple[int, int], ...]:
        """Equally likely prompts as (computed, cached) tokens."""
        lengths = self.prompts or _spread(self.prompt, self.prompt_cv)
        computed = [self._computed(length) for length in lengths]
        return tuple((new, length - new) for new, length in zip(computed, lengths, strict=True))


def _spread(mean: int, cv: float) -> tuple[int, ...]:
    """The middles of equally likely classes of a log-normal, scaled to keep the mean."""
    if cv == 0:
        return (mean,)
    sigma = sqrt(log(1 + cv**2))
    raw = [exp(sigma * NormalDist().inv_cdf((index + 0.5) / POINTS)) for index in range(POINTS)]
    scale = mean * POINTS / sum(raw)
    return tuple(max(1, round(value * scale)) for value in raw)


def spread_requests(
    *, prompt: int, output: int, prompt_std: float = 0.0, output_std: float = 0.0, shared_prefix: float = 0.0
) -> Requests:
    """Requests of a mean and a standard deviation in tokens. Raises InputError for what cannot be."""
    for name, value in (("prompt_std", prompt_std), ("output_std", output_std)):
        if not value >= 0:
            raise InputError(f"{name} is not usable", value=value, allowed="0 or more tokens")
    if not 0 <= shared_prefix <= 1:
        raise InputError("shared_prefix is not usable", value=shared_prefix, allowed="0 to 1")
    return Requests(
        prompt, output, output_std / output, shared_prefix=shared_prefix, prompt_cv=prompt_std / prompt
    )


def observed_requests(pairs: Sequence[tuple[int, int, float]], *, shared_prefix: float = 0.0) -> Requests:
    """Requests as they were met: (prompt, output, how often) each. Raises InputError where there are none."""
    total = sum(often for _, _, often in pairs)
    if not total > 0:
        raise InputError("no request lengths are given", value=len(pairs), allowed="one or more")
    if not 0 <= shared_prefix <= 1:
        raise InputError("shared_prefix is not usable", value=shared_prefix, allowed="0 to 1")

    def mean(of: Sequence[float]) -> float:
        return sum(value * often for value, (_, _, often) in zip(of, pairs, strict=True)) / total

    prompts, outputs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    prompt, output = mean(prompts), mean(outputs)
    both = mean([one * other for one, other in zip(prompts, outputs, strict=True)])
    return Requests(
        prompt=max(1, round(prompt)),
        output=max(1, round(output)),
        output_cv=sqrt(max(0.0, mean([value**2 for value in outputs]) - output**2)) / output,
        shared_prefix=shared_prefix,
        prompt_cv=sqrt(max(0.0, mean([value**2 for value in prompts]) - prompt**2)) / prompt,
        coupling=both / (prompt * output) - 1,
        prompts=_quantiles(pairs, total),
        longest=max(one + other for one, other in zip(prompts, outputs, strict=True)),
    )


def _quantiles(pairs: Sequence[tuple[int, int, float]], total: float) -> tuple[int, ...]:
    """The prompts at the middles of equally likely classes."""
    ordered = sorted((prompt, often) for prompt, _, often in pairs)
    points, passed, place = [], 0.0, 0
    for index in range(POINTS):
        goal = (index + 0.5) / POINTS * total
        while passed + ordered[place][1] < goal:
            passed += ordered[place][1]
            place += 1
        points.append(ordered[place][0])
    return tuple(points)
