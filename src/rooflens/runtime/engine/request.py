"""What goes into the engine and what comes out: requests, deltas, completions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflens.runtime.engine.sequence import FinishReason
from rooflens.runtime.sampling import SampledToken, SamplingParams


@dataclass(frozen=True)
class Request:
    """A checked request: made by ``Engine.prepare``, taken by ``Engine.accept``; the engine's clock."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival_s: float


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer. ``cached_tokens``: those of the prompt that the prefix cache already held."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Delta:
    """What one step brought one answer.

    ``text`` is what may be shown now: a piece is held back while it could be part of a character or of a
    stop string, so ``tokens`` may come without text. The last delta of an answer has ``finish_reason`` and
    ``usage``; with ``"error"`` also ``error``.
    """

    request_id: str
    index: int
    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Completion:
    """One whole answer. A stop token is among ``tokens`` and not in ``text``; a stop string is in neither."""

    request_id: str
    index: int
    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason
    usage: Usage

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids alone."""
        return tuple(token.token_id for token in self.tokens)


def collect(deltas: Iterable[Delta], request_id: str) -> list[Completion]:
    """The whole answers of one request from all of its deltas, by index."""
    parts: dict[int, list[Delta]] = {}
    for delta in deltas:
        if delta.request_id == request_id:
            parts.setdefault(delta.index, []).append(delta)
    completions = []
    for index, own in sorted(parts.items()):
        last = own[-1]
        assert last.finish_reason is not None
        assert last.usage is not None
        text = "".join(delta.text for delta in own)
        tokens = tuple(token for delta in own for token in delta.tokens)
        completions.append(Completion(request_id, index, text, tokens, last.finish_reason, last.usage))
    return completions
