"""One answer while it is made: its text, its tokens, its random numbers and its times."""

from __future__ import annotations

from collections.abc import Sequence

from rooflens.runtime.engine.records import RequestRecord
from rooflens.runtime.engine.request import Delta, Request, Usage
from rooflens.runtime.engine.sequence import FinishReason, SequenceState
from rooflens.runtime.sampling import SampledToken, SamplerState
from rooflens.runtime.stream_decoder import StopFilter, StreamDecoder


class Answer:
    """Turns the tokens of one sequence into deltas."""

    def __init__(
        self, request: Request, index: int, sequence: SequenceState, decoder: StreamDecoder | None
    ) -> None:
        self.request = request
        self.index = index
        self.sequence = sequence
        self.sampler = SamplerState(request.params, request.prompt, index=index)
        self.scheduled_s: float | None = None
        self._decoder = decoder
        self._stops = StopFilter(request.params.stop)
        self._tokens = 0
        self._times: list[tuple[float, int]] = []
        self._finish_reason: FinishReason | None = None

    def take(self, tokens: Sequence[SampledToken], reason: FinishReason | None, *, now_s: float) -> Delta:
        """Add what a step brought. The delta's ``finish_reason`` is ``stop`` if a stop string ended it."""
        text = ""
        taken: list[SampledToken] = []
        for token in tokens:
            taken.append(token)
            if token.token_id in self.sequence.stop_ids:
                continue  # it ends the answer and is no text of it
            if self._decoder is not None:
                text += self._stops.push(self._decoder.push(token.token_id))
            if self._stops.found is not None:
                reason = "stop"
                break
        self._tokens += len(taken)
        self._times.append((now_s, len(taken)))
        return self._delta(text, tuple(taken), reason)

    def end(self, reason: FinishReason, error: BaseException | None = None) -> Delta:
        """End the answer from outside; the text so far is kept."""
        return self._delta("", (), reason, error)

    def _delta(
        self,
        text: str,
        tokens: tuple[SampledToken, ...],
        reason: FinishReason | None,
        error: BaseException | None = None,
    ) -> Delta:
        if reason is not None:
            if self._stops.found is None and self._decoder is not None:
                text += self._stops.push(self._decoder.finish()) + self._stops.finish()
            if self._stops.found is not None and reason == "length":
                reason = "stop"
            self._finish_reason = reason
        usage = None if reason is None else self.usage
        return Delta(self.request.id, self.index, text, tokens, reason, usage, error)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        cached = self.sequence.cached_tokens or 0
        return Usage(len(self.request.prompt), cached, self._tokens)

    def record(self, *, now_s: float) -> RequestRecord:
        """Its times, once it has ended."""
        assert self._finish_reason is not None
        return RequestRecord(
            request_id=self.request.id,
            index=self.index,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.sequence.cached_tokens or 0,
            preemptions=self.sequence.preemptions,
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            finished_s=now_s,
            token_times_s=tuple(self._times),
            finish_reason=self._finish_reason,
        )
