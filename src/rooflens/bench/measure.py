"""One case of a benchmark, run and checked: its row of figures."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from rooflens.bench.answers import answers_of
from rooflens.bench.cases import Case, Kind, SpeculativeCase
from rooflens.bench.fit import blocks_of
from rooflens.bench.prompts import random_prompt
from rooflens.bench.speculative import run_speculative
from rooflens.hardware.device import Device
from rooflens.measure.statistics import median
from rooflens.runtime.backend import NativeBackend
from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.engine.settings import EngineSettings
from rooflens.runtime.profile.engine import EngineProfile, EngineProfiler
from rooflens.runtime.profile.memory import MemoryProfiler
from rooflens.runtime.profile.run import RunProfiler


def run_case(
    backend: NativeBackend,
    kind: Kind,
    case: Case,
    *,
    device: Device | None,
    draft: NativeBackend | None = None,
) -> dict[str, Any]:
    """The figures of one case; times in seconds. Answers are checked before any speed is given.

    ``device``: whom to compare with, None for nobody; ``draft`` guesses in speculative cases, None for
    prompt look-up. Raises CutShortError after Ctrl-C, and RooflensError for what fails.
    """
    # A pool of the case's own size, and nothing in it from the case before.
    backend.cache = backend.new_cache(blocks=blocks_of(case) * (2 if kind == "prefix" else 1))
    if isinstance(case, SpeculativeCase):
        return run_speculative(backend, case, device=device, draft=draft)
    run = {"baseline": _baseline, "memory": _memory, "prefix": _prefix}.get(kind)
    return _batch(backend, case, device) if run is None else run(backend, case)


def _engine(backend: NativeBackend, case: Case, *, prefix_caching: bool = False) -> Engine:
    return Engine(
        backend, EngineSettings(max_sequences=case.batch, prefix_caching=prefix_caching, synchronize=True)
    )


def _prompts(backend: NativeBackend, case: Case) -> list[list[int]]:
    vocabulary = backend.spec.vocab_size
    return [random_prompt(vocabulary, tokens=case.prompt, seed=index) for index in range(case.requests)]


def _baseline(backend: NativeBackend, case: Case) -> dict[str, Any]:
    engine = _engine(backend, case)
    prompts = _prompts(backend, case)
    answers_of(engine, prompts[:1], output=2)  # first uses of kernels and memory
    profiler = EngineProfiler()
    engine.observers.append(profiler)
    answers_of(engine, prompts, output=case.output)
    return _speeds(profiler.profile())


def _speeds(profile: EngineProfile) -> dict[str, Any]:
    summary = profile.summary()
    phases = summary["by_phase"]
    return {
        "ttft_s": summary["ttft"]["median_s"],
        "ttft_p90_s": summary["ttft"]["p90_s"],
        "tpot_s": summary["tpot"]["median_s"],
        "tpot_p90_s": summary["tpot"]["p90_s"],
        "queue_s": summary["queue"]["median_s"],
        "tokens_per_s": summary["tokens_per_s"],
        "prefill_step_s": phases["prefill"]["step_s"]["median_s"],
        "decode_step_s": phases["decode"]["step_s"]["median_s"],
        "steps": summary["steps"],
        "wall_s": summary["busy_s"],
        "preemptions": summary["preemptions"],
    }


def _memory(backend: NativeBackend, case: Case) -> dict[str, Any]:
    engine = _engine(backend, case)
    memory = MemoryProfiler(
        weights_bytes=backend.report.held_bytes,
        bytes_per_block=backend.cache.bytes_per_block,
        device=backend.device,
    )
    profiler = EngineProfiler(memory=memory)
    engine.observers.append(profiler)
    answers_of(engine, _prompts(backend, case), output=case.output)
    records = [step.memory for step in profiler.profile().steps if step.memory is not None]
    resident = [record.rss_bytes for record in records if record.rss_bytes is not None]
    allocated = [record.allocated_bytes for record in records if record.allocated_bytes is not None]
    return {
        "weights_bytes": records[-1].weights_bytes,
        "kv_total_bytes": records[-1].kv_total_bytes,
        "kv_peak_bytes": max(record.kv_used_bytes for record in records),
        "kv_needed_bytes": _kv_needed(backend, case),
        "allocated_peak_bytes": max(allocated, default=None),
        "rss_peak_bytes": max(resident, default=None),
        "per_step": [record.to_dict() for record in records],
    }


def _kv_needed(backend: NativeBackend, case: Case) -> int:
    """The last tokens of the longest moment, without the rounding up to blocks; the last one is not kept."""
    per_token = backend.cache.bytes_per_block // backend.cache.block_tokens
    return case.batch * (case.prompt + case.output - 1) * per_token


def _batch(backend: NativeBackend, case: Case, device: Device | None) -> dict[str, Any]:
    engine = _engine(backend, case)
    prompts = _prompts(backend, case)
    plain = EngineProfiler()
    watching = None if device is None else RunProfiler(engine, backend)
    if watching is None:
        engine.observers.append(plain)
    else:
        watching.warm_up(prompt_tokens=case.prompt)
    with watching or nullcontext():
        answers_of(engine, prompts, output=case.output)
    profile = (plain if watching is None else watching.observer).profile()
    # Only steps that decode the whole batch belong to it.
    full = [
        step.record.clock_s
        for step in profile.steps
        if step.record.phase == "decode" and len(step.record.work) == case.batch
    ]
    step_s = median(full) if full else None
    row: dict[str, Any] = {
        "decode_step_s": step_s,
        "tokens_per_s": case.batch / step_s if step_s else None,
        "bound_s": None,
        "account": None,
    }
    if watching is not None and device is not None:
        found = watching.result(device).account("decode")
        if found is not None:
            row |= {
                "bound_s": found.bound_s,
                "limited_by": found.limited_by,
                "mfu": found.mfu,
                "mbu": found.mbu,
                "account": found.to_dict(),
            }
    return row


def _prefix(backend: NativeBackend, case: Case) -> dict[str, Any]:
    """TTFT of prompts whose beginning is in the cache, against unrelated ones of the same length."""
    engine = _engine(backend, case, prefix_caching=True)
    vocabulary, own = backend.spec.vocab_size, case.prompt - case.shared
    shared = random_prompt(vocabulary, tokens=case.shared, seed=-1)
    answers_of(engine, [random_prompt(vocabulary, tokens=case.prompt, seed=-2)], output=2)  # first uses

    def ttft(prompt: list[int]) -> tuple[float, int]:
        profiler = EngineProfiler()
        engine.observers.append(profiler)
        answers_of(engine, [prompt], output=case.output)
        engine.observers.remove(profiler)
        (record,) = profiler.profile().requests
        return record.ttft_s or 0.0, record.cached_tokens

    misses, hits, cached = [], [], 0
    for index in range(case.requests):
        # Rounds of both, so that a change of the machine meets both.
        engine.scheduler.pool.forget()
        misses.append(ttft(random_prompt(vocabulary, tokens=case.prompt, seed=1000 + index))[0])
        if case.shared:
            answers_of(
                engine, [[*shared, *random_prompt(vocabulary, tokens=own, seed=2000 + index)]], output=2
            )
        seconds, tokens = ttft([*shared, *random_prompt(vocabulary, tokens=own, seed=3000 + index)])
        hits.append(seconds)
        cached += tokens
    miss_s, hit_s = median(misses), median(hits)
    return {
        "hit_share": cached / (case.requests * case.prompt),
        "ttft_miss_s": miss_s,
        "ttft_hit_s": hit_s,
        "saving": 1 - hit_s / miss_s,
        "times_faster": miss_s / hit_s,
    }
