"""One rank of a tensor-parallel test: run as a process of its own, with torchrun's variables set.

Argument: a JSON object with ``timeout_s`` of the group and ``jobs``, which are run one after the other: each
has ``model`` (a checkpoint's directory), ``tokens`` and perhaps ``options`` of the backend, which hold for
all ranks or are a list with one entry for each, and ``stop``, at which the second rank ends. Second argument:
the file for one JSON list with a ``result`` or an ``error`` for each job; not the standard output, to which
gloo's own threads write when they like, in the middle of a long line too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from rooflens.errors import RooflensError
from rooflens.runtime import NativeBackend, SamplingParams
from rooflens.runtime.batch import Chunk, StepBatch
from rooflens.runtime.parallel import TensorParallel


def logits_and_tokens(backend: NativeBackend, tokens: list[int]) -> dict[str, Any]:
    """Logits of every prompt row, and what is generated greedily and drawn without a seed."""
    blocks = list(range(-(-len(tokens) // 16)))
    logits = backend.step(StepBatch.build([Chunk(tokens, 0, blocks, len(tokens))])).tolist()
    # Every rank but the first is told something else: the first rank's request counts.
    asked = tokens if os.environ.get("RANK", "0") == "0" else tokens[:1]
    greedy = backend.generate([asked, asked[:1]], SamplingParams(max_tokens=24, temperature=0.0))
    drawn = backend.generate([asked], SamplingParams(max_tokens=12, temperature=1.5, n=2))
    return {
        "logits": logits,
        "greedy": [answer.token_ids for answer in greedy],
        "drawn": [answer.token_ids for answer in drawn],
        "held_bytes": backend.report.held_bytes,
        "kv_heads": backend.cache.keys[0].shape[0],
    }


def run(job: dict[str, Any], parallel: TensorParallel) -> dict[str, Any]:
    def own(value: Any) -> Any:
        return value[parallel.rank] if isinstance(value, list) else value

    options = own(job.get("options", {}))
    try:
        backend = NativeBackend(own(job["model"]), "cpu", kv_tokens=256, parallel=parallel, **options)
        if job.get("stop") and parallel.rank == 1:
            os._exit(0)
        return {"result": logits_and_tokens(backend, job["tokens"])}
    except RooflensError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(work: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        with TensorParallel.from_environment("cpu", timeout_s=work["timeout_s"]) as parallel:
            return [run(job, parallel) for job in work["jobs"]]
    except RooflensError as error:
        return [{"error": f"{type(error).__name__}: {error}"}]


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(sys.argv[1]))))
