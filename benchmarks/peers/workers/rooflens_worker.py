"""Rooflens: the backend's own step, blocks in the order of the cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from benchmarks.peers.cases import CASES, need
from benchmarks.peers.protocol import CHUNK_TOKENS, LONGEST_TOKENS, Case, Setup, prompt, serve
from rooflens import __version__
from rooflens.runtime import NativeBackend
from rooflens.runtime.batch import BLOCK_TOKENS, Chunk, StepBatch

BATCHED_TOKENS = 256
"""What a sequence of a batch may hold."""
SCORED_TOKENS = 128
"""Rows of logits that are held at once, in chunks that still run as a prompt does."""


class Rooflens:
    """One sequence of the longest context in the first blocks; the batch's sequences behind it."""

    def load(self, setup: Setup) -> dict[str, Any]:
        torch.set_num_threads(setup.threads)
        self.backend = NativeBackend(
            setup.path,
            device="cpu",
            dtype="fp32" if setup.weights == "fp32" else "bf16",
            weights=setup.held or None,
            kernels=setup.variant or None,
            context=LONGEST_TOKENS,
            kv_tokens=LONGEST_TOKENS + setup.batch * BATCHED_TOKENS,
        )
        spec = self.backend.spec
        self.vocabulary = spec.vocab_size
        self.long = list(range(LONGEST_TOKENS // BLOCK_TOKENS))
        per_sequence = BATCHED_TOKENS // BLOCK_TOKENS
        self.tables = [
            [len(self.long) + index * per_sequence + block for block in range(per_sequence)]
            for index in range(setup.batch)
        ]
        self.filled: dict[str, int] = {}
        return {
            "versions": {"rooflens": __version__, "torch": torch.__version__},
            "kv_dtype": self.backend.kv_dtype,
            "kernels": self.backend.report.kernels,
            "notes": self.backend.report.notes,
            "needs": {case.name: vars(need(spec, case, kv_dtype=self.backend.kv_dtype)) for case in CASES},
        }

    def _prefill(self, tokens: Sequence[int], table: list[int]) -> torch.Tensor:
        for start in range(0, len(tokens), CHUNK_TOKENS):
            part = tokens[start : start + CHUNK_TOKENS]
            last = start + len(part) == len(tokens)
            chunk = Chunk(part, start, table, int(last))
            logits = self.backend.step(StepBatch.build([chunk]))
        return logits

    def choose(self, tokens: Sequence[int], path: str | None) -> int:
        self.filled.clear()
        logits = self._prefill(tokens, self.long)[0]
        if path is not None:
            logits.numpy().tofile(path)
        return int(logits.argmax())

    def score(self, tokens: Sequence[int], prompt: int, path: str) -> None:
        self.filled.clear()
        starts = [*range(0, prompt, SCORED_TOKENS), *range(prompt, len(tokens))]
        with open(path, "wb") as file:
            for start, end in pairwise([*starts, len(tokens)]):
                chunk = Chunk(tokens[start:end], start, self.long, end - start)
                self.backend.step(StepBatch.build([chunk])).numpy().tofile(file)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        chosen = [self.choose(tokens, None)]
        while len(chosen) < count:
            chunk = Chunk([chosen[-1]], len(tokens) + len(chosen) - 1, self.long)
            chosen.append(int(self.backend.step(StepBatch.build([chunk]))[0].argmax()))
        return chosen

    def ready(self, case: Case) -> None:
        if case.kind == "prefill":
            return
        tables = [self.long] if case.batch == 1 else self.tables[: case.batch]
        for index, table in enumerate(tables):
            key = f"{table[0]}"
            if self.filled.get(key, 0) < case.context:
                self._prefill(prompt(case.context, vocabulary=self.vocabulary, seed=index), table)
                self.filled[key] = case.context

    def run(self, case: Case) -> float:
        if case.kind == "prefill":
            tokens = prompt(case.context, vocabulary=self.vocabulary)
            started = time.perf_counter()
            int(self._prefill(tokens, self.long)[0].argmax())
            seconds = time.perf_counter() - started
            # Every prompt is a beginning of the longest: what stands behind this one stays.
            self.filled["0"] = max(self.filled.get("0", 0), case.context)
            return seconds
        tables = [self.long] if case.batch == 1 else self.tables[: case.batch]
        tokens = [7] * case.batch
        started = time.perf_counter()
        for position in range(case.context, case.context + case.tokens):
            chunks = [Chunk([token], position, table) for token, table in zip(tokens, tables, strict=True)]
            tokens = self.backend.step(StepBatch.build(chunks)).argmax(-1).tolist()
        # Tokens written over a longer prompt change its values, not what reading them costs.
        return (time.perf_counter() - started) / case.tokens


if __name__ == "__main__":
    serve(Rooflens())
