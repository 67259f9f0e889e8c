"""Directories with any set of files: a selection of files that exist, or one of our errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from checkpoint_files import split_part, write_shards
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged, survives

from rooflens.models.checkpoint import open_checkpoint
from rooflens.models.checkpoint.selection import select_weights
from rooflens.units import MIB

STEMS = ["model", "m-Q4_K_M", "consolidated", "mmproj", "adapter_model", "pytorch_model", "Q8_0/m"]
NUMBERS = ["", "-00001-of-00002", "-00002-of-00002", "-00001-of-00001", "-00000-of-00000", "-99999-of-99999"]
SUFFIXES = [".safetensors", ".safetensors.index.json", ".gguf", ".bin", ".bin.index.json", ".json", ".h5", ""]
NAMES = st.builds(lambda *parts: "".join(parts), *map(st.sampled_from, (STEMS, NUMBERS, SUFFIXES)))


@given(st.sets(NAMES, max_size=8), st.none() | NAMES | st.sampled_from(["Q4_K_M", "Q8_0", "*", "", "."]))
def test_any_set_of_names(names: set[str], file: str | None) -> None:
    found = survives(lambda: select_weights(names, where="here", file=file), peak_bytes=64 * MIB)
    if found is not None:
        assert set(found.files) <= names
        assert bool(found.files) != (found.index is not None)
        assert found.index is None or found.index in names


@given(st.data())
def test_damaged_sets_of_files(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        if data.draw(st.booleans()):
            paths = write_shards(folder, [{"a": 4}, {"b": 2, "c": 1}], index=data.draw(st.booleans()))
            paths += folder.glob("*.json")
        else:
            paths = [folder / f"m-0000{number + 1}-of-00002.gguf" for number in range(2)]
            for number, path in enumerate(paths):
                path.write_bytes(split_part(number, 2, [str(number)], 2))
        victim = data.draw(st.sampled_from(sorted(paths)))
        raw = data.draw(st.none() | damaged(st.just(victim.read_bytes())))
        if raw is None:
            victim.unlink()
        else:
            victim.write_bytes(raw)
        for start in (folder, *sorted(paths)):
            survives(partial(open_checkpoint, start), peak_bytes=8 * MIB)
