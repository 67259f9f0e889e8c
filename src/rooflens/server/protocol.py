"""What OpenAI's clients send. ``null`` is the same as absent; what is not supported is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from rooflens.errors import InputError, UnsupportedError
from rooflens.runtime.sampling import SamplingParams

Number = StrictInt | StrictFloat
Tokens = list[Annotated[StrictInt, Field(ge=0)]]
#: Answers that one request may ask for, all prompts together.
MAX_ANSWERS = 128
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "ignore_eos",
)  # fmt: skip


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool | None = None
    include_obfuscation: StrictBool | None = None


class _Request(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    max_tokens: StrictInt | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    n: StrictInt | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: StrictStr | list[StrictStr] | None = None
    seed: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    # Not OpenAI's, but every open server's.
    top_k: StrictInt | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    stop_token_ids: list[StrictInt] | None = None
    ignore_eos: StrictBool | None = None
    # Notes of the caller's, which change no answer.
    user: StrictStr | None = None
    metadata: dict[str, Any] | None = None
    store: StrictBool | None = None
    service_tier: StrictStr | None = None
    safety_identifier: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None
    # Known and not supported: refused unless they ask for nothing.
    logit_bias: dict[str, Any] | None = None

    @property
    def answers(self) -> int:
        """``n``."""
        return 1 if self.n is None else self.n

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def refuse_unsupported(self) -> None:
        """Raise UnsupportedError for the first parameter that would change the answer and is not done."""
        for field, nothing in self._unsupported().items():
            value = getattr(self, field)
            if value is not None and value not in nothing:
                raise UnsupportedError(f"{field} is not supported", next=f"leave {field} out")
        if self.stream_options is not None and not self.stream:
            raise InputError("stream_options needs stream")
        if self.answers > MAX_ANSWERS:
            raise InputError("n is not usable", value=self.n, allowed=f"1 to {MAX_ANSWERS}")

    def _unsupported(self) -> dict[str, tuple[Any, ...]]:
        return {"logit_bias": ({},)}

    def _params(self, *, max_tokens: int, logprobs: int | None) -> SamplingParams:
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingParams(
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=logprobs,
            **given,
        )


class CompletionRequest(_Request):
    """``POST /v1/completions``."""

    prompt: StrictStr | Tokens | list[StrictStr] | list[Tokens]
    logprobs: StrictInt | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None
    best_of: StrictInt | None = None

    def _unsupported(self) -> dict[str, tuple[Any, ...]]:
        return super()._unsupported() | {"echo": (False,), "suffix": ("",), "best_of": (self.answers,)}

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt, as text or tokens. Raises InputError for none or too many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        prompts: list[str | list[int]] = [one for one in self.prompt if not isinstance(one, int)]
        if not prompts:
            raise InputError("prompt is empty")
        if len(prompts) * self.answers > MAX_ANSWERS:
            raise InputError(
                "prompt has too many entries",
                value=len(prompts) * self.answers,
                allowed=f"{MAX_ANSWERS} answers in one request",
            )
        return prompts

    def params(self) -> SamplingParams:
        """As the engine takes them. Raises InputError naming the field."""
        limit = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        return self._params(max_tokens=limit, logprobs=self.logprobs)


class TextPart(BaseModel):
    """A part of a message; text is the only kind that the runtime reads."""

    type: Literal["text"]
    text: StrictStr


class ChatMessage(BaseModel):
    """One message; what else it has is given to the template."""

    model_config = ConfigDict(extra="allow")

    role: StrictStr
    content: StrictStr | list[TextPart] | None = None

    def as_template(self) -> dict[str, Any]:
        """The message for a chat template: its content one text."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return {**(self.model_extra or {}), "role": self.role, "content": content or ""}


class ChatRequest(_Request):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: StrictBool | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[StrictStr] | None = None

    def _unsupported(self) -> dict[str, tuple[Any, ...]]:
        return super()._unsupported() | {
            "tools": ([],),
            "tool_choice": ("none", "auto"),
            "response_format": ({"type": "text"},),
            "modalities": (["text"],),
        }

    def limit(self) -> int | None:
        """The most tokens asked for; None leaves it to the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def params(self, *, room: int) -> SamplingParams:
        """As the engine takes them; ``room``: tokens that fit after the prompt. Raises InputError."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError("top_logprobs needs logprobs")
        limit = self.limit()
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._params(max_tokens=max(1, room) if limit is None else limit, logprobs=logprobs)
