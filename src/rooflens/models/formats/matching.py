"""Module names against the patterns that quantisation configs list: what is converted and what is not.

Tools disagree on how a pattern is meant, so each pattern is read by its form: ``re:`` starts a regular
expression that must match from the start of the name; ``*`` makes a wildcard for the whole name or a
parent of it; anything else names a module or some of its dotted components (``gate`` is a router, not
``gate_proj``). Checkpoints of multimodal models move the language model about, so its prefix counts
for nothing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.formats.rewrite import Matrix

_REGEX = "re:"
# Where a checkpoint may keep the language model, longest first.
_TEXT_PREFIXES = (
    "model.language_model.model.", "model.language_model.", "language_model.model.", "language_model.",
    "transformer.", "backbone.", "model.",
)  # fmt: skip
_T = TypeVar("_T")


def bare(name: str) -> str:
    """The name without the prefix of the language model."""
    for prefix in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def spellings(matrix: Matrix, module: str) -> Iterator[str]:
    """The module's name, and that of one expert where the model stacks them and the checkpoint may not."""
    yield module
    if ".experts." in module and "{e}" not in matrix.module:
        yield module.replace(".experts.", ".experts.0.").replace("gate_up_proj", "gate_proj")


def pattern_list(value: object, *, field: str) -> list[str]:
    """The patterns of a config's list; null is an empty one. Raises InputError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{field} is not a list of module names", value=value)
    return list(value)


def _wildcard(pattern: str) -> str:
    """A regular expression for a pattern with ``*``, for the module itself and all in it."""
    pattern = bare(pattern)
    if re.search(r"\d\*$", pattern):
        pattern = pattern[:-1]  # "layers.1*" is the tree of layer 1, not layers 10 to 19
    body = fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
    return rf"{body}(?:\.|$)"


def _alternatives(expressions: Iterable[str]) -> re.Pattern[str] | None:
    parts = [f"(?:{expression})" for expression in expressions]
    return re.compile("|".join(parts)) if parts else None


class Patterns:
    """Patterns that are matched together."""

    def __init__(self, patterns: Iterable[str], *, field: str) -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        self.field = field
        expressions = [p.removeprefix(_REGEX) for p in self.patterns if p.startswith(_REGEX)]
        try:
            self._expressions = _alternatives(expressions)
        except re.error as error:
            raise InputError(f"{field} holds an invalid regular expression: {error}") from None
        rest = [p for p in self.patterns if not p.startswith(_REGEX)]
        self._wildcards = _alternatives(_wildcard(p) for p in rest if "*" in p)
        self._names = frozenset(bare(p.strip(".")) for p in rest if "*" not in p)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def match_module(self, matrix: Matrix, module: str) -> bool:
        """Whether a pattern names this module or a parent of it."""
        return bool(self.patterns) and any(self._match(name) for name in spellings(matrix, module))

    def _match(self, name: str) -> bool:
        short = bare(name)
        if self._named(short):
            return True
        if self._wildcards is not None and (self._wildcards.match(short) or self._wildcards.match(name)):
            return True
        if self._expressions is None:
            return False
        return any(self._expressions.match(prefix + short) for prefix in ("", *_TEXT_PREFIXES))

    def _named(self, name: str) -> bool:
        if not self._names:
            return False
        parts = name.split(".")
        runs = (
            ".".join(parts[first:last])
            for first in range(len(parts))
            for last in range(first + 1, len(parts) + 1)
        )
        if any(run in self._names for run in runs):
            return True
        # Lists made by cutting ".weight" out of tensor names mangle names that go on after it.
        return ".weight" in name and self._named(name.replace(".weight", ""))

    def match(self, matrix: Matrix) -> bool:
        """Whether the matrix is matched. Raises UnsupportedError where only some of a layer's experts are."""
        modules = matrix.expert_modules
        first = self.match_module(matrix, modules[0])
        if len(modules) > 1 and self.match_module(matrix, modules[-1]) != first:
            raise _unequal_experts(self.field, matrix)
        return first


class ByModule(Generic[_T]):
    """Values by module name, an entry for a parent holding for all that is in it."""

    def __init__(self, entries: Mapping[str, _T], *, field: str) -> None:
        self.field = field
        self._entries = {bare(name): value for name, value in entries.items()}

    def _find(self, matrix: Matrix, module: str) -> _T | None:
        for spelling in spellings(matrix, module):
            name = bare(spelling)
            while name:
                if name in self._entries:
                    return self._entries[name]
                name = name.rpartition(".")[0]
        return None

    def get(self, matrix: Matrix) -> _T | None:
        """The value for a matrix, None where nothing names it. Raises UnsupportedError as ``Patterns``."""
        modules = matrix.expert_modules
        found = self._find(matrix, modules[0])
        if any(self._find(matrix, module) != found for module in modules[1:]):
            raise _unequal_experts(self.field, matrix)
        return found


def _unequal_experts(field: str, matrix: Matrix) -> UnsupportedError:
    return UnsupportedError(
        f"{field} tells the experts of one layer apart, which is not covered", value=matrix.module
    )
