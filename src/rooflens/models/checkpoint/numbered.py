"""Checkpoints in several numbered files: ``NAME-00001-of-00003.safetensors`` or ``.gguf``, counted from 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rooflens.errors import InputError, NotFoundError
from rooflens.models.file_input import quoted, some

_NUMBERED = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5,6})-of-(?P<count>\d{5,6})(?P<suffix>\.gguf|\.safetensors)", re.DOTALL
)


def is_numbered(name: str) -> bool:
    """Is this the name of one of several numbered files?"""
    return _NUMBERED.fullmatch(name) is not None


def set_name(name: str) -> str:
    """What the names of one set have in common: ``NAME-of-00003.gguf``; ``name`` itself if not numbered."""
    match = _NUMBERED.fullmatch(name)
    return f"{match['stem']}-of-{match['count']}{match['suffix']}" if match else name


def numbered_set(name: str, *, present: Iterable[str]) -> list[str]:
    """The names of all files of the set that ``name`` belongs to, in order; just itself if not numbered.

    ``present``: the names that exist. Raises NotFoundError naming the files that do not.
    """
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return [name]
    count, width = int(match["count"]), len(match["number"])
    if not 1 <= int(match["number"]) <= count:
        raise InputError(f"{quoted(name)} is not a part of its own count", allowed=f"00001 to {count:05d}")
    names = [
        f"{match['stem']}-{number:0{width}d}-of-{match['count']}{match['suffix']}"
        for number in range(1, count + 1)
    ]
    refuse_missing(names, present=present)
    return names


def refuse_missing(names: Sequence[str], *, present: Iterable[str]) -> None:
    """Raise NotFoundError if any file of a checkpoint is not ``present``."""
    there = set(present)
    missing = [name for name in names if name not in there]
    if missing:
        raise NotFoundError(
            f"{len(missing):,} of {len(names):,} files of the checkpoint are missing: {some(missing)}",
            next="download them next to the others",
        )
