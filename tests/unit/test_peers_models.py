"""The random model in its two first forms, and our worker on it: small, but real files and processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from benchmarks.peers import checks, quality
from benchmarks.peers.model_files import random_tensors, read_config, write_directory, write_gguf
from benchmarks.peers.protocol import Case, Setup
from benchmarks.peers.worker_process import Worker, WorkerError
from rooflens.runtime import NativeBackend

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return {**read_config("Qwen/Qwen2.5-0.5B"), **TINY}


@pytest.fixture(scope="module")
def directory(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("model") / "directory", config)


def test_tensors_are_those_of_transformers(config: dict[str, Any]) -> None:
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**config))
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wanted.pop("lm_head.weight")  # tied
    made = random_tensors(config)
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == wanted


def test_the_same_seed_gives_the_same_weights(config: dict[str, Any]) -> None:
    first, again, other = (random_tensors(config, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_directory_and_gguf_are_one_model(directory: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", directory)
    tokens = torch.tensor([[3, 14, 159, 26]])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(tokens).logits[0, -1]
    from rooflens.runtime.batch import Chunk, StepBatch

    for source in (directory, file):
        backend = NativeBackend(source, device="cpu", dtype="fp32", kernels="eager")
        logits = backend.step(StepBatch.build([Chunk(tokens[0].tolist(), 0, [0])]))[0]
        assert torch.allclose(logits, expected, atol=2e-4), source


def test_our_worker_loads_checks_and_runs(directory: Path, tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "1"}
    worker = Worker(
        Path(sys.executable), "rooflens_worker", log=tmp_path / "log.txt", environment=environment
    )
    try:
        facts = worker.load(Setup(str(directory), "bf16", threads=1, batch=4, variant="cpu"))
        assert facts["kv_dtype"] == "bf16"
        assert facts["needs"]["decode_64_b1"]["read_bytes"] > 0
        logits = tmp_path / "logits.f32"
        token = worker.choose([1, 2, 3], logits)
        assert int(np.fromfile(logits, dtype=np.float32).argmax()) == token
        assert worker.greedy([1, 2, 3], 4)[0] == token
        given = checks.prompts(320)
        checks.write_logits(worker, given, tmp_path)
        reference = checks.kept_logits(tmp_path, len(given))
        assert checks.check(worker, given, reference, "bf16", tmp_path).equal == 1.0
        scored = tmp_path / "scored.f32"
        assert worker.score([1, 2, 3, 4], 3, scored)
        rows = quality.read_logits(scored, 4)
        # The last of the prompt, and a step after it, say what choosing after them says.
        assert np.allclose(rows[2], np.fromfile(logits, dtype=np.float32), rtol=0, atol=0.05)
        worker.choose([1, 2, 3, 4], logits)
        assert np.allclose(rows[3], np.fromfile(logits, dtype=np.float32), rtol=0, atol=0.05)
        for case in (
            Case("prefill", 16),
            Case("decode", 16, tokens=2),
            Case("decode", 16, batch=4, tokens=2),
        ):
            worker.ready(case)
            worker.sleep()
            worker.wake()
            assert worker.run(case) > 0
        with pytest.raises(WorkerError, match="KeyError"):
            worker._ask({"do": "ready"}, 30)
        worker.greedy([1], 1)  # an error does not end it
    finally:
        worker.close()
    with pytest.raises(WorkerError):
        worker.sleep()


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    worker = Worker(Path(sys.executable), "no_such_worker", log=tmp_path / "log.txt")
    with pytest.raises(WorkerError, match="No module named"):
        worker.load(Setup("", "bf16", 1, 1))
    worker.close()
