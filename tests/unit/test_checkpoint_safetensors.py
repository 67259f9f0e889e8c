"""safetensors headers: against the library, sharded in every way, and in every way a file can be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import safetensors_bytes, words_of, write_shards

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.checkpoint.byte_source import MemorySource
from rooflens.models.checkpoint.safetensors import parse_index, read_safetensors
from rooflens.models.checkpoint.safetensors_header import DTYPE_BITS, read_header
from rooflens.models.checkpoint.source import open_checkpoint
from rooflens.models.checkpoint.tensor import Checkpoint

INDEX = "model.safetensors.index.json"


def parse(raw: bytes) -> Checkpoint:
    return read_safetensors([MemorySource(raw, "model.safetensors")])


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# --- right files -------------------------------------------------------------------------------------


def test_agrees_with_the_library(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    tensors = {
        f"layers.{index}.{dtype}": np.zeros((index + 1, 3), dtype=dtype)
        for index, dtype in enumerate(("float64", "float32", "float16", "int64", "uint8", "bool", "uint32"))
    }
    tensors |= {"scalar": np.zeros((), dtype="float32"), "empty": np.zeros((0, 7), dtype="int8")}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    found = open_checkpoint(path)
    assert found.format == "safetensors"
    assert found.metadata == {"format": "pt"}
    assert found.problems == ()
    assert found.files[0].header_bytes + found.total_bytes == path.stat().st_size == found.files[0].bytes
    raw = path.read_bytes()
    with safetensors.safe_open(path, "np") as library:
        assert set(library.keys()) == set(found.by_name)
        for name, tensor in found.by_name.items():
            theirs = library.get_slice(name)
            assert (tensor.dtype, list(tensor.shape)) == (theirs.get_dtype(), theirs.get_shape())
            stored = raw[tensor.offset : tensor.offset + tensor.bytes]
            assert stored == library.get_tensor(name).tobytes()
    assert found.by_name["scalar"].shape == ()
    assert found.by_name["scalar"].elements == 1
    assert found.by_name["empty"].bytes == 0


@pytest.mark.parametrize(("dtype", "bits"), DTYPE_BITS.items())
def test_every_type_has_its_size(dtype: str, bits: int) -> None:
    size = 4 * 8 * bits // 8  # 32 elements
    found = parse(safetensors_bytes({"w": entry(dtype, [4, 8], [0, size])}, size))
    assert (found.tensors[0].bytes, found.tensors[0].elements) == (size, 32)


def test_packed_integers_keep_their_stored_shape() -> None:
    # MLX 4-bit: a 4096 x 4096 weight is stored as 4096 x 512 U32, eight weights in each.
    size = 4096 * 512 * 4
    found = parse(safetensors_bytes({"w.weight": entry("U32", [4096, 512], [0, size])}, size))
    assert (found.tensors[0].shape, found.tensors[0].bytes) == ((4096, 512), 8_388_608)
    assert found.bytes_by_dtype == {"U32": 8_388_608}


def test_a_padded_header_and_tensors_out_of_order() -> None:
    table = {"b": entry(offsets=[16, 32]), "__metadata__": {"x": "y"}, "a": entry(offsets=[0, 16])}
    found = parse(safetensors_bytes(table, 32, padding=b" " * 50))
    assert [tensor.name for tensor in found.tensors] == ["b", "a"]
    assert found.by_name["b"].offset == found.by_name["a"].offset + 16
    assert found.problems == ()


# --- findings that are not fatal ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "data_bytes", "words"),
    [
        ({"a": entry()}, 20, "the last 4 bytes belong to no tensor"),
        ({"a": entry(), "b": entry(offsets=[24, 40])}, 40, "8 bytes in 1 place between tensors"),
        ({"a": entry(offsets=[8, 24])}, 24, "8 bytes in 1 place"),
    ],
    ids=words_of,
)
def test_bytes_of_no_tensor_are_reported(table: dict[str, Any], data_bytes: int, words: str) -> None:
    safetensors = pytest.importorskip("safetensors")
    raw = safetensors_bytes(table, data_bytes)
    (problem,) = parse(raw).problems
    assert words in problem
    assert problem.endswith("which the safetensors library refuses")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(raw)


# --- wrong files -------------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 4976698672\n"


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (b"", InputError, "is empty"),
        (b"\x10\0\0", InputError, "cut off: it has 3 bytes"),
        (LFS, InputError, "Git LFS pointer for a file of 4.98 GB.*git lfs pull"),
        (b"<!DOCTYPE html><html lang=en>", InputError, "web page"),
        (b"Entry not found", InputError, "text file.*Entry not found"),
        (b'{"error":"Invalid credentials"}', InputError, r'text file.*\{"error"'),
        (b"PK\x03\x04" + b"\0" * 99, UnsupportedError, "ZIP.*never"),
        (b"\x80\x02}q\x00(X\x05", UnsupportedError, "pickle"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 30, UnsupportedError, "HDF5"),
        (b"GGUF\x03\0\0\0" + b"\0" * 30, InputError, "not safetensors: it begins with b'GGUF"),
        ((132_095_296).to_bytes(8, "little") + b'{"a"', InputError, "header of 132,095,296 bytes.*limit"),
        ((500).to_bytes(8, "little") + b'{"a"', InputError, "header ends at byte 508, but the file has 12"),
        ((2**64 - 1).to_bytes(8, "little") + b'{"a"', InputError, "not safetensors"),
        ((12).to_bytes(8, "little") + b"[1, 2, 3, 4]", InputError, "not safetensors: it begins with"),
        ((12).to_bytes(8, "little") + b'{"a": 1, "b"', InputError, "header of model.safetensors is cut off"),
        ((0).to_bytes(8, "little"), InputError, "cut off: it has 8 bytes"),
        (safetensors_bytes({"a": entry()}, 15), InputError, "end at byte 86, but the file has 85"),
        (safetensors_bytes({"a": entry("Q4_0")}, 16), UnsupportedError, "'a' has the unknown dtype 'Q4_0'"),
        (safetensors_bytes({"a": entry(None)}, 16), UnsupportedError, "unknown dtype 'None'"),
        (safetensors_bytes({"a": entry(["F32"])}, 16), UnsupportedError, "unknown dtype"),
        (safetensors_bytes({"a": entry(shape=[5])}, 16), InputError, r"F32 \[5\] takes 20 bytes.* give 16"),
        (safetensors_bytes({"a": entry("F4", [3], [0, 2])}, 2), InputError, "does not fill whole bytes"),
        (safetensors_bytes({"a": entry(shape=[-4])}, 16), InputError, "shape that is not a list of sizes"),
        (safetensors_bytes({"a": entry(shape=[4.0])}, 16), InputError, "shape that is not"),
        (safetensors_bytes({"a": entry(shape=[True] * 4)}, 16), InputError, "shape that is not"),
        (safetensors_bytes({"a": entry(shape="4")}, 16), InputError, "shape that is not"),
        (safetensors_bytes({"a": entry(shape=4)}, 16), InputError, "shape that is not"),
        (safetensors_bytes({"a": entry(shape=[2**62] * 3)}, 16), InputError, "takes too many bytes"),
        (safetensors_bytes({"a": entry(shape=[10**4000])}, 16), InputError, "shape that is not"),
        (safetensors_bytes({"a": entry(offsets=[16, 0])}, 16), InputError, "data_offsets that are not"),
        (safetensors_bytes({"a": entry(offsets=[0])}, 16), InputError, "data_offsets that are not"),
        (safetensors_bytes({"a": entry(offsets=[-16, 0])}, 16), InputError, "data_offsets that are not"),
        (safetensors_bytes({"a": entry(offsets=[0, 10**4000])}, 16), InputError, "data_offsets that are not"),
        (safetensors_bytes({"a": entry(offsets={"0": 1, "16": 2})}, 16), InputError, "data_offsets that are"),
        (safetensors_bytes({"a": None}, 16), InputError, "not described by dtype, shape"),
        (safetensors_bytes({"a": {"dtype": "F32"}}, 16), InputError, "not described by dtype, shape"),
        (safetensors_bytes({"a": [1, 2, 3]}, 16), InputError, "not described by dtype, shape"),
        (safetensors_bytes({"a": entry(), "b": entry(offsets=[8, 24])}, 24), InputError, "'a' and 'b' over"),
        (safetensors_bytes({"__metadata__": {"x": 1}}, 0), InputError, "__metadata__ that is not a table"),
        (safetensors_bytes({"__metadata__": None}, 0), InputError, "__metadata__ that is not a table"),
        (safetensors_bytes({"\ud800": entry()}, 16), InputError, "surrogate"),
    ],
    ids=words_of,
)  # fmt: skip
def test_refused(raw: bytes, error: type[RooflensError], words: str) -> None:
    with pytest.raises(error, match=words):
        parse(raw)


@pytest.mark.parametrize("length", [0x8B1F, 0x0280, 0x0480], ids=["gzip", "pickle 2", "pickle 4"])
def test_a_length_that_looks_like_another_formats_magic_number(length: int) -> None:
    table = json.dumps({"a": entry()}).encode().ljust(length)
    assert parse(length.to_bytes(8, "little") + table + b"\0" * 16).total_bytes == 16


def test_a_name_given_twice_is_refused() -> None:
    text = f'{{"w": {json.dumps(entry())}, "w": {json.dumps(entry(offsets=[16, 32]))}}}'.encode()
    with pytest.raises(InputError, match="gives 'w' twice"):
        parse(len(text).to_bytes(8, "little") + text + b"\0" * 32)


def test_deep_nesting_ends_in_an_error() -> None:
    text = b'{"a":' * 50_000
    with pytest.raises(InputError, match="nested too deeply"):
        parse(len(text).to_bytes(8, "little") + text)


def test_the_header_limit_is_the_formats_and_is_checked_before_reading() -> None:
    class Refusing(MemorySource):
        def read(self, offset: int, length: int) -> bytes:
            assert length < 1_000_000
            return super().read(offset, length)

    raw = (100_000_001).to_bytes(8, "little") + b"{" + b" " * 1000
    source = Refusing(raw, "model.safetensors")
    source.size = 10**12
    with pytest.raises(InputError, match="at most 100,000,000 bytes"):
        read_header(source)


def test_every_truncation_is_told_as_one() -> None:
    raw = safetensors_bytes({"a": entry(), "b": entry(offsets=[16, 32])}, 32)
    for end in range(1, len(raw)):
        with pytest.raises(InputError, match=r"cut off"):
            parse(raw[:end])


# --- shards ------------------------------------------------------------------------------------------


def test_shards_with_an_index_from_any_of_their_paths(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [{"a": 4, "b": 2}, {"c": 8}], index=True)
    for start in (tmp_path, tmp_path / INDEX, *paths):
        found = open_checkpoint(start)
        assert [tensor.name for tensor in found.tensors] == ["a", "b", "c"]
        assert found.total_bytes == 4 * (4 + 2 + 8)
        assert found.by_name["c"].file == paths[1].name
        assert found.metadata["total_size"] == 56
        assert found.problems == ()


def test_shards_without_an_index(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [{"a": 4}, {"b": 2}])
    assert open_checkpoint(tmp_path).total_bytes == open_checkpoint(paths[1]).total_bytes == 24


def test_shards_without_numbers_are_taken_together(tmp_path: Path) -> None:
    for name in ("weights_1", "weights_2"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes({name: entry()}, 16))
    assert set(open_checkpoint(tmp_path).by_name) == {"weights_1", "weights_2"}


@pytest.mark.parametrize("index", [True, False])
def test_missing_shards_are_named(tmp_path: Path, index: bool) -> None:
    paths = write_shards(tmp_path, [{"a": 4}, {"b": 2}, {"c": 1}], index=index)
    paths[1].unlink()
    for start in (tmp_path, paths[0]):
        with pytest.raises(NotFoundError, match=r"1 of 3 files .* missing: 'model-00002-of-00003.saf"):
            open_checkpoint(start)


def test_a_cut_off_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [{"a": 4}, {"b": 2000}], index=True)
    paths[1].write_bytes(paths[1].read_bytes()[:-4000])
    with pytest.raises(InputError, match=r"model-00002-of-00002.safetensors is cut off: its tensors"):
        open_checkpoint(tmp_path)


def rewrite_index(folder: Path, weight_map: Mapping[str, str], total: int | None = None) -> None:
    table = {"metadata": {} if total is None else {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("weight_map", "total", "words"),
    [
        ({"a": 1, "b": 2, "lm_head.weight": 1}, 24, "lists 1 tensors that no shard holds: 'lm_head.weight'"),
        ({"a": 1, "x": 2}, 24, "lists 1 tensors that no shard holds: 'x'"),
        ({"a": 2, "b": 2, "c": 1}, 24, "gives another shard for 1 tensors: 'a'"),
        ({"a": 1, "b": 2}, 25, "declares 25 bytes, but the shards hold 24"),
    ],
    ids=words_of,
)
def test_an_index_that_disagrees_is_reported(
    tmp_path: Path, weight_map: dict[str, int], total: int, words: str
) -> None:
    write_shards(tmp_path, [{"a": 4}, {"b": 2}])
    names = {name: f"model-{number:05d}-of-00002.safetensors" for name, number in weight_map.items()}
    rewrite_index(tmp_path, names, total)
    found = open_checkpoint(tmp_path)
    assert found.total_bytes == 24
    assert any(words in problem for problem in found.problems)


def test_a_tensor_that_the_index_forgot(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"a": 4, "extra": 1}])
    rewrite_index(tmp_path, {"a": "model-00001-of-00001.safetensors"})
    found = open_checkpoint(tmp_path)
    assert found.total_bytes == 20
    assert found.problems == (f"{INDEX} does not list 1 tensors of the shards: 'extra'",)


def test_of_a_tensor_in_two_shards_the_index_chooses(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"tied": 4, "a": 1}, {"tied": 8, "b": 1}])
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    rewrite_index(tmp_path, {"tied": second, "a": first, "b": second})
    found = open_checkpoint(tmp_path)
    assert (found.by_name["tied"].file, found.total_bytes) == (second, 4 * (8 + 1 + 1))
    assert found.problems == ("1 tensors are stored in two files and counted once: 'tied'",)
    rewrite_index(tmp_path, {"tied": first, "a": first, "b": second})
    assert open_checkpoint(tmp_path).by_name["tied"].bytes == 16


def test_of_equal_tensors_in_two_shards_one_is_counted(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"tied": 4, "a": 1}, {"tied": 4, "b": 1}])
    found = open_checkpoint(tmp_path)
    assert found.total_bytes == 4 * 6
    assert "counted once: 'tied'" in found.problems[0]


def test_different_tensors_of_one_name_are_two_models(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"w": 4, "a": 1}, {"w": 8, "b": 1}])
    with pytest.raises(InputError, match=r"'w' is F32 \[4\] in model-00001.* but F32 \[8\] in model-00002"):
        open_checkpoint(tmp_path)


def test_a_file_that_only_repeats_another_is_another_model(tmp_path: Path) -> None:
    for name in ("base", "tuned"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes({"w": entry()}, 16))
    with pytest.raises(InputError, match=r"tuned.safetensors repeats tensors.*another model"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "no weight_map"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": [1]}, "no weight_map"),
        ({"weight_map": {"a": 1}}, "not a file name"),
        ({"weight_map": {"a": "x"}, "metadata": 3}, "metadata that is not a table"),
        ({"weight_map": {"a": "../../secret.safetensors"}}, "outside its directory"),
        ({"weight_map": {"a": "/etc/passwd"}}, "outside its directory"),
        ({"weight_map": {"a": "..\\x.safetensors"}}, "outside its directory"),
        ({"weight_map": {"a": ""}}, "outside its directory"),
        ({"weight_map": {"a": "C:\\x.safetensors"}}, "outside its directory"),
        ({"weight_map": {"a": "\x1b[2J.safetensors"}}, "outside its directory"),
    ],
    ids=words_of,
)
def test_bad_indexes(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_index(table, name=INDEX)


def test_an_index_in_a_folder_names_files_of_that_folder() -> None:
    index = parse_index({"weight_map": {"a": "x.safetensors"}}, name=f"text/{INDEX}")
    assert index.shards == ("text/x.safetensors",)
    assert index.shard_of == {"a": "text/x.safetensors"}


def test_an_index_that_is_a_git_lfs_pointer(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"a": 4}])
    (tmp_path / INDEX).write_bytes(LFS)
    with pytest.raises(InputError, match=f"{INDEX} is a Git LFS pointer"):
        open_checkpoint(tmp_path)
