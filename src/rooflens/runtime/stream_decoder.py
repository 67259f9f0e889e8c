"""Text from tokens as they come: no character is ever split, and the pieces add up to the whole.

A character may take several tokens, so a piece is held back while more tokens could still change it.
Two decoders do that: byte-level ones, whose unfinished character shows as U+FFFD at the end, and those
with byte tokens (``<0xF0>``), which read a run of them as one and may turn all of it into U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
#: Prompt tokens decoded along, so that the output's first space is not taken for the start of a text.
_CONTEXT_TOKENS = 6
#: Bytes, and so tokens at most, that one character of UTF-8 takes.
_LONGEST_CHARACTER = 4


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of the tokens."""
        ...

    def token_text(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether ``decode`` leaves the token out when it skips special ones."""
        ...


class StreamDecoder:
    """One answer's text, piece by piece: ``"".join(pieces) == decode(all tokens)``.

    With ``prompt`` the pieces are what ``decode(prompt + tokens)`` has after ``decode(prompt)``.
    """

    def __init__(self, decoder: Decoder, prompt: Sequence[int] = (), *, skip_special: bool = True) -> None:
        self._decoder = decoder
        self._skip_special = skip_special
        self._in_bytes = False  # whether the last token that shows is part of a run of bytes
        # _window: tokens decoded together. Its first _given have been given out as text, or are the prompt's.
        self._window = list(prompt[self._context_start(prompt) :])
        self._given = len(self._window)
        if self._window and not self._text(self._window):
            self._window, self._given = [], 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._window.append(token_id)
        if not (self._skip_special and self._decoder.is_special(token_id)):
            self._in_bytes = self._is_byte(token_id)
        if self._in_bytes:
            return ""
        text = self._text(self._window)
        if text.endswith(_REPLACEMENT):
            return self._give_settled(text)
        return self._give(text, len(self._window))

    def finish(self) -> str:
        """The rest, unfinished characters as U+FFFD."""
        return self._give(self._text(self._window), len(self._window))

    def _context_start(self, prompt: Sequence[int]) -> int:
        """Where the context begins: never inside a run of byte tokens, which is read as a whole."""
        start = max(0, len(prompt) - _CONTEXT_TOKENS)
        while start > 0 and self._is_byte(prompt[start]):
            start -= 1
        return start

    def _is_byte(self, token_id: int) -> bool:
        spelt = self._decoder.token_text(token_id)
        return spelt is not None and _BYTE_TOKEN.fullmatch(spelt) is not None

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, skip_special=self._skip_special)

    def _give_settled(self, text: str) -> str:
        """Of bytes that are no text, what no later token can change: all before the last U+FFFD.

        A model that goes on in such bytes would otherwise be held back, and decoded again, for ever.
        """
        count = len(self._window) - _LONGEST_CHARACTER
        if count <= self._given:
            return ""
        settled = self._text(self._window[:count])
        return self._give(settled, count) if text[:-1].startswith(settled) else ""

    def _give(self, text: str, count: int) -> str:
        """Give ``text``, which is that of the window's first ``count`` tokens, beyond what was given."""
        before = self._text(self._window[: self._given])
        piece = text[len(before) :]
        if piece:
            # What was just given becomes the context of what follows.
            self._window = self._window[self._given :]
            count -= self._given
        self._given = count
        return piece


class StopFilter:
    """Finds stop strings in text that comes in pieces, across their borders.

    Text that may turn out to be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        #: The stop string that was found.
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that is certain to stand before any stop string."""
        if not self._stops:
            return piece
        if self.found is not None:
            return ""
        self._held += piece
        hits = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if hits:
            at, self.found = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            text, self._held = self._held[:at], ""
            return text
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        split = len(self._held) - keep
        text, self._held = self._held[:split], self._held[split:]
        return text

    def finish(self) -> str:
        """The text still held back, once it is known that nothing follows."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
