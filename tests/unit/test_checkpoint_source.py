"""Which files of a directory are the model, and what a path turns out to be."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_files import gguf_bytes, shard, words_of, write_shards, write_split

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.checkpoint import Checkpoint, open_checkpoint
from rooflens.models.checkpoint.selection import Selection, select_weights

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
GGUF_PARTS = ("q8/m-Q8_0-00001-of-00002.gguf", "q8/m-Q8_0-00002-of-00002.gguf")


def select(*names: str, file: str | None = None) -> Selection:
    return select_weights(names, where="the model", file=file)


# --- by names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "file", "files", "index"),
    [
        (("config.json", "model.safetensors"), None, ("model.safetensors",), None),
        ((INDEX, *SHARDS), None, (), INDEX),
        (SHARDS, None, SHARDS, None),
        (tuple(reversed(SHARDS)), None, SHARDS, None),
        ((INDEX, *SHARDS), SHARDS[1], (), INDEX),
        (SHARDS, SHARDS[1], SHARDS, None),
        (("a.safetensors", "b.safetensors"), None, ("a.safetensors", "b.safetensors"), None),
        (("a.safetensors", "b.safetensors"), "b.safetensors", ("b.safetensors",), None),
        (("weights.safetensors.index.json", "w1.safetensors"), None, (), "weights.safetensors.index.json"),
        (("consolidated.safetensors", "params.json"), None, ("consolidated.safetensors",), None),
        (("m.gguf",), None, ("m.gguf",), None),
        (("m-F16.gguf", "mmproj-F16.gguf"), None, ("m-F16.gguf",), None),
        (("mmproj-F16.gguf",), None, ("mmproj-F16.gguf",), None),
        (("m.gguf", "adapter_model.safetensors"), None, ("m.gguf",), None),
        (GGUF_PARTS, None, GGUF_PARTS, None),
        (("m-Q4_0.gguf", *GGUF_PARTS), "Q8_0", GGUF_PARTS, None),
        (("m-Q4_0.gguf", *GGUF_PARTS), "q8", GGUF_PARTS, None),
        (("m-Q4_0.gguf", *GGUF_PARTS), GGUF_PARTS[1], GGUF_PARTS, None),
        (("m.Q4_K_M.gguf", "m.Q4_K_S.gguf"), "q4_k_m", ("m.Q4_K_M.gguf",), None),
        (("m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"), "UD-Q4_K_XL", ("m-UD-Q4_K_XL.gguf",), None),
    ],
)  # fmt: skip
def test_selected(
    names: tuple[str, ...], file: str | None, files: tuple[str, ...], index: str | None
) -> None:
    found = select(*names, file=file)
    assert (found.files, found.index) == (files, index)
    assert found.format == ("gguf" if any(name.endswith(".gguf") for name in files) else "safetensors")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("model.safetensors", "adapter_model.safetensors"), "adapter_model.safetensors (an adapter) is not"),
        (("model.safetensors", "model.fp16.safetensors"), "next to it: 'model.fp16.safetensors'"),
        ((INDEX, *SHARDS, "consolidated.safetensors"), "the same weights in Mistral's own layout"),
        (("model.safetensors", "m-Q4_0.gguf"), "also has GGUF files, which are not read: 'm-Q4_0.gguf'"),
        (("m-F16.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf (a vision projector) is not read"),
        ((*SHARDS, "extra.safetensors"), "files outside the numbered set, which are not read"),
    ],
    ids=words_of,
)  # fmt: skip
def test_what_is_left_out_is_said(names: tuple[str, ...], words: str) -> None:
    (note,) = select(*names).notes
    assert words in note


@pytest.mark.parametrize(
    ("names", "file", "error", "words"),
    [
        ((), None, NotFoundError, "the model has no weights"),
        (("config.json", "README.md"), None, NotFoundError, "no weights.*allowed: .*safetensors or .gguf"),
        (("pytorch_model.bin",), None, UnsupportedError, "pytorch_model.bin is a pickled.*never opened"),
        (("pytorch_model-1-of-2.bin", "pytorch_model.bin.index.json"), None, UnsupportedError, "pickled"),
        (("pytorch_model.bin", "model.safetensors"), "pytorch_model.bin", UnsupportedError, "pickled"),
        (("tf_model.h5",), None, UnsupportedError, "formats that are not read: 'tf_model.h5'"),
        (("m-Q4_0.gguf", "m-Q8_0.gguf"), None, InputError, "several models; name one of: m-Q4_0.gguf, m-Q"),
        (("m-Q4_0.gguf", "n-Q4_0.gguf"), "Q4_0", InputError, "several models"),
        (("m-Q4_0.gguf",), "Q4", NotFoundError, "'Q4'; name one of: m-Q4_0.gguf"),
        (("config.json",), "Q4_0", NotFoundError, "it has no .safetensors or .gguf file"),
        ((SHARDS[0],), None, NotFoundError, "1 of 2 files .* missing: 'model-00002"),
        ((GGUF_PARTS[1],), None, NotFoundError, "missing: 'q8/m-Q8_0-00001"),
        ((*SHARDS, "x-00001-of-00001.safetensors"), None, InputError, "several models"),
        (("a.safetensors.index.json", "b.safetensors.index.json"), None, InputError, "several models"),
    ],
    ids=words_of,
)  # fmt: skip
def test_not_selected(
    names: tuple[str, ...], file: str | None, error: type[RooflensError], words: str
) -> None:
    with pytest.raises(error, match=words):
        select(*names, file=file)


def test_long_lists_of_choices_are_cut() -> None:
    names = [f"m-Q{index}_0.gguf" for index in range(40)]
    with pytest.raises(InputError, match="and 28 more"):
        select(*names)


# --- by path -----------------------------------------------------------------------------------------


def kinds(found: Checkpoint) -> tuple[str, set[str]]:
    return found.format, set(found.by_name)


def test_contents_decide_and_not_the_name(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.bin", "c.safetensors", "blob"):
        (tmp_path / name).write_bytes(gguf_bytes())
        assert kinds(open_checkpoint(tmp_path / name)) == ("gguf", {"a"})
        (tmp_path / name).write_bytes(shard({"w": 1}))
        assert kinds(open_checkpoint(tmp_path / name)) == ("safetensors", {"w"})


def test_directories(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "model.safetensors").write_bytes(shard({"w": 1}))
    (tmp_path / "quants" / "Q8_0").mkdir(parents=True)
    (tmp_path / "quants" / ".cache").mkdir()
    (tmp_path / "quants" / ".cache" / "x.gguf").write_bytes(b"")
    (tmp_path / "quants" / "m-Q4_0.gguf").write_bytes(gguf_bytes())
    write_split(tmp_path / "quants" / "Q8_0", [["p"], ["q"]])
    assert kinds(open_checkpoint(tmp_path / "plain")) == ("safetensors", {"w"})
    assert kinds(open_checkpoint(tmp_path / "quants", file="Q4_0")) == ("gguf", {"a"})
    assert kinds(open_checkpoint(tmp_path / "quants", file="Q8_0")) == ("gguf", {"p", "q"})
    assert kinds(open_checkpoint(tmp_path / "quants" / "Q8_0")) == ("gguf", {"p", "q"})
    with pytest.raises(InputError, match=r"name one of: Q8_0/model-00001-of-00002.gguf, m-Q4_0"):
        open_checkpoint(tmp_path / "quants")


def test_notes_of_the_selection_join_the_problems(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"a": 1}], index=True)
    (tmp_path / "mmproj.gguf").write_bytes(gguf_bytes())
    assert open_checkpoint(tmp_path).problems == ("mmproj.gguf (a vision projector) is not read",)


@pytest.mark.parametrize(
    ("name", "raw", "error", "words"),
    [
        ("pytorch_model.bin", b"PK\x03\x04" + b"\0" * 60, UnsupportedError, "ZIP archive.*never"),
        ("model.pt", b"\x80\x02}q\0.", UnsupportedError, "Python pickle.*never"),
        ("pytorch_model.bin.index.json", b"{}", UnsupportedError, "pickled"),
        ("model.gguf", b"\0" * 64, InputError, "not GGUF"),
        ("model.safetensors", b"\x93NUMPY\x01\0v\0{'descr", InputError, "not safetensors: it begins with"),
    ],
    ids=words_of,
)  # fmt: skip
def test_files_that_are_refused(
    tmp_path: Path, name: str, raw: bytes, error: type[RooflensError], words: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(error, match=words):
        open_checkpoint(tmp_path / name)


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(NotFoundError, match="does not exist"):
        open_checkpoint(tmp_path / "model.safetensors")
    with pytest.raises(NotFoundError, match=r"does not exist"):
        open_checkpoint(tmp_path / "nowhere" / "model-00001-of-00002.safetensors")
    with pytest.raises(NotFoundError, match="link to a file that is not there"):
        open_checkpoint(tmp_path / "link.safetensors")
    with pytest.raises(NotFoundError, match="link to a file that is not there"):
        open_checkpoint(tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        open_checkpoint("/dev/zero")
    with pytest.raises(InputError, match="cannot be read"):
        open_checkpoint("a\0b")
