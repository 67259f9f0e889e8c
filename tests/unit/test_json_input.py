"""JSON files as people and servers leave them: one sentence of error, or the object."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.json_input import LIMIT_DEPTH, read_json_object


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_reads_an_object_from_bytes_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 4096, "name": "\\ud83e\\udd99 ü"}', encoding="utf-8")
    expected = {"hidden_size": 4096, "name": "🦙 ü"}
    assert read_json_object(path) == expected
    assert read_json_object(path.read_bytes()) == expected


def test_a_utf8_byte_order_mark_is_harmless() -> None:
    assert read_json_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_equal_duplicates_are_one_key() -> None:
    assert read_json_object(b'{"dtype": "bfloat16", "dtype": "bfloat16"}') == {"dtype": "bfloat16"}


def test_infinity_is_kept_where_published_configs_mean_it() -> None:
    config = read_json_object(b'{"text_config": {"time_step_limit": [0.0, Infinity]}}')
    assert config == {"text_config": {"time_step_limit": [0.0, math.inf]}}


def test_depth_limit_is_inclusive() -> None:
    assert "a" in read_json_object(nested(LIMIT_DEPTH))
    with pytest.raises(InputError, match="nested too deeply"):
        read_json_object(nested(LIMIT_DEPTH + 1))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "is empty"),
        (b" \r\n\t", "is empty"),
        (b'{"a": 1', r"cut off at line 1, column 8"),
        (b'{"a": 1,\n "b": [1, 2', r"cut off at line 2, column 12"),
        (b'{"a": "unfinis', "cut off at line 1, column 7"),
        (b'{"a": tru', "cut off"),
        (b'{"a": 1,', "cut off"),
        (b'{"a": 1} {"b": 2}', "not valid JSON at line 1, column 10"),
        (b"{'a': 1}", "not valid JSON at line 1, column 2"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": NaN}', "not finite in 'a'"),
        (b'{"a": {"b": [1, -Infinity]}}', "not finite in 'a.b.1'"),
        (b'{"a": 1e999}', "not finite in 'a'"),
        (b'{"layers": 2, "layers": 3}', "gives 'layers' twice"),
        (b'{"a": {"x": 1, "x": null}}', "gives 'x' twice"),
        (b"[1, 2]", "does not hold a JSON object .got an array"),
        (b"null", "got null"),
        (b"3.5", "got a number"),
        (b'"{}"', "got a string"),
        (b"true", "got a boolean"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "not UTF-8"),
        ('{"a": 1}'.encode("utf-32"), "not UTF-8"),
        (b'{"a": "\xe9"}', "byte 0xe9 at offset 7"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number of thousands of digits"),
        (nested(100_000), "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "web page"),
        (b"\n <HTML>", "web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
        (b"Entry not found", r"text file, not JSON .got Entry not found"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 4976698672\n",
            r"Git LFS pointer for a file of 4.98 GB.*git lfs pull",
        ),
    ],
)
def test_refused_in_one_sentence(raw: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        read_json_object(raw, what="config.json")
    message = str(caught.value)
    assert message.startswith("config.json")
    assert "\n" not in message
    assert len(message) < 400


def test_pickles_are_never_opened() -> None:
    with pytest.raises(UnsupportedError, match=r"pickle.*never"):
        read_json_object(b"\x80\x04\x95\x0b\x00")


def test_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "' + b"x" * 100 + b'"}')
    with pytest.raises(InputError, match="too large"):
        read_json_object(path, limit_bytes=100)
    assert read_json_object(path, limit_bytes=200)


def test_an_endless_file_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(InputError, match="too large"):
        read_json_object("/dev/zero", limit_bytes=1000)


@pytest.mark.parametrize(
    ("path", "error", "sentence"),
    [
        ("missing.json", NotFoundError, "'.*miss.*' does not exist"),
        (".", InputError, "is a directory"),
        ("a\0b", InputError, "cannot be read"),
        ("x" * 5000, InputError, "cannot be read"),
    ],
)
def test_paths_that_cannot_be_read(
    tmp_path: Path, path: str, error: type[RooflensError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        read_json_object(tmp_path / path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # File modes do not bind the superuser, under whom tests often run: the refusal is simulated.
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="may not be read"):
        read_json_object(tmp_path / "config.json")
