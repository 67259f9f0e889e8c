"""A plain generation loop: all prompts together, no scheduler. The reference for engines built on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rooflens.errors import CapacityError, InputError
from rooflens.runtime.batch import Chunk, StepBatch
from rooflens.runtime.sampler import sample
from rooflens.runtime.sampling import SampledToken, SamplerState, SamplingParams

if TYPE_CHECKING:
    from rooflens.runtime.backend import NativeBackend

#: Prompt tokens run in one step.
PREFILL_TOKENS = 512

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Generation:
    """One answer. ``text`` is empty without a tokenizer; a stop string is not part of it."""

    prompt_tokens: int
    tokens: tuple[SampledToken, ...]
    text: str
    finish_reason: FinishReason

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids alone."""
        return tuple(token.token_id for token in self.tokens)


@dataclass
class _Answer:
    prompt: list[int]
    params: SamplingParams
    state: SamplerState
    blocks: list[int]
    ends: frozenset[int]
    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None


def generate(
    backend: NativeBackend,
    prompts: Sequence[str | Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[Generation]:
    """See ``NativeBackend.generate``; answers of one prompt with ``n`` over 1 follow each other."""
    wanted = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    answers: list[_Answer] = []
    for prompt, own in zip(prompts, wanted, strict=True):
        tokens = _tokens(backend, prompt)
        _check_length(backend, tokens, own)
        ends = frozenset(own.stop_token_ids)
        if backend.tokenizer is not None and not own.ignore_eos:
            ends |= backend.tokenizer.eos_ids
        for index in range(own.n):
            state = SamplerState(own, tokens, index=index)
            answers.append(_Answer(tokens, own, state, _take_blocks(backend, answers, tokens, own), ends))
    for answer in answers:
        _prefill(backend, answer)
    while running := [answer for answer in answers if answer.finish_reason is None]:
        chunks = [
            Chunk([answer.tokens[-1].token_id], len(answer.prompt) + len(answer.tokens) - 1, answer.blocks)
            for answer in running
        ]
        _advance(backend, chunks, running)
    return [_finished(backend, answer) for answer in answers]


def _tokens(backend: NativeBackend, prompt: str | Sequence[int]) -> list[int]:
    if isinstance(prompt, str):
        if backend.tokenizer is None:
            raise InputError("there is no tokenizer: give token ids")
        tokens = backend.tokenizer.encode(prompt)
    else:
        tokens = list(prompt)
    if not tokens:
        raise InputError("the prompt is empty")
    limit = backend.spec.vocab_size
    bad = next((token for token in tokens if not 0 <= token < limit), None)
    if bad is not None:
        raise InputError(
            "the prompt has a token outside the vocabulary", value=bad, allowed=f"0 to {limit - 1}"
        )
    return tokens


def _check_length(backend: NativeBackend, tokens: list[int], params: SamplingParams) -> None:
    needed = len(tokens) + params.max_tokens
    if needed > backend.context:
        raise CapacityError(
            f"the prompt of {len(tokens):,} tokens and {params.max_tokens:,} new ones exceed the context",
            value=needed,
            allowed=f"at most {backend.context:,} tokens",
        )


def _take_blocks(
    backend: NativeBackend, answers: list[_Answer], tokens: list[int], params: SamplingParams
) -> list[int]:
    first = answers[-1].blocks[-1] + 1 if answers else 0
    # The last token is never written.
    count = -(-(len(tokens) + params.max_tokens - 1) // backend.cache.block_tokens)
    if first + count > backend.cache.blocks:
        raise CapacityError(
            "the prompts and their answers exceed the KV cache",
            value=f"{(first + count) * backend.cache.block_tokens:,} tokens",
            allowed=f"{backend.cache.tokens:,} tokens",
        )
    return list(range(first, first + count))


def _prefill(backend: NativeBackend, answer: _Answer) -> None:
    total = len(answer.prompt)
    for start in range(0, total, PREFILL_TOKENS):
        part = answer.prompt[start : start + PREFILL_TOKENS]
        last = start + len(part) == total
        _advance(backend, [Chunk(part, start, answer.blocks, int(last))], [answer] if last else [])


def _advance(backend: NativeBackend, chunks: list[Chunk], sampled: list[_Answer]) -> None:
    logits = backend.step(StepBatch.build(chunks, device=backend.device))
    if not sampled:
        return
    for answer, token in zip(sampled, sample(logits, [answer.state for answer in sampled]), strict=True):
        answer.tokens.append(token)
        if token.token_id in answer.ends:
            answer.finish_reason = "stop"
        elif len(answer.tokens) == answer.params.max_tokens:
            answer.finish_reason = "length"
        if answer.params.stop and backend.tokenizer is not None and _stopped(backend, answer):
            answer.finish_reason = "stop"


def _stopped(backend: NativeBackend, answer: _Answer) -> bool:
    assert backend.tokenizer is not None
    text = backend.tokenizer.decode([token.token_id for token in answer.tokens])
    return any(stop in text for stop in answer.params.stop)


def _finished(backend: NativeBackend, answer: _Answer) -> Generation:
    assert answer.finish_reason is not None
    text = ""
    if backend.tokenizer is not None:
        stream = backend.tokenizer.stream(answer.prompt)
        ids = [token.token_id for token in answer.tokens]
        if ids[-1] in answer.ends:
            ids = ids[:-1]
        text = "".join(stream.push(token) for token in ids) + stream.finish()
        places = [place for stop in answer.params.stop if (place := text.find(stop)) >= 0]
        text = text[: min(places)] if places else text
    return Generation(len(answer.prompt), tuple(answer.tokens), text, answer.finish_reason)
