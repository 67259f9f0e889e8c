"""onnxruntime-genai: its generator, rewound to the context between samples."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_genai as og

from benchmarks.peers.protocol import LONGEST_TOKENS, Case, Setup, prompt, serve

BATCHED_TOKENS = 256
"""What a sequence of a batch may hold."""


class OnnxRuntime:
    """A generator per case of decoding; a fresh one for every prompt."""

    def load(self, setup: Setup) -> dict[str, Any]:
        config = og.Config(setup.path)
        threads = {"intra_op_num_threads": setup.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self.model = og.Model(config)
        text = (Path(setup.path) / "genai_config.json").read_text(encoding="utf-8")
        self.vocabulary = int(json.loads(text)["model"]["vocab_size"])
        self.generators: dict[str, Any] = {}
        return {
            "versions": {"onnxruntime-genai": og.__version__},
            "kv_dtype": "fp32",
            "held_bytes": held_bytes(Path(setup.path) / "model.onnx"),
        }

    def _generator(self, *, batch: int, tokens: int) -> Any:
        parameters = og.GeneratorParams(self.model)
        parameters.set_search_options(do_sample=False, batch_size=batch, max_length=tokens, min_length=tokens)
        return og.Generator(self.model, parameters)

    def _prefill(self, rows: list[list[int]], *, tokens: int) -> Any:
        generator = self._generator(batch=len(rows), tokens=tokens)
        generator.append_tokens(np.array(rows, dtype=np.int32))
        return generator

    def choose(self, tokens: Sequence[int], path: str | None) -> int:
        generator = self._prefill([list(tokens)], tokens=len(tokens) + 2)
        if path is not None:
            logits = np.asarray(generator.get_logits(), dtype=np.float32)
            logits.reshape(-1, self.vocabulary)[-1].tofile(path)
        generator.generate_next_token()
        return int(generator.get_next_tokens()[0])

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        generator = self._prefill([list(tokens)], tokens=len(tokens) + count + 1)
        for _ in range(count):
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)[-count:]]

    def ready(self, case: Case) -> None:
        if case.kind == "prefill":
            return
        kept = self.generators.get(case.name)
        if kept is not None and case.batch == 1:  # several sequences cannot be rewound
            kept.rewind_to(case.context)
            kept.append_tokens(np.array([[7]], dtype=np.int32))
            return
        rows = [prompt(case.context, vocabulary=self.vocabulary, seed=row) for row in range(case.batch)]
        size = LONGEST_TOKENS if case.batch == 1 else BATCHED_TOKENS
        self.generators[case.name] = self._prefill(rows, tokens=size)

    def run(self, case: Case) -> float:
        if case.kind == "prefill":
            tokens = prompt(case.context, vocabulary=self.vocabulary)
            generator = self._generator(batch=1, tokens=case.context + 2)
            started = time.perf_counter()
            generator.append_tokens(np.array([tokens], dtype=np.int32))
            generator.generate_next_token()
            return time.perf_counter() - started
        generator = self.generators[case.name]
        # The first choice needs no step of the model: its logits came with the prompt.
        generator.generate_next_token()
        started = time.perf_counter()
        for _ in range(case.tokens):
            generator.generate_next_token()
        return (time.perf_counter() - started) / case.tokens


def held_bytes(path: Path) -> int:
    """Bytes of the weights that every token reads: all but tables that are only looked up."""
    graph = onnx.load(str(path), load_external_data=False).graph
    tables = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    return sum(
        math.prod(weight.dims) * onnx.helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize
        for weight in graph.initializer
        if weight.name not in tables
    )


if __name__ == "__main__":
    serve(OnnxRuntime())
