"""Outputs first: what an engine chooses, against logits of the same weights in fp32. No speed without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.protocol import prompt

PROMPTS, PROMPT_TOKENS, FIRST_SEED = 12, 24, 100
GAP_LIMITS = {"bf16": 0.05, "int8": 0.15, "int4": 1.0, "stored": 0.15}
"""How far below the best the chosen tokens may lie on average, in deviations of the reference's logits.

A model that is loaded wrongly chooses at random: with a large vocabulary that is four deviations or more.
Random weights have nearly equal best logits, so that rounding alone may change the choice.
"""


class Chooser(Protocol):
    """A worker, as far as checks need it."""

    def choose(self, tokens: Sequence[int], path: Path | None = None) -> int: ...


@dataclass(frozen=True)
class Check:
    """``equal``: share of prompts with the reference's choice. ``gap``: see ``GAP_LIMITS``.

    ``error``: mean difference of logits over their mean size (both about their mean); None where the
    engine tells no logits.
    """

    prompts: int
    equal: float
    gap: float
    error: float | None
    limit: float

    @property
    def passed(self) -> bool:
        """Whether speeds may be told."""
        return self.gap <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "passed": self.passed}


def prompts(vocabulary: int) -> list[list[int]]:
    """The prompts of every check of random weights."""
    return [prompt(PROMPT_TOKENS, vocabulary=vocabulary, seed=FIRST_SEED + index) for index in range(PROMPTS)]


def prompts_of(text: Sequence[int]) -> list[list[int]]:
    """The same for a real model: a text's beginnings."""
    return [list(text[: (index + 1) * PROMPT_TOKENS]) for index in range(PROMPTS)]


def write_logits(worker: Chooser, given: Sequence[Sequence[int]], folder: Path) -> None:
    """The reference's logits after each prompt, from an engine that runs the weights in fp32."""
    for index, tokens in enumerate(given):
        worker.choose(tokens, _kept(folder, index))


def kept_logits(folder: Path, count: int) -> list[NDArray[np.float32]]:
    """What ``write_logits`` wrote."""
    return [np.fromfile(_kept(folder, index), dtype=np.float32) for index in range(count)]


def check(
    worker: Chooser,
    given: Sequence[Sequence[int]],
    reference: Sequence[NDArray[np.float32]],
    weights: str,
    folder: Path,
) -> Check:
    """Compare a worker's choices, and its logits where it tells them, with the reference's."""
    equal, gaps, errors = 0, [], []
    path = folder / "checked.f32"
    for tokens, expected in zip(given, reference, strict=True):
        path.unlink(missing_ok=True)
        token = worker.choose(tokens, path)
        equal += token == int(expected.argmax())
        gaps.append(gap(expected, token))
        if path.exists():
            errors.append(relative_error(np.fromfile(path, dtype=np.float32), expected))
    return Check(
        prompts=len(reference),
        equal=equal / len(reference),
        gap=float(np.mean(gaps)),
        error=float(np.mean(errors)) if errors else None,
        limit=GAP_LIMITS[weights],
    )


def _kept(folder: Path, index: int) -> Path:
    return folder / f"reference-{index}.f32"


def gap(expected: NDArray[np.float32], token: int) -> float:
    """How far below the best logit a token's lies, in deviations of all; infinite for an unknown token."""
    if not 0 <= token < len(expected):
        return float("inf")
    return float((expected.max() - expected[token]) / expected.std())


def relative_error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Mean difference over mean size, both about their mean: a shift of all logits changes nothing."""
    found, expected = found[: len(expected)] - found[: len(expected)].mean(), expected - expected.mean()
    return float(np.abs(found - expected).mean() / np.abs(expected).mean())
