"""llama.cpp, through the C interface that llama-cpp-python carries."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp as ll
import numpy as np

from benchmarks.peers.protocol import CHUNK_TOKENS, LONGEST_TOKENS, Case, Setup, prompt, serve

BATCHED_TOKENS = 256
"""What a sequence of a batch may hold."""
_PREFILL_BATCH = 2048


class _Context:
    """One llama_context: its sequences and how many tokens each holds."""

    def __init__(self, model: Any, *, threads: int, sequences: int, tokens: int) -> None:
        settings = ll.llama_context_default_params()
        settings.n_ctx = sequences * tokens
        settings.n_seq_max = sequences
        settings.n_batch, settings.n_ubatch = _PREFILL_BATCH, CHUNK_TOKENS
        settings.n_threads = settings.n_threads_batch = threads
        settings.no_perf = True
        self.handle = ll.llama_init_from_model(model, settings)
        if not self.handle:
            raise RuntimeError("llama.cpp made no context")
        self.memory = ll.llama_get_memory(self.handle)
        self.batch = ll.llama_batch_init(_PREFILL_BATCH, 0, 1)
        self.vocabulary = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
        self.held = [0] * sequences

    def crop(self, sequence: int, length: int) -> None:
        if self.held[sequence] > length:
            ll.llama_memory_seq_rm(self.memory, sequence, length, -1)
            self.held[sequence] = length

    def run(self, rows: Sequence[tuple[int, int, bool]]) -> None:
        """Decode rows of (token, sequence, whether its logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for index, (token, sequence, wanted) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = self.held[sequence]
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
            self.held[sequence] += 1
        status = ll.llama_decode(self.handle, batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}")

    def prefill(self, tokens: Sequence[int], sequence: int = 0) -> np.ndarray[Any, Any]:
        for start in range(0, len(tokens), _PREFILL_BATCH):
            part = tokens[start : start + _PREFILL_BATCH]
            last = start + len(part) - 1
            self.run([(t, sequence, index == len(tokens) - 1) for index, t in enumerate(part, start)])
        return self.logits(last - start)

    def logits(self, row: int) -> np.ndarray[Any, Any]:
        pointer = ll.llama_get_logits_ith(self.handle, row)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary,))


class LlamaCpp:
    """One context for a single sequence, one for the batches."""

    def load(self, setup: Setup) -> dict[str, Any]:
        self.log = ll.llama_log_callback(lambda level, text, data: None)
        ll.llama_log_set(self.log, ctypes.c_void_p(0))
        ll.llama_backend_init()
        settings = ll.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = ll.llama_model_load_from_file(setup.path.encode(), settings)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {setup.path}")
        self.one = _Context(self.model, threads=setup.threads, sequences=1, tokens=LONGEST_TOKENS)
        self.many = _Context(
            self.model, threads=setup.threads, sequences=max(setup.batch, 1), tokens=BATCHED_TOKENS
        )
        return {
            "versions": {"llama-cpp-python": ll.__version__},
            "kv_dtype": "fp16",
            "system": ll.llama_print_system_info().decode(),
        }

    def choose(self, tokens: Sequence[int], path: str | None) -> int:
        self.one.crop(0, 0)
        logits = self.one.prefill(tokens)
        if path is not None:
            logits.astype(np.float32).tofile(path)
        return int(logits.argmax())

    def score(self, tokens: Sequence[int], prompt: int, path: str) -> None:
        self.one.crop(0, 0)
        with open(path, "wb") as file:
            self.one.run([(token, 0, True) for token in tokens[:prompt]])
            for row in range(prompt):
                self.one.logits(row).tofile(file)
            for token in tokens[prompt:]:
                self.one.run([(token, 0, True)])
                self.one.logits(0).tofile(file)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        chosen = [self.choose(tokens, None)]
        while len(chosen) < count:
            self.one.run([(chosen[-1], 0, True)])
            chosen.append(int(self.one.logits(0).argmax()))
        return chosen

    def _context(self, case: Case) -> _Context:
        return self.one if case.batch == 1 else self.many

    def ready(self, case: Case) -> None:
        context = self._context(case)
        if case.kind == "prefill":
            context.crop(0, 0)
            return
        for sequence in range(case.batch):
            if context.held[sequence] < case.context:
                context.crop(sequence, 0)
                tokens = prompt(case.context, vocabulary=context.vocabulary, seed=sequence)
                context.prefill(tokens, sequence)
            context.crop(sequence, case.context)

    def run(self, case: Case) -> float:
        context = self._context(case)
        if case.kind == "prefill":
            tokens = prompt(case.context, vocabulary=context.vocabulary)
            started = time.perf_counter()
            int(context.prefill(tokens).argmax())
            return time.perf_counter() - started
        chosen = [7] * case.batch
        started = time.perf_counter()
        for _ in range(case.tokens):
            context.run([(token, sequence, True) for sequence, token in enumerate(chosen)])
            chosen = [int(context.logits(row).argmax()) for row in range(case.batch)]
        return (time.perf_counter() - started) / case.tokens


if __name__ == "__main__":
    serve(LlamaCpp())
