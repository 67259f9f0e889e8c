"""Which share of requests meets its limits: how latencies spread around their means.

Goodput, as ``vllm bench serve --goodput`` and AIPerf define it: completed requests a second that meet every
limit that is set. TTFT is the prompt's own time plus two waits, each zero for those who find nobody before
them; TPOT is a mean over a request's tokens, so it spreads by the number of prompts that came in between and
of sequences beside it. The two are taken as independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, exp, sqrt
from statistics import NormalDist
from typing import Any

_POINTS = 16
"""Equally likely waits that stand for their spread."""


@dataclass(frozen=True)
class Wait:
    """A wait of ``mean_s``; a share ``waiting`` of requests have it, the others none.

    Those who wait do so for a gamma-distributed time of coefficient of variation ``cv`` (1: exponential), or,
    where ``even``, for anything from none to twice the mean (clients that come back together).
    """

    mean_s: float
    waiting: float = 1.0
    even: bool = False
    cv: float = 1.0

    def within(self, seconds: float) -> float:
        """P(wait <= seconds), of an even or exponential one."""
        if seconds < 0:
            return 0.0
        if self.mean_s <= 0 or self.waiting <= 0:
            return 1.0
        if self.even:
            return min(1.0, seconds / (2 * self.mean_s))
        return 1 - self.waiting * exp(-seconds * self.waiting / self.mean_s)

    def points_s(self) -> tuple[float, ...]:
        """Equally likely waits of those who wait.

        Gamma quantiles of shape k = 1 / cv^2: k (1 - 1 / (9 k) + z / (3 sqrt(k)))^3 over k. Source: E.
        Wilson, M. Hilferty, "The distribution of chi-square", 1931.
        """
        if self.mean_s <= 0 or self.waiting <= 0:
            return (0.0,)
        places = [(index + 0.5) / _POINTS for index in range(_POINTS)]
        if self.even:
            return tuple(2 * self.mean_s * place for place in places)
        shape = 1 / max(self.cv, 0.05) ** 2
        raw = [
            max(0.0, 1 - 1 / (9 * shape) + NormalDist().inv_cdf(place) / (3 * sqrt(shape))) ** 3
            for place in places
        ]
        scale = self.mean_s / self.waiting * _POINTS / sum(raw)
        return tuple(value * scale for value in raw)


@dataclass(frozen=True)
class Latencies:
    """How TTFT and TPOT spread over requests. ``prompts_s`` are equally likely times of a prompt without any
    wait, up to its first token; ``tpot_std_s`` is the standard deviation of TPOT."""

    prompts_s: tuple[float, ...]
    prompt_wait: Wait
    place_wait: Wait
    tpot_s: float
    tpot_std_s: float

    def ttft_within(self, seconds: float) -> float:
        """Share of requests whose TTFT is at most that."""
        waiting = 1.0 if self.prompt_wait.even else min(1.0, self.prompt_wait.waiting)
        waits_s = self.prompt_wait.points_s()
        place = self.place_wait
        total = 0.0
        for own in self.prompts_s:
            left = seconds - own
            if left < 0:
                continue
            after = sum(place.within(left - wait) for wait in waits_s) / len(waits_s)
            total += (1 - waiting) * place.within(left) + waiting * after
        return total / len(self.prompts_s)

    def tpot_within(self, seconds: float) -> float:
        """Share of requests whose TPOT is at most that."""
        if self.tpot_std_s <= 0:
            return 1.0 if self.tpot_s <= seconds else 0.0
        return 0.5 * (1 + erf((seconds - self.tpot_s) / (self.tpot_std_s * sqrt(2))))

    def ttft_quantile_s(self, share: float) -> float:
        """The TTFT that a share of requests stays under."""
        top = max(self.prompts_s) + 30 * (self.prompt_wait.mean_s + self.place_wait.mean_s) + 1e-6
        return quantile(self.ttft_within, share, top)

    def tpot_quantile_s(self, share: float) -> float:
        """The TPOT that a share of requests stays under."""
        return quantile(self.tpot_within, share, self.tpot_s + 10 * self.tpot_std_s + 1e-9)


def quantile(within: Callable[[float], float], share: float, top: float) -> float:
    """The least value under which ``share`` lies, by halving; ``top`` where none does."""
    low, high = 0.0, top
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) >= share else (middle, high)
    return high


@dataclass(frozen=True)
class Goodput:
    """Requests a second that meet every limit, and their share of all; a limit of None does not matter."""

    ttft_limit_s: float | None
    tpot_limit_s: float | None
    share: float
    per_s: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ttft_limit_s": self.ttft_limit_s,
            "tpot_limit_s": self.tpot_limit_s,
            "share": self.share,
            "per_s": self.per_s,
        }


def goodput(
    latencies: Latencies, rate_per_s: float, *, ttft_s: float | None = None, tpot_s: float | None = None
) -> Goodput:
    """The goodput of a rate under limits in seconds."""
    share = 1.0
    if ttft_s is not None:
        share *= latencies.ttft_within(ttft_s)
    if tpot_s is not None:
        share *= latencies.tpot_within(tpot_s)
    return Goodput(ttft_s, tpot_s, share, share * rate_per_s)
