"""A checkpoint's tokenizer: text to tokens and back, chat prompts, and which tokens end a text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from rooflens.errors import InputError, NotFoundError
from rooflens.models.json_input import read_json_object
from rooflens.runtime.chat_template import ChatTemplate, Message
from rooflens.runtime.gguf_tokenizer import tokenizer_from_gguf
from rooflens.runtime.stream_decoder import StreamDecoder
from rooflens.units import MIB

TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)
CHAT_TEMPLATE = "chat_template.jinja"
_LIMIT_BYTES = 64 * MIB
#: Special tokens by the names templates use, and by GGUF's.
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
#: Tokens that end a turn where the file names only the end of a text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


class Tokenizer:
    """The tokenizer of one checkpoint."""

    def __init__(
        self,
        tokenizer: RustTokenizer,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        self.eos_ids = frozenset(eos_ids)
        self.bos_id = bos_id
        self.chat_template = (
            None
            if chat_template is None
            else ChatTemplate(chat_template, special_tokens=special_tokens or {})
        )

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Tokens of ``text``; ``add_special`` puts the checkpoint's first token before them.

        Raises InputError for text that is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError("the text is not valid Unicode", value=f"position {error.start}") from None
        return list(self._tokenizer.encode(text, add_special_tokens=add_special).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of the tokens; bytes that are not UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special))

    def token_text(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, None for an unknown id."""
        spelt: str | None = self._tokenizer.id_to_token(token_id)
        return spelt

    def is_special(self, token_id: int) -> bool:
        """Whether ``decode`` leaves the token out when it skips special ones."""
        return token_id in self._special_ids

    def stream(self, prompt: Sequence[int] = (), *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for one answer, token by token."""
        return StreamDecoder(self, prompt, skip_special=skip_special)

    def chat_text(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt for ``messages`` in the checkpoint's own form. Raises InputError if it has none."""
        if self.chat_template is None:
            raise InputError(
                "the checkpoint has no chat template", next="give a plain prompt: it is a base model"
            )
        return self.chat_template.render(messages, **variables)

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Tokens of the prompt for ``messages``; the template writes the first token itself."""
        return self.encode(self.chat_text(messages, **variables), add_special=False)


def tokenizer_from_directory(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a checkpoint in the form of transformers.

    Raises NotFoundError if there is no tokenizer.json and InputError if it cannot be read.
    """
    directory = Path(path)
    if not (directory / TOKENIZER).is_file():
        raise NotFoundError(
            f"{directory} has no {TOKENIZER}", next="save the tokenizer there with transformers (use_fast)"
        )
    config = _read(directory / TOKENIZER_CONFIG)
    generation = _read(directory / GENERATION_CONFIG)
    try:
        tokenizer = RustTokenizer.from_file(str(directory / TOKENIZER))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{directory / TOKENIZER} cannot be read: {error}") from None
    special = {
        key: _spelt(config[key])
        for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if config.get(key)
    }
    ends = _whole_numbers(generation.get("eos_token_id"))
    for text in (special.get("eos_token"), *_TURN_ENDS):
        token = None if text is None else tokenizer.token_to_id(text)
        if token is not None:
            ends.add(token)
    first = special.get("bos_token")
    return Tokenizer(
        tokenizer,
        eos_ids=ends,
        bos_id=None if first is None else tokenizer.token_to_id(first),
        chat_template=_template(directory, config),
        special_tokens=special,
    )


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in a GGUF header; see ``tokenizer_from_gguf`` for what is raised."""
    tokenizer = tokenizer_from_gguf(metadata)
    special: dict[str, str] = {}
    for name, key in (
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        text = None if token is None else tokenizer.id_to_token(token)
        if text is not None:
            special[name] = text
    ends = _whole_numbers(metadata.get("tokenizer.ggml.eos_token_id"))
    ends |= _whole_numbers(metadata.get("tokenizer.ggml.eot_token_id"))
    ends |= {token for text in _TURN_ENDS if (token := tokenizer.token_to_id(text)) is not None}
    return Tokenizer(
        tokenizer,
        eos_ids=ends,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens=special,
    )


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path, what=path.name, limit_bytes=_LIMIT_BYTES) if path.is_file() else {}


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    if (directory / CHAT_TEMPLATE).is_file():
        return (directory / CHAT_TEMPLATE).read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _spelt(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token)


def _whole_numbers(value: Any) -> set[int]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return {entry for entry in values if isinstance(entry, int) and not isinstance(entry, bool)}
