"""The tokenizer in a GGUF header, built as a ``tokenizers.Tokenizer``.

Two kinds: ``gpt2`` (byte-level BPE: vocabulary and merges are in the file, the rule that splits text into
words is named by ``tokenizer.ggml.pre``) and ``llama`` (SentencePiece BPE: the file has scores, from which
the merges follow). The word rules and normalizers are those of the models' own tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.checkpoint.gguf_header import GGUFArray

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "▁"
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_WORDS = _QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
WORD_RULES = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF header. Raises UnsupportedError for a kind or word rule not covered."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _array(metadata, "tokenizer.ggml.tokens")
    if tokens is None:
        raise InputError("the GGUF file has no tokenizer.ggml.tokens", next="use a file with a vocabulary")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentence_piece(metadata, tokens)
    else:
        raise UnsupportedError(
            "this kind of GGUF tokenizer is not covered", value=kind, allowed="gpt2, llama"
        )
    _add_special(tokenizer, tokens, _array(metadata, "tokenizer.ggml.token_type") or ())
    _add_template(tokenizer, metadata, tokens, default_bos=kind == "llama")
    return tokenizer


def _array(metadata: Mapping[str, Any], key: str) -> Sequence[Any] | None:
    value = metadata.get(key)
    return value.values() if isinstance(value, GGUFArray) else value


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    merges = _array(metadata, "tokenizer.ggml.merges")
    if merges is None:
        raise InputError("the GGUF file has a gpt2 tokenizer without tokenizer.ggml.merges")
    rule = metadata.get("tokenizer.ggml.pre", "default")
    if rule not in WORD_RULES:
        raise UnsupportedError(
            "this word rule of a GGUF tokenizer is not covered", value=rule, allowed=", ".join(WORD_RULES)
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a word that is in the vocabulary whole, whatever its merges would give.
    tokenizer = Tokenizer(BPE(vocabulary, pairs, ignore_merges=rule == "llama-bpe"))
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _word_rule(rule)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word_rule(rule: str) -> pre_tokenizers.PreTokenizer:
    words = {"qwen2": _QWEN2_WORDS, "llama-bpe": _LLAMA3_WORDS}.get(rule)
    if words is not None:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(words), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])
    return by_bytes


def _sentence_piece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    scores = _array(metadata, "tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise InputError("the GGUF file has a llama tokenizer without one score per token")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            merges_from_scores(vocabulary, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    ends: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer


def merges_from_scores(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first: what SentencePiece does, as BPE merges.

    Pairs that make the same token keep the order of their parts' ids.
    """
    merges: list[tuple[float, int, int, int, str, str]] = []
    find = vocabulary.get
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left = find(token[:cut])
            if left is None:
                continue
            right = find(token[cut:])
            if right is not None:
                merges.append((-scores[index], index, left, right, token[:cut], token[cut:]))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens are special; the user's own are found whole in any text."""
    special = [token for token, kind in zip(tokens, types, strict=False) if kind == _CONTROL]
    own = [token for token, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in own])


def _add_template(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str], *, default_bos: bool
) -> None:
    """The first and last tokens of every text."""
    first = metadata.get("tokenizer.ggml.bos_token_id")
    last = metadata.get("tokenizer.ggml.eos_token_id")
    parts, named = ["$A"], []
    if metadata.get("tokenizer.ggml.add_bos_token", default_bos) and first is not None:
        parts.insert(0, tokens[first])
        named.append((tokens[first], first))
    if metadata.get("tokenizer.ggml.add_eos_token", False) and last is not None:
        parts.append(tokens[last])
        named.append((tokens[last], last))
    if named:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(parts), special_tokens=list(dict.fromkeys(named))
        )
