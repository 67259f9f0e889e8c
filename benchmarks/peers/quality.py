"""Quality of an engine on real weights: its logits along two texts, against fp32 on the same weights.

Both are fed as they stand (teacher-forced), so that one early difference does not carry on. The first is a
fixed text of ours: its first half as one prompt, the rest token by token, as engines compute the two with
different kernels. The second are greedy answers of the fp32 reference itself, token by token.

Equal choices are judged on the answers: along a text that no model wrote, the best two tokens are often so
near to one another that bf16 alone swaps every thirtieth. The divergence is judged on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXT = Path(__file__).with_name("quality_text.txt")
MOST_TOKENS = 704
ANSWER_TOKENS = 220
"""Tokens of each of the reference's answers."""
OPENINGS = (
    ("Explain in a few sentences why the sky is blue.", "The sky is blue because"),
    ("How do I bake a simple bread at home?", "To bake a simple bread at home, mix"),
    ("What did the invention of printing change?", "When printing was invented, books"),
    ("Write a Python function that adds up a list of numbers.", "def total(numbers):\n    result = 0\n"),
    ("How does a lighthouse help ships?", "A lighthouse is a tower on the coast that"),
)
"""What the answers are to: a question for models that chat, the beginning of a text for the others."""
_BYTES = 4
_ROWS = 16
"""Rows of logits that are compared at once, in fp64."""


@dataclass(frozen=True)
class Limit:
    """What a form must keep for its speed to count: least share of equal choices, highest mean KL."""

    equal: float
    kl: float


#: The rounding of bf16 may cost less than eight or four bits; files as stored run with int8 activations.
LIMITS = {
    "bf16": Limit(0.99, 0.001),
    "int8": Limit(0.98, 0.005),
    "int4": Limit(0.98, 0.005),
    "stored": Limit(0.98, 0.005),
}


@dataclass(frozen=True)
class Along:
    """Measured along one text, over ``tokens`` positions.

    ``equal``: share with the reference's most likely token. ``kl``: mean Kullback-Leibler divergence from the
    reference's distribution to this engine's, in nats. ``perplexity``: of the text, by this engine.
    """

    tokens: int
    equal: float
    kl: float
    perplexity: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Quality:
    """Along the fixed text, along its two halves, and along the reference's answers."""

    text: Along
    prompt: Along
    steps: Along
    answers: Along

    def passes(self, limit: Limit) -> bool:
        """Whether speeds count."""
        return self.answers.equal >= limit.equal and max(self.answers.kl, self.text.kl) <= limit.kl

    def judged(self, weights: str) -> dict[str, Any]:
        """The figures with their limits and the verdict, as JSON."""
        limit = LIMITS[weights]
        return {**asdict(self), "limit": asdict(limit), "passed": self.passes(limit)}


def prompt_part(tokens: Sequence[int]) -> int:
    """Tokens of the text that are read as one prompt; the rest follow one by one."""
    return len(tokens) // 2


def read_logits(path: Path, tokens: int) -> NDArray[np.float32]:
    """A file of fp32 logits, a row per token. Raises ValueError where it does not hold that many."""
    size = path.stat().st_size
    if size == 0 or size % (tokens * _BYTES):
        raise ValueError(f"{path.name} has {size:,} bytes: no whole rows for {tokens} tokens")
    return np.memmap(path, dtype=np.float32, mode="r", shape=(tokens, size // tokens // _BYTES))


@dataclass(frozen=True)
class Rows:
    """By position: whether the choice is equal, the divergence, how surprising the next token is (nats)."""

    equal: NDArray[np.bool_]
    kl: NDArray[np.float64]
    surprise: NDArray[np.float64]

    def since(self, start: int) -> Rows:
        """The positions from ``start``."""
        return Rows(self.equal[start:], self.kl[start:], self.surprise[start:])

    def along(self, rows: slice = slice(None)) -> Along:
        """The means over some of the positions."""
        return Along(
            tokens=len(self.equal[rows]),
            equal=float(self.equal[rows].mean()),
            kl=float(self.kl[rows].mean()),
            perplexity=math.exp(float(self.surprise[rows].mean())),
        )


def joined(parts: Sequence[Rows]) -> Rows:
    """All positions of several texts."""
    return Rows(
        np.concatenate([part.equal for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.surprise for part in parts]),
    )


def compare(reference: NDArray[np.float32], found: NDArray[np.float32], tokens: Sequence[int]) -> Rows:
    """``found`` against ``reference``, both [tokens, vocabulary], position by position.

    The last position is left out: nothing follows it. Nor do columns count that one alone has, as padding.
    Raises ValueError where logits are not finite.
    """
    columns, end = min(reference.shape[1], found.shape[1]), len(tokens) - 1
    equal, kl, surprise = [], [], []
    for first in range(0, end, _ROWS):
        rows = slice(first, min(first + _ROWS, end))
        wanted, given = (_log_softmax(logits[rows, :columns]) for logits in (reference, found))
        following = np.array(tokens[rows.start + 1 : rows.stop + 1], dtype=np.int64)
        equal.append(wanted.argmax(-1) == given.argmax(-1))
        kl.append((np.exp(wanted) * (wanted - given)).sum(-1))
        surprise.append(-given[np.arange(len(following)), following])
    made = Rows(np.concatenate(equal), np.concatenate(kl), np.concatenate(surprise))
    if not (np.isfinite(made.kl).all() and np.isfinite(made.surprise).all()):
        raise ValueError("its logits are not finite")
    return made


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def same_start(found: Sequence[int], expected: Sequence[int]) -> int:
    """Tokens until two texts part."""
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        if ours != theirs:
            return index
    return min(len(found), len(expected))
