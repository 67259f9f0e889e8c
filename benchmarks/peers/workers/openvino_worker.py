"""OpenVINO GenAI: the continuous batching pipeline, step by step; cache and precision as it chooses them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.protocol import Setup, serve
from benchmarks.peers.workers.stepping import SteppingEngine

_CACHE_GB = 2
_BATCHED_TOKENS = 4096


class OpenVino(SteppingEngine):
    """bf16 arithmetic; the cache's type is the plugin's default."""

    def load(self, setup: Setup) -> dict[str, Any]:
        config = json.loads((Path(setup.path) / "config.json").read_text(encoding="utf-8"))
        self.vocabulary = int(config["vocab_size"])
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_batched_tokens = _BATCHED_TOKENS
        scheduler.max_num_seqs = max(setup.batch, 1)
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": setup.threads, "INFERENCE_PRECISION_HINT": "bf16"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            setup.path, scheduler, "CPU", properties, {}
        )
        self.handles: dict[int, Any] = {}
        self.tokens: dict[int, list[int]] = {}
        self.count = 0
        return {
            "versions": {
                "openvino": openvino.__version__,
                "openvino-genai": openvino_genai.__version__,
            },
            "kv_dtype": "int8",
            # The lookup and the head share one table.
            "held_bytes": (Path(setup.path) / "openvino_model.bin").stat().st_size,
        }

    def add(self, tokens: Sequence[int], count: int) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        self.count += 1
        ids = openvino.Tensor(np.array([tokens], dtype=np.int64))
        self.handles[self.count] = self.pipeline.add_request(self.count, ids, config)
        self.tokens[self.count] = []
        return self.count

    def step(self) -> None:
        self.pipeline.step()

    def made(self, request: int) -> list[int]:
        handle = self.handles[request]
        while handle.can_read():
            for output in handle.read().values():
                self.tokens[request] += output.generated_ids
        return self.tokens[request]

    def drop(self) -> None:
        for handle in self.handles.values():
            handle.stop()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        self.handles.clear()
        self.tokens.clear()


if __name__ == "__main__":
    serve(OpenVino())
