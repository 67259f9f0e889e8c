"""Whether two ways of decoding chose the same tokens, and if not, whether rounding alone explains it.

A step of several rows may add up in another order than a step of one. Where the two best logits are nearly
equal, either may then win, and the rest of the answer is another one. Anything beyond that is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rooflens.bench.answers import CaseFailedError
from rooflens.runtime.backend import NativeBackend
from rooflens.runtime.batch import Chunk, StepBatch

#: How far apart two tokens' logits may lie to be called equal, in standard deviations of all logits.
TIE, TIE_FP32 = 0.25, 0.01


@dataclass(frozen=True)
class Equality:
    """``equal`` of ``answers`` are; ``gap``: largest of the ties that the others part at, in deviations."""

    answers: int
    equal: int
    gap: float | None


def check_equal(
    backend: NativeBackend,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]],
) -> Equality:
    """Compare greedy answers of one model. Raises CaseFailedError where they part at what is no tie."""
    limit = TIE_FP32 if backend.dtype_name == "fp32" and not _quantised(backend) else TIE
    gaps = []
    for prompt, first, second in zip(prompts, plain, other, strict=True):
        place = next(
            (at for at, pair in enumerate(zip(first, second, strict=True)) if len(set(pair)) > 1), None
        )
        if place is None:
            continue
        gap = gap_between(backend, [*prompt, *first[:place]], first[place], second[place])
        if not gap <= limit:
            raise CaseFailedError(
                f"token {place + 1} of an answer is another one with guesses than without, and no tie",
                value=f"their logits are {gap:.2f} standard deviations apart",
                allowed=f"up to {limit:g}, which is rounding",
            )
        gaps.append(gap)
    return Equality(len(plain), len(plain) - len(gaps), max(gaps, default=None))


def gap_between(backend: NativeBackend, tokens: Sequence[int], one: int, other: int) -> float:
    """How far apart two next tokens' logits are after ``tokens``, in standard deviations of all logits.

    Runs in blocks of the backend's present cache from its first on: what these held is lost.
    """
    size = backend.cache.block_tokens
    table = list(range(-(-len(tokens) // size)))
    chunk = Chunk(tokens, 0, table, 1)
    logits = backend.step(StepBatch.build([chunk], device=backend.device, block_tokens=size))[0]
    return float(torch.abs(logits[one] - logits[other]) / logits.std())


def _quantised(backend: NativeBackend) -> bool:
    return any("int" in name or name.startswith("q") for name in map(str.lower, backend.report.held))
