"""vLLM on CPU: its engine in this process, compiled as it comes, prefix cache off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import vllm

from benchmarks.peers.protocol import LONGEST_TOKENS, Setup, serve
from benchmarks.peers.workers.stepping import SteppingEngine

_BATCHED_TOKENS = 4096


class Vllm(SteppingEngine):
    """Requests by number; the engine's own step."""

    def load(self, setup: Setup) -> dict[str, Any]:
        cores = sorted(os.sched_getaffinity(0))[: setup.threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in cores)
        self.llm = vllm.LLM(
            model=setup.path,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=LONGEST_TOKENS,
            max_num_seqs=max(setup.batch, 1),
            max_num_batched_tokens=_BATCHED_TOKENS,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.engine = self.llm.llm_engine
        self.vocabulary = int(self.llm.model_config.get_vocab_size())
        self.tokens: dict[int, list[int]] = {}
        self.count = 0
        return {"versions": {"vllm": vllm.__version__, "torch": torch.__version__}, "kv_dtype": "bf16"}

    def add(self, tokens: Sequence[int], count: int) -> int:
        self.count += 1
        self.tokens[self.count] = []
        parameters = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self.count), {"prompt_token_ids": list(tokens)}, parameters)
        return self.count

    def step(self) -> None:
        for output in self.engine.step():
            number = int(output.request_id.partition("-")[0])
            if number in self.tokens:
                self.tokens[number] = list(output.outputs[0].token_ids)

    def made(self, request: int) -> list[int]:
        return self.tokens[request]

    def drop(self) -> None:
        self.engine.abort_request([str(number) for number in self.tokens])
        while self.engine.has_unfinished_requests():
            self.engine.step()
        self.tokens.clear()


if __name__ == "__main__":
    serve(Vllm())
