"""A profiled run: records, memory, accounts and the files they are written to."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rooflens.hardware import device_by_hand  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.runtime.backend import NativeBackend  # noqa: E402
from rooflens.runtime.engine.engine import Engine  # noqa: E402
from rooflens.runtime.engine.records import PHASES, RequestRecord, StepRecord, Work  # noqa: E402
from rooflens.runtime.engine.settings import EngineSettings  # noqa: E402
from rooflens.runtime.engine.speculative import PromptLookup  # noqa: E402
from rooflens.runtime.profile.engine import EngineProfile, EngineProfiler, ProfiledStep  # noqa: E402
from rooflens.runtime.profile.export import (  # noqa: E402
    trace_events,
    write_csv,
    write_json,
    write_trace,
)
from rooflens.runtime.profile.memory import MemoryProfiler, MemoryRecord, resident_bytes  # noqa: E402
from rooflens.runtime.profile.run import RunProfile, RunProfiler  # noqa: E402
from rooflens.runtime.sampling import SamplingParams  # noqa: E402

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
DEVICE = device_by_hand(peak_flops_per_s=500e9, bandwidth_bytes_per_s=50e9)


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    spec = read_spec(LLAMA, name="tiny")
    return NativeBackend.from_random(spec, device="cpu", dtype="fp32", kv_tokens=512, kernels="cpu")


@pytest.fixture(scope="module")
def run(backend: NativeBackend) -> RunProfile:
    engine = Engine(backend, EngineSettings(max_batched_tokens=64))
    profiler = RunProfiler(engine, backend)
    profiler.warm_up(prompt_tokens=100)
    with profiler:
        engine.generate([[5] * 100, [9] * 40], SamplingParams(max_tokens=30, temperature=0))
    assert engine.observers == []
    assert not engine.settings.synchronize
    return profiler.result(DEVICE)


def test_the_accounts_of_both_phases(run: RunProfile) -> None:
    assert [account.phase for account in run.accounts] == ["prefill", "decode"]
    for account in run.accounts:
        assert account.only_predicted == ()
        assert account.only_measured == ()
        assert sum(row.seconds for row in account.rows) == pytest.approx(account.clock_s)
        assert account.bound_s < account.clock_s
        assert account.dispatches > 50
    decode = run.account("decode")
    assert decode is not None
    assert decode.sequences == 2
    assert decode.whole_s is not None
    assert [account.phase for account in run.whole][-1] == "decode"
    assert run.whole[-1].modules == ()
    assert sum(row.seconds for row in run.whole[-1].rows) == pytest.approx(run.whole[-1].clock_s)
    assert run.reading is not None
    assert len(run.readings) == 2
    json.dumps(run.to_dict(), allow_nan=False)


def test_modules_are_timed_in_every_other_step(run: RunProfile) -> None:
    watched = [step.modules is not None for step in run.profile.steps]
    assert watched == [index % 2 == 0 for index in range(len(watched))]


def test_the_summary(run: RunProfile) -> None:
    summary = run.profile.summary()
    assert summary["requests"] == 2
    assert summary["finish_reasons"] == {"length": 2}
    assert summary["prompt_tokens"] == 140
    assert summary["prefill_tokens"] == 140
    assert summary["output_tokens"] == 60
    # Tokens, not messages: one inter-token latency for each token after the first of each answer.
    assert summary["itl"]["count"] == 58
    assert summary["peak_tokens_per_s"] >= summary["tokens_per_s"]
    assert summary["by_phase"]["decode"]["steps"] >= 29
    # Before its last step, after which its blocks are free again, the first answer holds 128 tokens in 8
    # blocks of 16; the second, a step behind, then has 5 blocks for 66.
    assert summary["peak_kv_blocks_used"] == 8 + 5
    for request in run.profile.requests:
        assert request.ttft_s is not None
        assert request.total_s >= request.ttft_s + sum(request.itl_s) - 1e-9


def test_memory_by_component(run: RunProfile, backend: NativeBackend) -> None:
    for step in run.profile.steps:
        memory = step.memory
        assert memory is not None
        assert memory.weights_bytes == backend.report.held_bytes
        # 3 layers x 2 sides x 2 heads x 16 features x 4 B = 768 B a token, 512 tokens.
        assert memory.kv_total_bytes == 768 * 512
        assert memory.kv_used_bytes == step.record.kv_blocks_used * 16 * 768
        assert memory.kv_used_bytes + memory.kv_cached_bytes + memory.kv_free_bytes == memory.kv_total_bytes
        assert memory.allocated_bytes is None  # a CPU has no caching allocator
        assert memory.allocator_idle_bytes is None
        assert memory.rss_bytes is None or memory.rss_bytes > memory.kv_total_bytes


def test_the_allocator_s_two_figures_and_their_difference() -> None:
    record = MemoryRecord(0, 100, 50, 20, 10, 180, 256, None)
    assert record.kv_free_bytes == 20
    assert record.other_bytes == 30
    assert record.allocator_idle_bytes == 76
    assert resident_bytes(Path("/nowhere/statm")) is None
    step = ProfiledStep(step_record(0), None, record)
    assert "fragmentation" in EngineProfile((step,), ()).to_dict()["notes"][0]


def step_record(
    index: int, *, tokens: int = 1, seconds: float = 1.0, gap_s: float | None = 0.0
) -> StepRecord:
    spent = dict.fromkeys(PHASES, 0.0) | {"model_s": seconds}
    counts = dict.fromkeys(("admitted", "preempted", "waiting", "running"), 0)
    blocks = {"kv_blocks_used": 1, "kv_blocks_cached": 1, "kv_blocks_free": 1}
    return StepRecord(
        index=index,
        started_s=float(index),
        gap_s=gap_s,
        **spent,
        work=(Work(4, tokens, tokens, False),),
        output_tokens=tokens,
        drafted_tokens=tokens - 1,
        accepted_tokens=tokens - 1,
        **counts,
        budget_tokens=10,
        **blocks,
    )


def test_the_peak_rate_is_never_below_the_mean() -> None:
    steps = [step_record(0, tokens=1), step_record(1, tokens=5), step_record(2, tokens=1, gap_s=2.0)]
    profile = EngineProfile(tuple(ProfiledStep(step) for step in steps), ())
    assert profile.tokens_per_s == 7 / 5  # three seconds of steps and two of a gap
    assert profile.peak_tokens_per_s == 5.0
    assert EngineProfile((), ()).summary()["tokens_per_s"] is None


def test_guesses_are_counted(backend: NativeBackend) -> None:
    observer = EngineProfiler()
    engine = Engine(backend, proposer=PromptLookup(shortest=1), observers=[observer])
    engine.generate([[3, 4, 5] * 6], SamplingParams(max_tokens=40, temperature=0))
    profile = observer.profile()
    summary = profile.summary()
    assert summary["drafted_tokens"] > 0
    assert summary["acceptance"] == summary["accepted_tokens"] / summary["drafted_tokens"]
    assert summary["output_tokens"] == 40
    (request,) = profile.requests
    assert len(request.itl_s) == 39


def test_files(run: RunProfile, tmp_path: Path) -> None:
    write_json(run, tmp_path / "profile.json")
    document = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    assert document["schema"] == "rooflens.profile/1"
    assert [account["phase"] for account in document["accounts"]] == ["prefill", "decode"]
    assert len(document["steps"]) == len(run.profile.steps)
    write_csv(run.profile, steps=tmp_path / "steps.csv", requests=tmp_path / "requests.csv")
    with (tmp_path / "steps.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(run.profile.steps)
    assert sum(int(row["output_tokens"]) for row in rows) == 60
    assert rows[0]["phase"] == "prefill"
    assert int(rows[0]["kv_used_bytes"]) > 0
    with (tmp_path / "requests.csv").open(encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    assert [len(row["itl_s"].split()) for row in answers] == [29, 29]


def _nanoseconds(microseconds: float) -> int:
    """As viewers read them, which is only the same for all if there is nothing to round."""
    assert microseconds * 1000 == int(microseconds * 1000)
    return int(microseconds * 1000)


def test_the_trace_keeps_the_rules_of_its_format(run: RunProfile, tmp_path: Path) -> None:
    """The Trace Event Format: complete events, counters and metadata, each with the fields that it needs."""
    write_trace(run.profile, tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert document["displayTimeUnit"] in ("ms", "ns")
    needed = {
        "X": {"name", "ph", "ts", "dur", "pid", "tid", "args"},
        "C": {"name", "ph", "ts", "pid", "tid", "args"},
        "M": {"name", "ph", "pid", "tid", "args"},
    }
    kinds: dict[str, int] = {}
    series: dict[tuple[int, str], set[str]] = {}
    latest: dict[tuple[int, str], float] = {}
    for event in document["traceEvents"]:
        assert event.keys() == needed[event["ph"]]
        kinds[event["ph"]] = kinds.get(event["ph"], 0) + 1
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"].keys() == {"name"}
        if event["ph"] == "C":
            track = (event["pid"], event["name"])
            # A counter always has the same series, and goes forward.
            assert series.setdefault(track, set(event["args"])) == set(event["args"])
            assert latest.get(track, 0.0) <= event["ts"]
            latest[track] = event["ts"]
    assert kinds.keys() == needed.keys()
    named = {event["pid"] for event in document["traceEvents"] if event["ph"] == "M"}
    assert named == {event["pid"] for event in document["traceEvents"]}
    assert kinds["C"] >= 3 * len(run.profile.steps)


def test_the_trace_is_well_formed(run: RunProfile, tmp_path: Path) -> None:
    write_trace(run.profile, tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    for event in slices:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert {"name", "pid", "tid"} <= event.keys()
    # Slices of one row nest or follow each other; a viewer shows nothing else right.
    for row in {(event["pid"], event["tid"]) for event in slices}:
        own = sorted((e for e in slices if (e["pid"], e["tid"]) == row), key=lambda e: (e["ts"], -e["dur"]))
        open_until: list[int] = []
        for event in own:
            start, end = _nanoseconds(event["ts"]), _nanoseconds(event["ts"]) + _nanoseconds(event["dur"])
            while open_until and start >= open_until[-1]:
                open_until.pop()
            # Not a nanosecond more: Perfetto drops slices that overlap.
            assert not open_until or end <= open_until[-1], event["name"]
            open_until.append(end)
    names = {event["name"] for event in events}
    assert {"prefill step", "decode step", "model", "layers.0.attention.core", "KV blocks", "queued"} <= names
    counters = [event for event in events if event["ph"] == "C"]
    assert all(isinstance(value, (int, float)) for event in counters for value in event["args"].values())


def test_an_answer_that_never_ran_is_traced_as_queued() -> None:
    record = RequestRecord("r", 0, 5, 0, 0, 1.0, None, 3.0, (), "cancelled")
    events = [e for e in trace_events(EngineProfile((), (record,))) if e["ph"] == "X"]
    assert [(e["name"], e["dur"]) for e in events] == [("queued", 2e6)]


def test_an_interrupted_run_has_its_profile(backend: NativeBackend) -> None:
    engine = Engine(backend)
    profiler = RunProfiler(engine, backend)
    with profiler:
        for count, _ in enumerate(engine.stream([5] * 20, SamplingParams(max_tokens=200, temperature=0))):
            if count == 9:
                os.kill(os.getpid(), signal.SIGINT)
    found = profiler.result(DEVICE)
    (request,) = found.profile.requests
    assert request.finish_reason == "cancelled"
    assert 10 <= request.output_tokens < 20
    assert found.account("decode") is not None


def test_nothing_seen_nothing_claimed(backend: NativeBackend) -> None:
    profiler = RunProfiler(Engine(backend), backend)
    found = profiler.result(DEVICE)
    assert (found.accounts, found.reading) == ((), None)
    assert found.profile.summary()["requests"] == 0


def test_memory_profiler_reads_what_the_step_left() -> None:
    reader = MemoryProfiler(weights_bytes=7, bytes_per_block=10, device="cpu")
    record = reader.read(step_record(3))
    assert (record.step, record.kv_total_bytes, record.kv_used_bytes, record.kv_cached_bytes) == (
        3,
        30,
        10,
        10,
    )
