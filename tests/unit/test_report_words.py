"""Words: both languages say the same things, and only what the code asks for."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

import rooflens
from rooflens.errors import InputError
from rooflens.models.accounting import layer_counts
from rooflens.report import words_en, words_zh
from rooflens.report.words import LANGUAGES, language, words

PACKAGE = Path(rooflens.__file__).parent


def has_words_of_its_own(path: Path) -> bool:
    """Its own, or those of the report that it is a part of: ``bench_speculative`` has ``words_bench``."""
    first = path.stem.partition("_")[0]
    own = (PACKAGE / "report" / f"words_{name}.py" for name in (path.stem, first))
    return first == "words" or any(words.exists() for words in own)


CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("report", "cli")
    for path in sorted((PACKAGE / folder).rglob("*.py"))
    if not has_words_of_its_own(path)
)


def fields(phrase: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(phrase) if name}


def test_both_languages_have_the_same_keys_in_the_same_order():
    assert list(words_en.PHRASES) == list(words_zh.PHRASES)


@pytest.mark.parametrize("key", words_en.PHRASES)
def test_both_languages_fill_in_the_same_fields(key):
    assert fields(words_en.PHRASES[key]) == fields(words_zh.PHRASES[key])


def test_chinese_phrases_are_chinese():
    same = {key for key, phrase in words_zh.PHRASES.items() if phrase == words_en.PHRASES[key]}
    for key in same:
        assert not re.search(r"[a-z]{6,}", fields_removed(words_zh.PHRASES[key])), key


def fields_removed(phrase: str) -> str:
    return re.sub(r"\{\w+\}", "", phrase)


def test_every_phrase_that_code_names_exists():
    asked = set(re.findall(r"""\bsay\(\s*(?:"([\w. ]+)"|f"([\w. ]+)")""", CODE))
    named = {plain for plain, _ in asked if plain}
    assert named
    assert named <= set(words_en.PHRASES)


def test_every_phrase_is_asked_for():
    literals = set(re.findall(r'"([\w. -]+)"', CODE))
    groups = set(re.findall(r"""term\(\s*["']([\w.]+)["']""", CODE))
    groups |= set(re.findall(r"""f["']((?:\w+\.)+)\{""", CODE))
    unused = [
        key
        for key in words_en.PHRASES
        if key not in literals and not any(key.startswith(f"{group.rstrip('.')}.") for group in groups)
    ]
    assert unused == []


def test_every_kind_of_layer_has_a_word(llama):
    for kind in layer_counts(llama.spec):
        assert f"kind.{kind}" in words_en.PHRASES
        assert f"kind_meaning.{kind}" in words_en.PHRASES


@pytest.fixture
def llama():
    return rooflens.inspect("llama-2-7b")


def test_term_falls_back_to_the_name_itself():
    assert words("en").term("ledger", "some_new_row") == "some new row"


def test_a_missing_phrase_is_a_bug():
    with pytest.raises(KeyError):
        words("en")("no.such.phrase")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("en", "en"), ("zh", "zh"), ("zh-CN", "zh"), ("zh_CN.UTF-8", "zh"), ("EN_gb", "en"), ("zh_TW", "zh")],
)
def test_language_asked_for(asked, expected):
    assert language(asked) == expected


@pytest.mark.parametrize("asked", ["fr", "", "chinese", "e n"])
def test_language_that_there_is_none_of(asked):
    with pytest.raises(InputError, match="en, zh"):
        language(asked)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "en_US", "LC_ALL": "zh_CN"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_language_of_the_locale(monkeypatch, environment, expected):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language() == expected


def test_words_of_every_language_load():
    assert {words(name).language for name in LANGUAGES} == set(LANGUAGES)
