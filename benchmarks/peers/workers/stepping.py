"""What workers of engines with a scheduler share: requests go in, steps are timed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.peers.protocol import Case, prompt

SPARE_TOKENS = 4
"""Tokens that a request may make beyond those timed, so that none ends within the sample."""


class SteppingEngine:
    """``add``, ``step`` and ``drop`` are the engine's; this brings it to a case and times it."""

    vocabulary: int

    def add(self, tokens: Sequence[int], count: int) -> int:
        """Queue a request for ``count`` greedy tokens; returns its number."""
        raise NotImplementedError

    def step(self) -> None:
        """One step of the engine."""
        raise NotImplementedError

    def made(self, request: int) -> list[int]:
        """The tokens that a request has so far."""
        raise NotImplementedError

    def drop(self) -> None:
        """End all requests."""
        raise NotImplementedError

    def choose(self, tokens: Sequence[int], path: str | None) -> int:
        """These engines keep their logits to themselves: ``path`` is not written."""
        return self.greedy(tokens, 1)[0]

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next ``count`` tokens by greedy choice."""
        self.drop()
        request = self.add(tokens, count)
        while len(self.made(request)) < count:
            self.step()
        return self.made(request)[:count]

    def ready(self, case: Case) -> None:
        """For decode: prompts are read and every sequence has made its first token."""
        self.drop()
        if case.kind == "prefill":
            return
        requests = [
            self.add(prompt(case.context, vocabulary=self.vocabulary, seed=row), case.tokens + SPARE_TOKENS)
            for row in range(case.batch)
        ]
        while not all(self.made(request) for request in requests):
            self.step()

    def run(self, case: Case) -> float:
        """See ``Engine.run``."""
        if case.kind == "decode":
            started = time.perf_counter()
            for _ in range(case.tokens):
                self.step()
            return (time.perf_counter() - started) / case.tokens
        tokens = prompt(case.context, vocabulary=self.vocabulary)
        started = time.perf_counter()
        request = self.add(tokens, 1)
        while not self.made(request):
            self.step()
        return time.perf_counter() - started
