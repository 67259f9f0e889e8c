"""The engine: requests in, deltas out, one step at a time. Not thread-safe; ``AsyncEngine`` owns a thread."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise

import torch

from rooflens.errors import InputError, UnsupportedError
from rooflens.runtime.batch import Chunk, StepBatch
from rooflens.runtime.engine.answer import Answer
from rooflens.runtime.engine.backend import Backend, synchronize
from rooflens.runtime.engine.blocks import BlockPool
from rooflens.runtime.engine.choose import choose
from rooflens.runtime.engine.interrupt import Interrupt
from rooflens.runtime.engine.records import PHASES, Observer, StepRecord, Work
from rooflens.runtime.engine.request import Completion, Delta, Request, collect
from rooflens.runtime.engine.scheduler import Scheduler
from rooflens.runtime.engine.sequence import FinishReason, SequenceState
from rooflens.runtime.engine.settings import EngineSettings, EngineStatus
from rooflens.runtime.engine.speculative import Proposer
from rooflens.runtime.engine.step import Limits, Progress, ScheduledStep
from rooflens.runtime.sampling import SampledToken, SamplingParams

Prompt = str | Sequence[int]


class Engine:
    """Continuous batching over one backend."""

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings | None = None,
        *,
        proposer: Proposer | None = None,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``proposer`` guesses tokens, see ``speculative``.

        Raises InputError for unusable settings and UnsupportedError for a model cut over several processes.
        """
        parallel = getattr(backend, "parallel", None)
        if parallel is not None and parallel.size > 1:
            raise UnsupportedError(
                "the engine runs a model in one process",
                value=f"{parallel.size} ranks",
                next="call NativeBackend.generate on all ranks",
            )
        self.backend = backend
        self.settings = settings or EngineSettings()
        self.proposer = proposer
        self.observers = list(observers)
        self.clock = clock
        cache = backend.cache
        self.scheduler = Scheduler(
            BlockPool(
                cache.blocks, block_tokens=cache.block_tokens, prefix_caching=self.settings.prefix_caching
            ),
            Limits(
                self.settings.max_sequences,
                self.settings.batched_tokens(backend.device.type),
                backend.context,
            ),
        )
        self._answers: dict[int, Answer] = {}
        self._requests: dict[str, list[Answer]] = {}
        self._ids = count()
        self._last_end_s: float | None = None
        self._totals = EngineStatus(0, 0, cache.blocks, 0, 0, cache.block_tokens)

    # -- requests

    def prepare(self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None) -> Request:
        """Check a request and turn its prompt into tokens; changes nothing, so any thread may call it.

        Raises InputError (empty prompt, token outside the vocabulary, text or stop strings without a
        tokenizer) or CapacityError (longer than the context or the KV cache, with both numbers).
        """
        arrival_s = self.clock()
        tokenizer = self.backend.tokenizer
        if isinstance(prompt, str):
            if tokenizer is None:
                raise InputError("there is no tokenizer: give the prompt as token ids")
            tokens = tuple(tokenizer.encode(prompt))
        else:
            tokens = tuple(prompt)
        if params.stop and tokenizer is None:
            raise InputError("stop strings need a tokenizer", next="use stop_token_ids")
        vocabulary = self.backend.spec.vocab_size
        bad = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if bad is not None:
            raise InputError(
                "the prompt has a token outside the vocabulary", value=bad, allowed=f"0 to {vocabulary - 1}"
            )
        self.scheduler.check(prompt_tokens=len(tokens), max_tokens=params.max_tokens)
        return Request(request_id or uuid.uuid4().hex, tokens, params, arrival_s)

    def accept(self, request: Request) -> None:
        """Queue a prepared request, ``n`` answers of it. Raises InputError for an id that is in use."""
        if request.id in self._requests:
            raise InputError("request_id is in use", value=request.id)
        tokenizer, params = self.backend.tokenizer, request.params
        stop_ids = frozenset(params.stop_token_ids)
        if tokenizer is not None and not params.ignore_eos:
            stop_ids |= tokenizer.eos_ids
        answers: list[Answer] = []
        for index in range(params.n):
            sequence = SequenceState(
                id=next(self._ids),
                tokens=list(request.prompt),
                limit=len(request.prompt) + params.max_tokens,
                stop_ids=stop_ids,
                leader=answers[0].sequence if answers else None,
            )
            self.scheduler.add(sequence)
            decoder = None if tokenizer is None else tokenizer.stream(request.prompt)
            answers.append(Answer(request, index, sequence, decoder))
            self._answers[sequence.id] = answers[-1]
        self._requests[request.id] = answers
        self._count(requests=1, prompt_tokens=len(request.prompt))

    def submit(self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None) -> str:
        """``prepare`` and ``accept``; returns the request's id."""
        request = self.prepare(prompt, params, request_id=request_id)
        self.accept(request)
        return request.id

    def cancel(self, request_id: str) -> list[Delta]:
        """End a request's unfinished answers, free their blocks; their last deltas, with the text so far."""
        return [self._end(answer, "cancelled") for answer in list(self._requests.get(request_id, ()))]

    def fail(self, error: BaseException) -> list[Delta]:
        """End every answer with ``error`` and forget what the cache holds. The engine can go on after it."""
        deltas = [self._end(answer, "error", error) for answer in list(self._answers.values())]
        self.scheduler.pool.forget()
        self._last_end_s = None
        return deltas

    def _end(self, answer: Answer, reason: FinishReason, error: BaseException | None = None) -> Delta:
        self.scheduler.finish(answer.sequence, reason)
        delta = answer.end(reason, error)
        self._close(answer)
        return delta

    def _close(self, answer: Answer) -> None:
        """Take a finished answer off the books and tell the observers."""
        del self._answers[answer.sequence.id]
        others = self._requests[answer.request.id]
        others.remove(answer)
        if not others:
            del self._requests[answer.request.id]
        if self.proposer is not None:
            self.proposer.forget(answer.sequence.id)
        record = answer.record(now_s=self.clock())
        for observer in self.observers:
            observer.on_request(record)

    @property
    def has_work(self) -> bool:
        """Whether any answer is unfinished."""
        return self.scheduler.has_work

    @property
    def status(self) -> EngineStatus:
        """Where the engine stands."""
        scheduler = self.scheduler
        return replace(
            self._totals,
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            kv_blocks_used=scheduler.pool.used,
            kv_blocks_cached=scheduler.pool.cached,
            prefix_queried_tokens=scheduler.prefix_queried_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
        )

    def _count(self, **more: int) -> None:
        self._totals = replace(
            self._totals, **{name: getattr(self._totals, name) + value for name, value in more.items()}
        )

    # -- one step

    def step(self) -> list[Delta]:
        """Schedule, run, commit. If the model or the sampler raises, nothing of the step has happened."""
        clock, scheduler = self.clock, self.scheduler
        times = [clock()]
        drafts = None if self.proposer is None else self.proposer.propose(scheduler.decoding())
        times.append(clock())
        step = scheduler.schedule(drafts)
        times.append(clock())
        if step is None:
            return []
        try:
            batch = self._lay_out(step)
            times.append(clock())
            logits = self.backend.step(batch)
            if self.settings.synchronize:
                synchronize(self.backend.device)
            times.append(clock())
            states = [self._answers[entry.sequence.id].sampler for entry in step.entries]
            chosen = choose(logits, step.entries, states)
            times.append(clock())
        except BaseException:
            scheduler.abandon(step)
            self._last_end_s = None
            raise
        progress = scheduler.commit(step, [[token.token_id for token in tokens] for tokens in chosen])
        times.append(clock())
        deltas = self._deliver(step, chosen, progress, started_s=times[0])
        times.append(clock())
        self._book(step, chosen, deltas, times)
        return deltas

    def _lay_out(self, step: ScheduledStep) -> StepBatch:
        device, cache = self.backend.device, self.backend.cache
        if step.copies:
            sources, targets = zip(*step.copies, strict=True)
            cache.copy_blocks(torch.tensor(sources, device=device), torch.tensor(targets, device=device))
        return StepBatch.build(
            [Chunk(entry.token_ids, entry.start, entry.block_table, entry.sample) for entry in step.entries],
            device=device,
            block_tokens=cache.block_tokens,
        )

    def _deliver(
        self,
        step: ScheduledStep,
        chosen: Sequence[Sequence[SampledToken]],
        progress: Sequence[Progress],
        *,
        started_s: float,
    ) -> list[Delta]:
        tokens_of = {}
        for entry, tokens in zip(step.entries, chosen, strict=True):
            tokens_of[entry.sequence.id] = tokens
            answer = self._answers[entry.sequence.id]
            if answer.scheduled_s is None:
                answer.scheduled_s = started_s
        deltas = []
        for item in progress:
            answer = self._answers[item.sequence.id]
            kept = tokens_of[item.sequence.id][: len(item.tokens)]
            delta = answer.take(kept, item.finish_reason, now_s=self.clock())
            if delta.finish_reason is not None:
                # Commit has ended it at a stop token or its limit; a stop string shows only in the text.
                self.scheduler.finish(answer.sequence, delta.finish_reason)
                self._close(answer)
            deltas.append(delta)
        return deltas

    def _book(
        self,
        step: ScheduledStep,
        chosen: Sequence[Sequence[SampledToken]],
        deltas: Sequence[Delta],
        times: Sequence[float],
    ) -> None:
        """Write the step's record and hand it to the observers."""
        pool = self.scheduler.pool
        spent = {name: after - before for name, (before, after) in zip(PHASES, pairwise(times), strict=True)}
        record = StepRecord(
            index=self._totals.steps,
            started_s=times[0],
            gap_s=None if self._last_end_s is None else times[0] - self._last_end_s,
            **spent,
            work=tuple(
                Work(entry.start, len(entry.token_ids), entry.sample, entry.prefill, max(0, len(tokens) - 1))
                for entry, tokens in zip(step.entries, chosen, strict=True)
            ),
            output_tokens=sum(len(delta.tokens) for delta in deltas),
            drafted_tokens=sum(len(entry.draft) for entry in step.entries),
            accepted_tokens=sum(
                len(tokens) - 1 for entry, tokens in zip(step.entries, chosen, strict=True) if entry.draft
            ),
            admitted=len(step.admitted),
            preempted=len(step.preempted),
            waiting=step.waiting,
            running=step.running,
            budget_tokens=self.scheduler.limits.max_batched_tokens,
            kv_blocks_used=pool.used,
            kv_blocks_cached=pool.cached,
            kv_blocks_free=pool.free,
        )
        self._count(
            steps=1,
            preemptions=record.preempted,
            output_tokens=record.output_tokens,
            drafted_tokens=record.drafted_tokens,
            accepted_tokens=record.accepted_tokens,
        )
        for observer in self.observers:
            observer.on_step(record)
        self._last_end_s = self.clock() if self.has_work else None

    # -- without a thread

    def stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[Delta]:
        """Answer one prompt, delta by delta; the request is checked and queued before this returns.

        Ctrl-C ends it after the step at hand: the last deltas say ``cancelled`` and bring the text that was
        held back. Closing the iterator cancels too. Raises what the model raises.
        """
        request = self.prepare(prompt, params)
        self.accept(request)
        return self._stream(request.id)

    def _stream(self, request_id: str) -> Iterator[Delta]:
        with Interrupt() as interrupt:
            try:
                while request_id in self._requests and not interrupt.requested:
                    yield from (delta for delta in self._step_or_fail() if delta.request_id == request_id)
                yield from self.cancel(request_id)
            finally:
                self.cancel(request_id)

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        """Answer all prompts, in their order; ``n`` answers of one prompt follow each other.

        All are checked before any work. Ctrl-C ends those that are not finished, after the step at hand,
        with the reason ``cancelled``: their text so far is kept. Raises what the model raises.
        """
        wanted = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        requests = [self.prepare(prompt, own) for prompt, own in zip(prompts, wanted, strict=True)]
        for request in requests:
            self.accept(request)
        deltas: list[Delta] = []
        with Interrupt() as interrupt:
            try:
                while not interrupt.requested and any(r.id in self._requests for r in requests):
                    deltas += self._step_or_fail()
            finally:
                for request in requests:
                    deltas += self.cancel(request.id)
        return [done for request in requests for done in collect(deltas, request.id)]

    def _step_or_fail(self) -> list[Delta]:
        try:
            return self.step()
        except Exception as error:
            self.fail(error)
            raise
