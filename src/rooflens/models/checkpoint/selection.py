"""Which of a directory's or repository's files are the model, decided from their names alone.

The order of preference is that of transformers and vLLM: ``model.safetensors``, an index, numbered shards,
any other safetensors; then GGUF. Where two answers are possible the choice is left to the user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.models.checkpoint.numbered import is_numbered, numbered_set, set_name
from rooflens.models.checkpoint.safetensors import INDEX_SUFFIX
from rooflens.models.checkpoint.tensor import CheckpointFormat
from rooflens.models.file_input import quoted, some

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model" + INDEX_SUFFIX
PICKLE_INDEX_SUFFIX = ".bin.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", PICKLE_INDEX_SUFFIX)
_OTHER_SUFFIXES = (".h5", ".msgpack", ".onnx", ".npz", ".gguf.part1of2", ".mlmodel", ".tflite")

#: Files in the format of a model that are something else: what to call them, by the start of their names.
_COMPANIONS = {
    "adapter": "an adapter",
    "mmproj": "a vision projector",
    "imatrix": "an importance matrix",
    "optimizer": "an optimizer's state",
    "consolidated": "the same weights in Mistral's own layout",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a model: all of them in order, or the index that lists them; and what was left out."""

    format: CheckpointFormat
    files: tuple[str, ...]
    index: str | None = None
    notes: tuple[str, ...] = ()


def select_weights(names: Collection[str], *, where: str, file: str | None = None) -> Selection:
    """Choose the weights among ``names``, paths relative to ``where``.

    ``file``: which of several models; a name among ``names``, or the label of a GGUF quantisation such as
    ``Q4_K_M``. Raises NotFoundError if there are no weights, InputError if there are several models,
    UnsupportedError if there are only weights of a kind that is not read.
    """
    if file is not None:
        return _named(names, where=where, file=file)
    top = sorted(name for name in names if "/" not in name)
    tensors, gguf = _models(top, ".safetensors"), _models(sorted(names), ".gguf")
    notes = [f"{name} ({what}) is not read" for name in top if (what := _companion(name))]
    if not tensors and not gguf:  # a companion is all there is, so it is what was meant
        tensors, gguf = _with_suffix(top, ".safetensors"), _with_suffix(sorted(names), ".gguf")
        notes = []
    if gguf and tensors:
        notes.append(f"{where} also has GGUF files, which are not read: {some(gguf)}")
    indexes = [name for name in top if name.endswith(INDEX_SUFFIX)]
    if SINGLE_NAME in tensors:
        others = [name for name in tensors if name != SINGLE_NAME]
        if others:
            notes.append(f"{SINGLE_NAME} is read, and not the files next to it: {some(others)}")
        return Selection("safetensors", (SINGLE_NAME,), notes=tuple(notes))
    if indexes:
        if len(indexes) > 1 and INDEX_NAME not in indexes:
            raise _several(indexes, where=where)
        chosen = INDEX_NAME if INDEX_NAME in indexes else indexes[0]
        return Selection("safetensors", (), chosen, tuple(notes))
    if tensors:
        files = _shards_without_index(tensors, where=where, names=names)
        rest = [name for name in tensors if name not in files]
        if rest:
            notes.append(f"{where} has files outside the numbered set, which are not read: {some(rest)}")
        return Selection("safetensors", tuple(files), notes=tuple(notes))
    if gguf:
        if len({set_name(name) for name in gguf}) > 1:
            raise _several(gguf, where=where)
        return Selection("gguf", tuple(numbered_set(gguf[0], present=names)), notes=tuple(notes))
    raise _no_weights(names, where=where)


def _shards_without_index(tensors: Sequence[str], *, where: str, names: Collection[str]) -> Sequence[str]:
    numbered = [name for name in tensors if is_numbered(name)]
    if not numbered:
        return tensors  # all of them together, as vLLM loads them
    if len({set_name(name) for name in numbered}) > 1:
        raise _several(numbered, where=where)
    return numbered_set(numbered[0], present=names)


def _named(names: Collection[str], *, where: str, file: str) -> Selection:
    if file not in names:
        labelled = re.compile(rf"(^|[-./]){re.escape(file)}(?=[-./])", re.IGNORECASE)
        found = [name for name in _models(sorted(names), ".gguf") if labelled.search(name)]
        if not found:
            what = f"{where} has no file or GGUF quantisation {quoted(file)}"
            raise NotFoundError(what, next=_choices(names))
        if len({set_name(name) for name in found}) > 1:
            raise _several(found, where=where)
        file = found[0]
    if file.endswith(INDEX_SUFFIX):
        return Selection("safetensors", (), file)
    if file.endswith(PICKLE_SUFFIXES):
        raise pickles_refused(file)
    if file.endswith(".safetensors") and is_numbered(file):
        folder = file.rpartition("/")[0] + "/" if "/" in file else ""
        stem = file.rpartition("/")[2].rsplit("-", 3)[0]
        if f"{folder}{stem}{INDEX_SUFFIX}" in names:
            return Selection("safetensors", (), f"{folder}{stem}{INDEX_SUFFIX}")
    kind: CheckpointFormat = "gguf" if file.endswith(".gguf") else "safetensors"
    return Selection(kind, tuple(numbered_set(file, present=names)))


def count_models(names: Collection[str]) -> tuple[int, int]:
    """(safetensors files, GGUF models) among ``names``, without adapters, projectors and the like.

    GGUF parts of one split model count once, safetensors only where no folder stands before the name.
    """
    top = [name for name in names if "/" not in name]
    return len(_models(top, ".safetensors")), len({set_name(name) for name in _models(names, ".gguf")})


def pickles_refused(name: str) -> UnsupportedError:
    """The error for a checkpoint that would have to be unpickled."""
    return UnsupportedError(
        f"{name} is a pickled PyTorch checkpoint, which can run code and is never opened",
        next="use the model's .safetensors or .gguf files, or convert it with safetensors.torch.save_file",
    )


def _companion(name: str) -> str | None:
    """What a file in the format of a model is instead of one."""
    base = name.rpartition("/")[2].lower()
    if not base.endswith((".safetensors", ".gguf")):
        return None
    return next((what for start, what in _COMPANIONS.items() if base.startswith(start)), None)


def _with_suffix(names: Collection[str], suffix: str) -> list[str]:
    return [name for name in names if name.lower().endswith(suffix)]


def _models(names: Collection[str], suffix: str) -> list[str]:
    return [name for name in _with_suffix(names, suffix) if _companion(name) is None]


def _several(names: Collection[str], *, where: str) -> InputError:
    return InputError(f"{where} holds several models", next=_choices(names))


def _choices(names: Collection[str]) -> str:
    suffixes = (".safetensors", ".gguf", INDEX_SUFFIX)
    models = [name for name in sorted(names) if name.lower().endswith(suffixes)]
    first_of_set = list({set_name(name): name for name in reversed(models)}.values())[::-1]
    if not first_of_set:
        return "it has no .safetensors or .gguf file"
    shown = ", ".join(first_of_set[:12])
    return f"name one of: {shown}" + (f" and {len(first_of_set) - 12} more" if len(first_of_set) > 12 else "")


def _no_weights(names: Collection[str], *, where: str) -> RooflensError:
    pickles = sorted(name for name in names if name.endswith(PICKLE_SUFFIXES) and "/" not in name)
    if pickles:
        return pickles_refused(pickles[0])
    others = sorted(name for name in names if name.endswith(_OTHER_SUFFIXES))
    if others:
        return UnsupportedError(f"{where} has weights in formats that are not read: {some(others)}")
    return NotFoundError(f"{where} has no weights", allowed="files ending in .safetensors or .gguf")
