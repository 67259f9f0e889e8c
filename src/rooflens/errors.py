"""Errors that a user can act on, and their one mapping to exit codes and HTTP statuses."""

from __future__ import annotations

from typing import Any


class RooflensError(Exception):
    """Bad input, told in one sentence: what is wrong, the value, what is allowed, what to do next."""

    exit_code = 2
    http_status = 422

    def __init__(
        self,
        what: str,
        *,
        value: Any = None,
        allowed: str | None = None,
        next: str | None = None,
    ) -> None:
        self.what = what
        self.value = value
        self.allowed = allowed
        self.next = next
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The whole error as one line of text."""
        text = self.what
        if self.value is not None:
            shown = str(self.value)
            text += f" (got {shown if len(shown) <= 120 else shown[:117] + '...'})"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.next:
            text += f"; {self.next}"
        return " ".join(text.split())

    def to_dict(self) -> dict[str, Any]:
        """The error object of every JSON answer: ``{"error": {what, value, allowed, next}}``."""
        value = self.value
        if value is not None and not isinstance(value, (bool, int, str)):
            value = str(value)
        return {
            "error": {
                "what": self.what,
                "value": value,
                "allowed": self.allowed,
                "next": self.next,
            }
        }


class InputError(RooflensError):
    """An option, field or file has a value that cannot be used."""


class NotFoundError(RooflensError):
    """A named model, device or file does not exist; ``next`` names the nearest known ones."""

    http_status = 404


class UnsupportedError(RooflensError):
    """A known-to-exist architecture, operator or format that is not covered; refused by name."""


class CapacityError(RooflensError):
    """Memory ran out, or a request is longer than what is there; the process stays alive."""

    http_status = 400


class DependencyError(RooflensError):
    """An optional part is not installed; ``next`` says which extra brings it."""

    http_status = 501
