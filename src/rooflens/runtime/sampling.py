"""How the next token is chosen: the request's parameters, checked once, and its own random numbers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from rooflens.errors import InputError

#: JSON has no infinity: log-probabilities are never given below this.
LOWEST_LOGPROB = -9999.0
#: OpenAI's limit on top log-probabilities.
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 64


@dataclass(frozen=True)
class SamplingParams:
    """One request's wishes; every field is checked when it is made.

    temperature 0 is greedy. Order of the steps: penalties, temperature, top_k (0: off), top_p, min_p (a
    share of the most likely token's probability). ``repetition_penalty`` looks at prompt and output,
    ``presence_penalty`` and ``frequency_penalty`` at the output. ``logprobs``: how many of the likeliest
    tokens to report beside the chosen one, of the model's own distribution, before all of these steps.
    ``n`` answers are drawn from seeds that follow from ``seed``.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        """Raises InputError naming the field."""
        _whole("max_tokens", self.max_tokens, least=1)
        _whole("top_k", self.top_k, least=0)
        _whole("n", self.n, least=1)
        _number("temperature", self.temperature, low=0.0)
        _number("top_p", self.top_p, low=0.0, high=1.0, above=True)
        _number("min_p", self.min_p, low=0.0, high=1.0)
        _number("repetition_penalty", self.repetition_penalty, low=0.0, above=True)
        _number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise InputError("seed is not a whole number", value=self.seed)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, least=0, most=MAX_TOP_LOGPROBS)
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, least=0)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether tokens seen before change the scores."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def plain_greedy(self) -> bool:
        """Whether the largest raw logit is all there is to it."""
        return self.greedy and not self.penalised and self.logprobs is None


class SamplerState:
    """What one answer brings to every step: its parameters, its random numbers, the tokens it has seen."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int], *, index: int = 0) -> None:
        """``index`` counts the answers of a request with ``n`` over 1."""
        self.params = params
        self.output_counts: Counter[int] = Counter()
        self.prompt = frozenset(prompt) if params.repetition_penalty != 1.0 else frozenset()
        # Text as seed: equal on every platform, and no two answers share a stream.
        self._random = random.Random(None if params.seed is None else f"{params.seed}/{index}")

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        return self._random.random()

    def observe(self, token_id: int) -> None:
        """Count a token of the output."""
        if self.params.penalised:
            self.output_counts[token_id] += 1


@dataclass(frozen=True)
class SampledToken:
    """A chosen token. ``logprob`` and ``top_logprobs`` (likeliest first) where the request asked for them."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


def _whole(field: str, value: object, *, least: int, most: int | None = None) -> None:
    in_range = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= least
        and (most is None or value <= most)
    )
    if not in_range:
        allowed = f"a whole number of {least} or more" if most is None else f"{least} to {most}"
        raise InputError(f"{field} is not usable", value=value, allowed=allowed)


def _number(field: str, value: object, *, low: float, high: float | None = None, above: bool = False) -> None:
    in_range = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and isfinite(value)
        and (value > low if above else value >= low)
        and (high is None or value <= high)
    )
    if not in_range:
        allowed = f"{'above' if above else 'at least'} {low:g}" + (
            "" if high is None else f", at most {high:g}"
        )
        raise InputError(f"{field} is not usable", value=value, allowed=allowed)


def _stops(stop: str | Iterable[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise InputError("stop has too many strings", value=len(stops), allowed=f"at most {MAX_STOPS}")
    for text in stops:
        if not isinstance(text, str) or not text:
            raise InputError("stop has a string of length zero, which ends every text", value=repr(text))
    return stops
