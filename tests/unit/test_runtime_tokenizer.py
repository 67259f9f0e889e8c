"""Tokenizers from small GGUF metadata and directories, and chat templates in their sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from rooflens.errors import InputError, NotFoundError, UnsupportedError
from rooflens.runtime.chat_template import ChatTemplate
from rooflens.runtime.gguf_tokenizer import WORD_RULES, merges_from_scores, tokenizer_from_gguf
from rooflens.runtime.tokenizer import tokenizer_from_directory, tokenizer_from_metadata

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
NORMAL, CONTROL, USER = 1, 3, 4


def byte_level_metadata(rule: str = "gpt-2", **more: Any) -> dict[str, Any]:
    tokens = [*ALPHABET, "12", "123", "Ġa", "<s>", "</s>", "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["1 2", "12 3", "Ġ a"],
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 3) + [CONTROL, CONTROL, USER],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        **more,
    }


# "<unk>", bytes, then pieces with a score each: the higher, the earlier it is merged.
PIECES = {"▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "ab": -5.0, "bc": -6.0, "abc": -7.0, "▁a": -8.0}


def sentence_piece_metadata(**more: Any) -> dict[str, Any]:
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(PIECES.values()),
        "tokenizer.ggml.token_type": [2, CONTROL, CONTROL] + [6] * 256 + [NORMAL] * len(PIECES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def spelt(metadata: dict[str, Any], text: str) -> list[str]:
    return list(tokenizer_from_gguf(metadata).encode(text).tokens)


@pytest.mark.parametrize(
    ("rule", "tokens"),
    [("gpt-2", ["123", "4"]), ("smollm", ["1", "2", "3", "4"]), ("qwen2", ["1", "2", "3", "4"]),
     ("llama-bpe", ["123", "4"])],
)  # fmt: skip
def test_digits_under_each_word_rule(rule: str, tokens: list[str]) -> None:
    assert spelt(byte_level_metadata(rule), "1234") == tokens


def test_special_tokens_are_whole_and_added_as_the_file_says() -> None:
    metadata = byte_level_metadata()
    assert spelt(metadata, "x</s><tool>y") == ["x", "</s>", "<tool>", "y"]
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    assert spelt(byte_level_metadata(**both), "x") == ["<s>", "x", "</s>"]
    made = tokenizer_from_metadata(metadata)
    assert made.decode(made.encode("x</s><tool>y")) == "x<tool>y"
    assert (made.bos_id, made.eos_ids) == (259, {260})


def test_sentence_piece_merges_follow_the_scores() -> None:
    # "ab" (-5) before "bc" (-6); then "abc" from "ab" + "c".
    assert spelt(sentence_piece_metadata(), "abc") == ["<s>", "▁", "abc"]
    assert spelt(sentence_piece_metadata(), "a bc") == ["<s>", "▁a", "▁", "bc"]
    assert spelt(sentence_piece_metadata(**{"tokenizer.ggml.add_bos_token": False}), "b") == ["▁", "b"]
    without = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    assert spelt(sentence_piece_metadata(**without), "b b") == ["b", "▁", "b"]


def test_what_the_vocabulary_lacks_is_spelt_in_bytes() -> None:
    assert spelt(sentence_piece_metadata(), "é")[-2:] == ["<0xC3>", "<0xA9>"]


def test_merges_from_scores_by_hand() -> None:
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5}
    scores = [0.0, 0.0, 0.0, -1.0, -3.0, -2.0]
    assert merges_from_scores(vocabulary, scores) == [("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    for made in (BYTE_LEVEL, SENTENCE_PIECE):
        assert made.decode(made.encode(text, add_special=False), skip_special=False) == text


BYTE_LEVEL = tokenizer_from_metadata(byte_level_metadata("llama-bpe"))
SENTENCE_PIECE = tokenizer_from_metadata(sentence_piece_metadata())


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"tokenizer.ggml.model": "gpt2"}, InputError, r"no tokenizer\.ggml\.tokens"),
        (byte_level_metadata(**{"tokenizer.ggml.merges": None}), InputError, "without"),
        (byte_level_metadata("abacus"), UnsupportedError, "abacus"),
        (byte_level_metadata(**{"tokenizer.ggml.model": "t5"}), UnsupportedError, "t5"),
        (sentence_piece_metadata(**{"tokenizer.ggml.scores": [0.0]}), InputError, "one score per token"),
    ],
)
def test_vocabularies_that_cannot_be_used(
    metadata: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(metadata)
    assert "smollm" in WORD_RULES


def write_directory(directory: Path, **config: Any) -> Path:
    tokenizer_from_gguf(byte_level_metadata()).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_directory_in_the_form_of_transformers(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    write_directory(tmp_path, bos_token="<s>", eos_token={"content": "</s>"}, chat_template=template)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [260, 7]}))
    made = tokenizer_from_directory(tmp_path)
    assert made.eos_ids == {260, 7}
    assert made.bos_id == 259
    assert made.encode_chat([{"role": "user", "content": "hi"}])[0] == 259
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert tokenizer_from_directory(tmp_path).chat_text([]) == "from the file"


def test_several_templates_take_the_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert tokenizer_from_directory(write_directory(tmp_path, chat_template=named)).chat_text([]) == "d"


def test_a_directory_without_or_with_a_damaged_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        tokenizer_from_directory(tmp_path)


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source, special_tokens={"eos_token": "</s>"}).render(
        [{"role": "user", "content": "<b>é"}], **variables
    )


def test_the_helpers_that_templates_use() -> None:
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "<b>é"}]'
    assert render("{{ tools is none }}{{ eos_token }}{{ add_generation_prompt }}") == "True</s>True"
    assert render("{{ strftime_now('%Y') }}").isdigit()
    assert (
        render("{% for m in messages %}\n  {% generation %}{{ m.role }}{% endgeneration %}\n{% endfor %}")
        == "user"
    )
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "13"
    )
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}]) == "f"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses.*roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "sandbox"),
        ("{{ messages.append(1) }}", "sandbox"),
        ("{{ undefined.attribute }}", "fails"),
        ("{{ messages[0].content + 1 }}", "fails"),
    ],
)
def test_templates_that_refuse_fail_or_reach_out(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(source)


def test_a_template_that_is_not_one() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        ChatTemplate("{% if %}", special_tokens={})
