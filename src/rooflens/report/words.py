"""What Rooflens says to people, in English and Chinese: one phrase per key, by ``--lang`` or the locale."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Literal

from rooflens.errors import InputError

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # POSIX: the first that is set decides


class Words:
    """The phrases of one language: ``say("wrote", path=...)`` fills in a phrase's fields."""

    def __init__(self, language: Language, phrases: Mapping[str, str]) -> None:
        self.language = language
        self._phrases = phrases

    def __call__(self, key: str, /, **values: object) -> str:
        """The phrase of that key. A key that does not exist is a bug, so KeyError."""
        return self._phrases[key].format(**values) if values else self._phrases[key]

    def term(self, group: str, name: str) -> str:
        """The word for a name from data (a memory level, a ledger row, a cause); the name where none is."""
        return self._phrases.get(f"{group}.{name}", name.replace("_", " "))

    def listed(self, parts: list[str]) -> str:
        """Sentences in a row, with the language's own gap between them."""
        return self._phrases["sentence_gap"].join(part for part in parts if part)


def language(explicit: str | None = None) -> Language:
    """The language asked for with ``--lang``, else the locale's, else English.

    Accepts ``en``, ``zh`` and their regional spellings (``zh_CN.UTF-8``, ``en-GB``). Raises InputError for
    an explicit language that there is none of; an unknown locale is English.
    """
    if explicit is not None:
        found = _known(explicit)
        if found is None:
            raise InputError("language is not known", value=explicit, allowed=", ".join(LANGUAGES))
        return found
    chosen = next((value for name in _LOCALE_VARIABLES if (value := os.environ.get(name))), "")
    return _known(chosen) or "en"


def _known(name: str) -> Language | None:
    start = name.strip().lower().replace("-", "_").partition(".")[0].partition("_")[0]
    return next((one for one in LANGUAGES if one == start), None)


@cache
def words(chosen: Language) -> Words:
    """The phrases of a language; only that language's module is imported."""
    phrases: Mapping[str, str] = import_module(f"rooflens.report.words_{chosen}").PHRASES
    return Words(chosen, phrases)
