"""From the engine's deltas to OpenAI's objects: whole answers and the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooflens.runtime.engine.request import Delta, Usage
from rooflens.runtime.sampling import SampledToken, SamplingParams
from rooflens.runtime.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


@dataclass
class Reply:
    """One reply in the making: its id, and the usage of its answers so far.

    ``chat``: in the form of chat completions. Choice ``i * n + j`` is answer j to prompt i.
    """

    model: str
    chat: bool
    tokenizer: Tokenizer
    params: SamplingParams
    id: str = ""
    created: int = 0
    _usages: dict[int, Usage] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = self.created or int(time.time())

    def chunk(self, prompt: int, delta: Delta) -> dict[str, Any] | None:
        """A delta as a chunk of a stream; None where it brings nothing to show."""
        index = self._note(prompt, delta)
        tokens = self._shown(delta.tokens)
        logprobs = self._logprobs(index, tokens)
        if not delta.text and delta.finish_reason is None and (logprobs is None or not tokens):
            return None
        choice: dict[str, Any] = {
            "index": index, "logprobs": logprobs, "finish_reason": delta.finish_reason,
        }  # fmt: skip
        if self.chat:
            content: dict[str, Any] = {} if index in self._begun else {"role": "assistant"}
            choice["delta"] = content | ({"content": delta.text} if delta.text or content else {})
        else:
            choice["text"] = delta.text
        self._begun.add(index)
        return self._object([choice], kind="chat.completion.chunk" if self.chat else "text_completion")

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk without choices that ends a stream with ``include_usage``."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._object([], kind=kind) | {"usage": self.usage()}

    def whole(self, deltas: Sequence[tuple[int, Delta]]) -> dict[str, Any]:
        """The whole reply from all deltas."""
        by_index: dict[int, list[Delta]] = {}
        for prompt, delta in deltas:
            by_index.setdefault(self._note(prompt, delta), []).append(delta)
        choices = [self._choice(index, own) for index, own in sorted(by_index.items())]
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(choices, kind=kind) | {"usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens of the reply: each prompt once, every answer."""
        n = self.params.n
        prompts = [usage for index, usage in self._usages.items() if index % n == 0]
        prompt = sum(usage.prompt_tokens for usage in prompts)
        output = sum(usage.output_tokens for usage in self._usages.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        }

    def _note(self, prompt: int, delta: Delta) -> int:
        index = prompt * self.params.n + delta.index
        if delta.usage is not None:
            self._usages[index] = delta.usage
        return index

    def _choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        tokens = self._shown([token for delta in deltas for token in delta.tokens])
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": self._logprobs(index, tokens),
            "finish_reason": deltas[-1].finish_reason,
        }
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return choice

    def _object(self, choices: list[dict[str, Any]], *, kind: str) -> dict[str, Any]:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices,
        }  # fmt: skip

    def _shown(self, tokens: Sequence[SampledToken]) -> list[SampledToken]:
        """Without the token that ended the answer, which is no part of its text."""
        ends = set(self.params.stop_token_ids)
        if not self.params.ignore_eos:
            ends |= self.tokenizer.eos_ids
        return [token for token in tokens if token.token_id not in ends]

    def _text(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id], skip_special=False)

    def _logprobs(self, index: int, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if self.params.logprobs is None:
            return None
        if self.chat:
            content = []
            for token in tokens:
                tops = token.top_logprobs[: self.params.logprobs]
                entry = self._entry(token.token_id, token.logprob)
                content.append(entry | {"top_logprobs": [self._entry(*top) for top in tops]})
            return {"content": content, "refusal": None}
        offsets, at = [], self._offsets.get(index, 0)
        for token in tokens:
            offsets.append(at)
            at += len(self._text(token.token_id))
        self._offsets[index] = at
        tops_of: list[Mapping[str, float]] = [
            {self._text(top): value for top, value in reversed(token.top_logprobs)} for token in tokens
        ]
        return {
            "tokens": [self._text(token.token_id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops_of,
            "text_offset": offsets,
        }

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        text = self._text(token_id)
        # A part of a character has no text of its own; its bytes are then not known either.
        raw = None if _REPLACEMENT in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": raw}
