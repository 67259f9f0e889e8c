"""Tensor parallel with two or more processes over gloo: the same logits and tokens as in one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

from parallel_rank import logits_and_tokens  # noqa: E402
from runtime_models import assert_close, make_reference, random_prompt  # noqa: E402

from rooflens.errors import InputError, UnsupportedError  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.parallel import TensorParallel  # noqa: E402
from rooflens.runtime.rank_source import rank_cuts, share  # noqa: E402

torch.set_num_threads(1)
HERE = Path(__file__).parent
#: Longer than the group's own timeout, so that a rank always gets to say what went wrong.
LIMIT_S = 90
TOKENS = random_prompt(21)
# The vocabulary of the small models, 199, is odd: the last rank's part of it is padded.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama-gqa": ("LlamaConfig", {"tie_word_embeddings": False}, 2),
    "llama-bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}, 2),
    "qwen2-tied": ("Qwen2Config", {"tie_word_embeddings": True}, 2),
    "one-kv-head": ("LlamaConfig", {"num_key_value_heads": 1, "num_hidden_layers": 2}, 2),
    "two-kv-heads-four-ranks": ("Qwen2Config", {"num_hidden_layers": 2}, 4),
    "phi3-fused": ("Phi3Config", {"num_hidden_layers": 2}, 2),
    "gemma3-head-norms": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 16}, 2),
}

# 6 query heads over 4 ranks are not whole; 96 MLP features and 256 padded tokens would divide.
SIX_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96, "num_hidden_layers": 1}
OTHER_TYPES: dict[str, dict[str, str]] = {
    "bf16": {"dtype": "bf16"},
    "int8": {"weights": "int8"},
    "eager": {"kernels": "eager"},
}
Answers = list[list[dict[str, Any]]]


def run_ranks(
    jobs: list[dict[str, Any]], *, size: int, start: int | None = None, timeout_s: float = 30.0
) -> Answers:
    """What every rank answers to each job; ``start``: how many of the ``size`` ranks are started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    if sys.platform == "linux":
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    work = {"timeout_s": timeout_s, "jobs": [{"tokens": TOKENS, **job} for job in jobs]}
    command = [sys.executable, str(HERE / "parallel_rank.py"), json.dumps(work)]
    answers = []
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / f"{rank}.json" for rank in range(start or size)]
        started = [
            subprocess.Popen(
                [*command, str(file)],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, file in enumerate(files)
        ]
        try:
            for process, file in zip(started, files, strict=True):
                _, problems = process.communicate(timeout=LIMIT_S)
                answers.append(json.loads(file.read_text()) if file.exists() else [{"died": problems}])
        finally:
            for process in started:
                process.kill()
                process.wait()
    return answers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The directory of each case's checkpoint."""
    root = tmp_path_factory.mktemp("parallel")
    cases = {**CASES, "six-heads": ("LlamaConfig", SIX_HEADS, 4)}
    for case, (kind, fields, _) in cases.items():
        make_reference(kind, fields, root / case)
    return {case: str(root / case) for case in cases}


@pytest.fixture(scope="module")
def answered(models: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Every job's answers, one for each rank; jobs of one size share their processes, which start slowly."""
    llama = models["llama-gqa"]
    two: dict[str, dict[str, Any]] = {
        name: {"model": llama, "options": options} for name, options in OTHER_TYPES.items()
    }
    two["missing"] = {"model": [llama, llama + "-nowhere"]}
    two["contexts"] = {"model": llama, "options": [{"context": 128}, {"context": 96}]}
    four = {"six-heads": {"model": models["six-heads"]}}
    for case, (_, _, size) in CASES.items():
        (two if size == 2 else four)[case] = {"model": models[case]}
    found: dict[str, list[dict[str, Any]]] = {}
    for jobs, size in ((two, 2), (four, 4)):
        ranks = run_ranks(list(jobs.values()), size=size)
        assert all(len(answers) == len(jobs) for answers in ranks), ranks
        found.update(zip(jobs, (list(of_job) for of_job in zip(*ranks, strict=True)), strict=True))
    return found


@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_one_process(
    case: str, models: dict[str, str], answered: dict[str, list[dict[str, Any]]]
) -> None:
    size = CASES[case][2]
    expected = logits_and_tokens(NativeBackend(models[case], "cpu", kv_tokens=256), TOKENS)
    assert all("result" in answer for answer in answered[case]), answered[case]
    results = [answer["result"] for answer in answered[case]]
    for result in results:
        assert_close(torch.tensor(result["logits"]), torch.tensor(expected["logits"]))
        assert result["greedy"] == [list(tokens) for tokens in expected["greedy"]]
        # Bit for bit: every rank samples from the same numbers, with the first rank's seed.
        assert result["logits"] == results[0]["logits"]
        assert result["drawn"] == results[0]["drawn"]
        assert result["kv_heads"] == max(1, expected["kv_heads"] // size)
        # Norms, copied KV heads and padding make it a little more than an equal part.
        assert result["held_bytes"] < expected["held_bytes"] * (0.56 if size == 2 else 0.4)


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_other_types(name: str, models: dict[str, str], answered: dict[str, list[dict[str, Any]]]) -> None:
    alone = NativeBackend(models["llama-gqa"], "cpu", kv_tokens=256, **OTHER_TYPES[name])
    expected = logits_and_tokens(alone, TOKENS)
    first, second = (answer["result"] for answer in answered[name])
    # Sums rounded in another order: bf16 keeps 8 bits, int8 has a scale for each rank's part of a row.
    assert_close(torch.tensor(first["logits"]), torch.tensor(expected["logits"]), share=0.05)
    assert (first["greedy"], first["drawn"]) == (second["greedy"], second["drawn"])


def test_a_failure_on_one_rank_is_told_on_all(answered: dict[str, list[dict[str, Any]]]) -> None:
    first, second = answered["missing"]
    assert "rank 1 failed while loading the model" in first["error"]
    assert "nowhere" in second["error"]


def test_settings_that_differ_are_named(answered: dict[str, list[dict[str, Any]]]) -> None:
    for answer in answered["contexts"]:
        assert "the ranks were not given the same context (got 128, 96)" in answer["error"]


def test_heads_that_do_not_divide_are_refused(answered: dict[str, list[dict[str, Any]]]) -> None:
    for answer in answered["six-heads"]:
        assert "6 attention heads are not divisible by tp=4" in answer["error"]


def test_a_rank_that_stops_does_not_leave_the_other_waiting(models: dict[str, str]) -> None:
    first, _ = run_ranks([{"model": models["one-kv-head"], "stop": True}], size=2)
    assert "one has stopped or never came" in first[0]["error"]


def test_a_rank_that_never_comes_is_not_waited_for_long(models: dict[str, str]) -> None:
    (first,) = run_ranks([{"model": models["one-kv-head"]}], size=2, start=1, timeout_s=2.0)
    assert "the ranks did not all start" in first[0]["error"]


def test_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="needs RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"):
        TensorParallel.from_environment("cpu")
    with pytest.raises(InputError, match="no process group is set up"):
        TensorParallel()
    for name, value in {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="over 4 ranks was asked for"):
        TensorParallel.from_environment("cpu", size=4)
    with pytest.raises(InputError, match="RANK is not one of the group"):
        TensorParallel.from_environment("cpu")
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(InputError, match="RANK in the environment is not a whole number"):
        TensorParallel.from_environment("cpu")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InputError, match="other devices"):
        TensorParallel.from_environment("mps")


def test_shares_cover_everything_once() -> None:
    # ceil(199 / 2) = 100 rows, then the 99 that are left.
    assert [share(199, rank=rank, size=2) for rank in range(2)] == [range(100), range(100, 199)]
    # 3 rows over 4 ranks: one each, and none for the last.
    assert [len(share(3, rank=rank, size=4)) for rank in range(4)] == [1, 1, 1, 0]


def test_norms_over_all_heads_are_refused() -> None:
    config = {
        "model_type": "olmo2",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 199,
        "rms_norm_eps": 1e-6,
    }
    with pytest.raises(UnsupportedError, match="q_norm is taken over all heads"):
        list(rank_cuts(read_spec(config, name="olmo2"), rank=0, size=2))
