"""A price and where it is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SOURCES = ("auto", "gpuhunt", "snapshot", "none")
"""Where prices that are not the user's own come from; ``auto`` is the others in this order."""


@dataclass(frozen=True)
class Price:
    """One device for an hour: ``per_hour`` in ``currency``, as ``source`` listed it on ``date`` (ISO)."""

    per_hour: float
    source: str
    date: str | None = None
    provider: str | None = None
    currency: str = "USD"
    spot: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "per_hour": self.per_hour,
            "currency": self.currency,
            "source": self.source,
            "date": self.date,
            "provider": self.provider,
            "spot": self.spot,
        }
