"""Streaming: pieces add up to the whole, no character is split, stop strings are found across pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.models import BPE

from rooflens.runtime.stream_decoder import StopFilter
from rooflens.runtime.tokenizer import Tokenizer

TEXTS = [
    "plain",
    " leading and trailing ",
    "emoji 😀 family 👩‍👩‍👧 flag 🇫🇷",
    "combining e\u0301 o\u0308\u0304, ď, 你好",
    "a real \ufffd in the text",
    "\ufffd\ufffd",
    "ends with \ufffd",
    "line\nbreaks\r\n\ttabs",
    "",
]


def byte_level() -> Tokenizer:
    """Every byte a token, a few merges: what GPT-2, Llama 3 and Qwen have."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    merges = [("Ġ", "t"), ("ð", "Ł")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = RustTokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(tokenizer)


def byte_fallback(*, prefix_space: bool = True) -> Tokenizer:
    """Pieces with spaces as U+2581, bytes for what is missing: what Llama 2 and Gemma have."""
    pieces = [
        "<unk>",
        *(f"<0x{value:02X}>" for value in range(256)),
        "▁",
        *"abcdefghijklmnopqrstuvwxyz",
        "\ufffd",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    vocabulary["▁a"] = len(vocabulary)
    tokenizer = RustTokenizer(
        BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    steps = [normalizers.Replace(" ", "▁")]
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix_space:
        steps.insert(0, normalizers.Prepend("▁"))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(ends)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(tokenizer)


KINDS = {
    "byte_level": byte_level(),
    "byte_fallback": byte_fallback(),
    "no_prefix": byte_fallback(prefix_space=False),
}


def pieces_of(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    stream = tokenizer.stream(prompt)
    return [*(stream.push(token) for token in token_ids), stream.finish()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_and_split_no_character(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    token_ids = tokenizer.encode(text)
    pieces = pieces_of(tokenizer, token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_tokens_whatsoever_add_up(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    assert "".join(pieces_of(tokenizer, token_ids)) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=30), cut=st.integers(0, 30))
def test_a_text_continued_from_its_prompt(kind: str, text: str, cut: int) -> None:
    tokenizer = KINDS[kind]
    token_ids = tokenizer.encode(text)
    prompt, rest = token_ids[:cut], token_ids[cut:]
    before = tokenizer.decode(prompt)
    if "\ufffd" in before or not before:
        return  # a prompt that ends inside a character
    assert "".join(pieces_of(tokenizer, rest, prompt)) == text[len(before) :]


def test_the_first_space_after_a_prompt_is_kept() -> None:
    tokenizer = KINDS["byte_fallback"]
    prompt, answer = tokenizer.encode("hello"), [tokenizer.encode("x a")[-1]]
    assert tokenizer.decode(answer) == "a"
    assert "".join(pieces_of(tokenizer, answer, prompt)) == " a"


def test_invalid_bytes_at_the_end_are_given_at_finish() -> None:
    tokenizer = KINDS["byte_level"]
    whole = tokenizer.encode("x😀")
    stream = tokenizer.stream()
    assert [stream.push(token) for token in whole[:-1]] == ["x", *[""] * (len(whole) - 2)]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def filtered(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    stop = StopFilter(stops)
    text = "".join(stop.push(piece) for piece in pieces)
    return text + stop.finish(), stop.found


def test_a_stop_string_across_pieces() -> None:
    assert filtered(["END"], ["one E", "N", "D two"]) == ("one ", "END")
    assert filtered(["END"], ["one E", "N", "Q"]) == ("one ENQ", None)
    assert filtered(["aab"], ["aa", "ab"]) == ("a", "aab")
    assert filtered(["x", "xyz"], ["axyz"]) == ("a", "xyz")
    assert filtered([], ["a", "b"]) == ("ab", None)


def test_nothing_of_a_stop_string_is_given_out_early() -> None:
    stop = StopFilter(["\n\n"])
    assert [stop.push(piece) for piece in ("a\n", "b\n", "\nc", "d")] == ["a", "\nb", "", ""]
    assert stop.found == "\n\n"


@settings(max_examples=200, deadline=None)
@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_any_cut_finds_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    got, found = filtered(stops, pieces)
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if first is None:
        assert (got, found) == (text, None)
    else:
        assert found in stops
        # A stop that is complete earlier may hide one that begins earlier and ends later.
        assert text.startswith(got + str(found))
        assert all(stop not in got for stop in stops)


def test_bytes_that_are_no_text_come_out_as_they_come() -> None:
    """They are one U+FFFD each; held back for ever, each new token would cost more than the one before."""
    tokenizer = KINDS["byte_level"]
    lone = tokenizer.encode("😀")[-1]  # a continuation byte
    stream = tokenizer.stream([])
    pieces = [stream.push(lone) for _ in range(300)]
    assert len("".join(pieces)) >= 290
    assert len(stream._window) < 20
    assert "".join(pieces) + stream.finish() == tokenizer.decode([lone] * 300)


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_add_up(values: list[int]) -> None:
    tokenizer = KINDS["byte_level"]
    pieces = pieces_of(tokenizer, values)
    assert "".join(pieces) == tokenizer.decode(values)
