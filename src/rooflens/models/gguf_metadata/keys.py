"""The metadata of one GGUF file, checked: the architecture's own keys, and what its tensors' shapes tell.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file's writer is not trusted: a number
that is missing, negative, not finite or of another kind is an InputError that names its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.file_input import quoted

_LIMIT_LAYERS = 4096
_LIMIT = 2**32


class GgufKeys:
    """The keys under one architecture's name, looked up without it: ``attention.head_count``."""

    def __init__(
        self, metadata: Mapping[str, Any], *, tensors: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """``tensors``: shapes by name, slowest dimension first. Raises InputError without an architecture."""
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise InputError("the GGUF file names no general.architecture", value=architecture)
        self.metadata = metadata
        self.architecture = architecture
        self.tensors = tensors or {}

    @property
    def layers(self) -> int:
        """Layers of the decoder; those that only predict further tokens come after them."""
        blocks = self.whole("block_count")
        predicted = self.predicted
        if not predicted < blocks <= _LIMIT_LAYERS:
            raise self._unusable("block_count", blocks, allowed=f"from {predicted + 1} to {_LIMIT_LAYERS}")
        return blocks - predicted

    @property
    def predicted(self) -> int:
        """Layers that predict further tokens."""
        return self.whole("nextn_predict_layers", default=0)

    def get(self, key: str) -> Any:
        """The value as it stands, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return self.get(key) is not None

    def whole(self, key: str, *, default: int | None = None) -> int:
        """A whole number of 0 or more; one per layer is taken where all are equal.

        Raises InputError for anything else, UnsupportedError for a number that differs by layer.
        """
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, tuple) and value:
            if len(set(value)) > 1:
                raise UnsupportedError(
                    f"the GGUF key {self._name(key)} differs by layer, which this architecture is not "
                    "known for",
                    value=value[:8],
                )
            value = value[0]
        return self._whole(key, value)

    def size(self, key: str) -> int:
        """A whole number of 1 or more, as `whole`."""
        value = self.whole(key)
        if not value:
            raise self._unusable(key, value, allowed=f"a whole number from 1 to {_LIMIT - 1}")
        return value

    def by_layer(self, key: str) -> list[int]:
        """A whole number for every layer of the decoder, from an array or from one value for all."""
        value = self.get(key)
        if not isinstance(value, tuple):
            return [self.whole(key)] * self.layers
        if len(value) < self.layers:
            raise self._unusable(key, value[:8], allowed=f"one value for each of {self.layers} layers")
        return [
            self._whole(key, int(item) if isinstance(item, bool) else item) for item in value[: self.layers]
        ]

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise self._unusable(key, value)
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._unusable(key, value)
        return value

    def holds(self, tensor: str) -> bool:
        """Whether the file has this tensor, or any layer has it where the name is a layer's own."""
        return tensor in self.tensors or any(self.layers_with(tensor))

    def layers_with(self, tensor: str) -> list[bool]:
        """Which layers have a tensor of this name."""
        return [f"blk.{index}.{tensor}" in self.tensors for index in range(self.layers)]

    def rows(self, tensor: str) -> int | None:
        """The rows of a tensor that stands outside the layers, None without it."""
        shape = self.tensors.get(tensor)
        return int(shape[0]) if shape else None

    def vocabulary(self) -> int:
        """Rows of the token table, or how many tokens the file lists."""
        rows = self.rows("token_embd.weight")
        if rows:
            return rows
        if self.has("vocab_size"):
            return self.whole("vocab_size")
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if tokens is None:
            raise InputError("the GGUF file has neither a token table nor a vocabulary")
        return len(tokens)

    def _name(self, key: str) -> str:
        return quoted(f"{self.architecture}.{key}")[1:-1]

    def _whole(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
            raise self._unusable(key, value, allowed=f"a whole number from 0 to {_LIMIT - 1}")
        return value

    def _unusable(self, key: str, value: Any, *, allowed: str | None = None) -> InputError:
        state = "missing" if value is None else "not usable"
        return InputError(f"the GGUF key {self._name(key)} is {state}", value=value, allowed=allowed)
