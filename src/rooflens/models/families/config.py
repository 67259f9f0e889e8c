"""Reading a config.json: typed fields under all their spellings, with errors that name the field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from rooflens.errors import InputError

# No published model comes near these; a larger value is a damaged file, not a model.
MAX_SIZE = 2**32
MAX_LAYERS = 4096
MAX_NUMBER = 1e18


class Config:
    """A config's fields, looked up by their spellings in order; ``null`` counts as absent."""

    def __init__(self, fields: Mapping[str, Any], *, where: str = "config.json") -> None:
        self.fields = fields
        self.where = where
        self.notes: list[str] = []

    def get(self, *names: str) -> Any:
        """The first present, non-null value, or None."""
        for name in names:
            value = self.fields.get(name)
            if value is not None:
                return value
        return None

    def _spelt(self, *names: str) -> str:
        return next((name for name in names if self.fields.get(name) is not None), names[0])

    def size(self, *names: str, default: int | None = None, limit: int = MAX_SIZE) -> int:
        """A whole number of at least 1; without ``default`` the field is required."""
        value = self.get(*names)
        if value is None:
            if default is None:
                raise InputError(
                    f"{self.where} has no {names[0]}",
                    allowed=f"a whole number of 1 or more in {' or '.join(names)}",
                )
            return default
        return self._whole(value, self._spelt(*names), least=1, limit=limit)

    def count(self, *names: str, default: int = 0, limit: int = MAX_SIZE) -> int:
        """A whole number of at least 0 (how many experts, extra layers); absent means ``default``."""
        value = self.get(*names)
        return default if value is None else self._whole(value, self._spelt(*names), least=0, limit=limit)

    def optional_size(self, *names: str) -> int | None:
        """A whole number of at least 1, or None where absent."""
        return None if self.get(*names) is None else self.size(*names)

    def layers(self, *names: str) -> int:
        """The number of layers."""
        return self.size(*names, limit=MAX_LAYERS)

    def number(self, *names: str, default: float) -> float:
        """A finite number, of a size that arithmetic on it stays finite."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise InputError(f"{self.where}: {self._spelt(*names)} is not a finite number", value=value)
        if abs(value) > MAX_NUMBER:
            raise InputError(
                f"{self.where}: {self._spelt(*names)} is not usable",
                value=value,
                allowed=f"a number up to {MAX_NUMBER:g}",
            )
        return float(value)

    def positive(self, *names: str, default: float) -> float:
        """A finite number above 0."""
        value = self.number(*names, default=default)
        if value <= 0:
            raise InputError(f"{self.where}: {self._spelt(*names)} is not above 0", value=value)
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {self._spelt(*names)} is not true or false", value=value)
        return value

    def text(self, *names: str, default: str) -> str:
        """A string."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(f"{self.where}: {self._spelt(*names)} is not a string", value=value)
        return value

    def section(self, *names: str) -> Config | None:
        """A nested object, as a Config that names its place, or None."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InputError(f"{self.where}: {self._spelt(*names)} is not an object", value=value)
        nested = Config(value, where=f"{self.where}: {self._spelt(*names)}")
        nested.notes = self.notes
        return nested

    def items(self, *names: str, length: int | None = None) -> list[Any] | None:
        """A list, of ``length`` where given, or None where absent."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, list):
            raise InputError(f"{self.where}: {self._spelt(*names)} is not a list", value=value)
        if length is not None and len(value) != length:
            raise InputError(
                f"{self.where}: {self._spelt(*names)} has {len(value)} entries for {length} layers"
            )
        return value

    def numbers(
        self, *names: str, length: int | None = None, least: int = 0, limit: int = MAX_SIZE
    ) -> list[int] | None:
        """A list of whole numbers from ``least``, of ``length`` where given, or None where absent."""
        values = self.items(*names, length=length)
        if values is None:
            return None
        return [self._whole(value, self._spelt(*names), least=least, limit=limit) for value in values]

    def kinds(self, *names: str, known: Collection[str], length: int | None = None) -> list[str] | None:
        """A list of names that are all ``known``, of ``length`` where given, or None where absent."""
        values = self.items(*names, length=length)
        for value in values or ():
            if not isinstance(value, str) or value not in known:
                raise InputError(
                    f"{self.where}: {self._spelt(*names)} names an unknown kind",
                    value=value,
                    allowed=" or ".join(known),
                )
        return values

    def note(self, text: str) -> None:
        """Record a resolved contradiction or an assumption, shown with the answer."""
        if text not in self.notes:
            self.notes.append(text)

    def _whole(self, value: Any, name: str, *, least: int, limit: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
            raise InputError(
                f"{self.where}: {name} is not usable",
                value=value,
                allowed=f"a whole number from {least} to {limit}",
            )
        return value
