"""Hugging Face transformers, eager, with its own dynamic cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.peers.protocol import Case, Setup, prompt, serve

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Transformers:
    """A cache per number of sequences; a longer one is cropped back."""

    def load(self, setup: Setup) -> dict[str, Any]:
        torch.set_num_threads(setup.threads)
        path = Path(setup.path)
        source: dict[str, Any] = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent if source else path),
            dtype=_DTYPES[setup.weights],
            local_files_only=True,
            **source,
        ).eval()
        self.vocabulary = int(self.model.config.vocab_size)
        self.caches: dict[int, Any] = {}
        facts = {"held_bytes": self._held_bytes()} if source else {}
        return {
            **facts,
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            "kv_dtype": setup.weights,
        }

    def _held_bytes(self) -> int:
        """Bytes of the weights that every token reads: all but a table that is only looked up."""
        table, head = self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight
        every = sum(weight.nbytes for weight in self.model.parameters())
        return every if head is table else every - table.nbytes

    @torch.inference_mode()
    def _all(self, rows: list[list[int]], cache: Any, *, wanted: int) -> torch.Tensor:
        output = self.model(torch.tensor(rows), past_key_values=cache, use_cache=True, logits_to_keep=wanted)
        return output.logits

    def _step(self, rows: list[list[int]], cache: Any) -> torch.Tensor:
        return self._all(rows, cache, wanted=1)[:, -1]

    def _new_cache(self) -> Any:
        return transformers.DynamicCache(config=self.model.config)

    def choose(self, tokens: Sequence[int], path: str | None) -> int:
        logits = self._step([list(tokens)], self._new_cache())[0].float()
        if path is not None:
            logits.numpy().tofile(path)
        return int(logits.argmax())

    def score(self, tokens: Sequence[int], prompt: int, path: str) -> None:
        cache = self._new_cache()
        with open(path, "wb") as file:
            for rows in (tokens[:prompt], *([token] for token in tokens[prompt:])):
                self._all([list(rows)], cache, wanted=len(rows))[0].float().numpy().tofile(file)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        cache, rows, chosen = self._new_cache(), list(tokens), []
        while len(chosen) < count:
            chosen.append(int(self._step([rows], cache)[0].argmax()))
            rows = chosen[-1:]
        return chosen

    def ready(self, case: Case) -> None:
        if case.kind == "prefill":
            return
        cache = self.caches.get(case.batch)
        if cache is None or cache.get_seq_length() < case.context:
            cache = self._new_cache()
            rows = [prompt(case.context, vocabulary=self.vocabulary, seed=row) for row in range(case.batch)]
            self._step(rows, cache)
            self.caches[case.batch] = cache
        excess = cache.get_seq_length() - case.context
        if excess:
            cache.crop(-excess)

    def run(self, case: Case) -> float:
        if case.kind == "prefill":
            tokens, cache = prompt(case.context, vocabulary=self.vocabulary), self._new_cache()
            started = time.perf_counter()
            int(self._step([tokens], cache)[0].argmax())
            seconds = time.perf_counter() - started
            self.caches[1] = cache
            return seconds
        cache, chosen = self.caches[case.batch], [7] * case.batch
        started = time.perf_counter()
        for _ in range(case.tokens):
            chosen = self._step([[token] for token in chosen], cache).argmax(-1).tolist()
        return (time.perf_counter() - started) / case.tokens


if __name__ == "__main__":
    serve(Transformers())
