"""What a loader did: which file, in which types, what was converted and which kernels are in use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LoadReport:
    """Filled while a model is loaded, shown with its results. Bytes as held, packing included.

    ``stored``: tensors by their type in the file; ``dequantized``: those of them that were expanded to the
    compute type; ``held``: bytes by the layout that the kernels read; ``notes``: plain sentences.
    """

    origin: str
    format: str
    compute_dtype: str
    device: str
    stored: Counter[str] = field(default_factory=Counter)
    dequantized: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    kernels: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    load_s: float = 0.0
    #: Whether a tied table is held a second time, packed for the head.
    head_copied: bool = False

    @property
    def held_bytes(self) -> int:
        """Bytes of all weights as held."""
        return sum(self.held.values())

    def note(self, text: str | None) -> None:
        """Add a sentence, once."""
        if text and text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "origin": self.origin,
            "format": self.format,
            "compute_dtype": self.compute_dtype,
            "device": self.device,
            "stored_tensors": dict(self.stored),
            "dequantized_tensors": dict(self.dequantized),
            "held_bytes": self.held_bytes,
            "held_bytes_by_layout": dict(self.held),
            "kernels": dict(self.kernels),
            "notes": list(self.notes),
            "load_s": self.load_s,
        }
