"""The grids of the benchmarks: small for a minute, medium for a coffee, large for the night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

Kind = Literal["baseline", "memory", "batch", "prefix", "speculative"]
Size = Literal["small", "medium", "large"]
SIZES: tuple[Size, ...] = ("small", "medium", "large")


@dataclass(frozen=True)
class Case:
    """``requests`` of ``prompt`` and ``output`` tokens, at most ``batch`` of them running at once.

    ``shared``: tokens that all prompts begin with (prefix benchmarks).
    """

    requests: int
    batch: int
    prompt: int
    output: int
    shared: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class SpeculativeCase(Case):
    """Plain decoding and ``guesses`` a step in turn, for ``rounds``; ``prompt`` is the longest allowed."""

    text: str = "repeat"
    guesses: int = 4
    rounds: int = 3


def _crossed(
    waves: tuple[int, ...], batches: tuple[int, ...], prompts: tuple[int, ...], outputs: tuple[int, ...]
) -> tuple[Case, ...]:
    """Every combination; ``waves``: requests as a multiple of the batch."""
    return tuple(
        Case(wave * batch, batch, prompt, output)
        for wave, batch, prompt, output in product(waves, batches, prompts, outputs)
    )


def _batches(highest: int, *, prompt: int, output: int) -> tuple[Case, ...]:
    """Batch 1, 2, 4 ... ``highest``."""
    return tuple(Case(1 << power, 1 << power, prompt, output) for power in range(highest.bit_length()))


def _shared(prompt: int, eighths: tuple[int, ...], *, requests: int) -> tuple[Case, ...]:
    """Prompts of which so many eighths are shared."""
    return tuple(Case(requests, 1, prompt, 2, shared=prompt * part // 8) for part in eighths)


def speculative_cases(
    size: Size, *, guesses: Sequence[int] = (), texts: Sequence[str] = ("repeat", "free")
) -> tuple[SpeculativeCase, ...]:
    """The grid of speculative decoding with other numbers of guesses (those of ``size``) or texts."""
    requests, batches, output, rounds, usual = _SPECULATIVE[size]
    return tuple(
        SpeculativeCase(max(requests, batch), batch, 256, output, text=text, guesses=tokens, rounds=rounds)
        for text, batch, tokens in product(texts, batches, dict.fromkeys(guesses or usual))
    )


#: Requests, batches, output, rounds and guesses by size.
_SPECULATIVE: dict[Size, tuple[int, tuple[int, ...], int, int, tuple[int, ...]]] = {
    "small": (2, (1,), 32, 3, (2, 4, 8)),
    "medium": (4, (1, 4), 64, 5, (1, 2, 4, 8)),
    "large": (8, (1, 4, 8), 128, 9, (1, 2, 3, 4, 6, 8, 12)),
}


GRIDS: dict[Kind, dict[Size, tuple[Case, ...]]] = {
    "baseline": {
        "small": _crossed((2,), (1, 4), (32, 128), (16,)),
        "medium": _crossed((1, 4), (1, 4, 16), (128, 512), (32, 128)),
        "large": _crossed((1, 4), (1, 4, 16, 64), (128, 512, 2048), (32, 128, 512)),
    },
    "memory": {
        "small": _crossed((1,), (1, 4), (32, 256), (16,)),
        "medium": _crossed((1,), (1, 4, 16), (128, 512, 2048), (64,)),
        "large": _crossed((1,), (1, 4, 16, 64), (128, 512, 2048, 8192), (256,)),
    },
    "batch": {
        "small": _batches(8, prompt=32, output=12),
        "medium": _batches(64, prompt=128, output=24),
        "large": (*_batches(64, prompt=128, output=64), *_batches(64, prompt=1024, output=64)),
    },
    "prefix": {
        "small": _shared(256, (0, 4, 8), requests=3),
        "medium": _shared(1024, (0, 2, 4, 6, 8), requests=5),
        "large": (*_shared(1024, (0, 2, 4, 6, 8), requests=9), *_shared(4096, (0, 2, 4, 6, 8), requests=9)),
    },
    "speculative": {size: speculative_cases(size) for size in SIZES},
}
