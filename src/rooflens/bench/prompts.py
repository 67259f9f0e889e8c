"""Prompts for measurements: random tokens, equal on every machine."""

from __future__ import annotations

import random


def random_prompt(vocab_size: int, *, tokens: int, seed: int = 0) -> list[int]:
    """``tokens`` random token ids below ``vocab_size``; another ``seed`` gives another prompt."""
    numbers = random.Random(seed)
    return [numbers.randrange(vocab_size) for _ in range(tokens)]
