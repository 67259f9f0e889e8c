"""Decode and prefill of the native runtime against transformers eager: one run, interleaved rounds.

    python benchmarks/runtime_speed.py [--rounds 9] [--model Qwen/Qwen2.5-0.5B] [--out result.json]

Both run the same random bf16 weights on all threads. Outputs are compared before any speed is told. MBU is
the bytes that a decode step must read (from the plan's own operators) over its time, over the read
bandwidth probed next to it. Other work on the machine shows as a wide spread: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from rooflens.analysis.step import decode_step, step_ops
from rooflens.models.bundled import CONFIG, match_bundled
from rooflens.runtime import NativeBackend
from rooflens.runtime.batch import BLOCK_TOKENS, Chunk, StepBatch
from rooflens.units import GIGA, MIB, format_bandwidth

CHUNK = 512
DECODE_CONTEXTS = (64, 2000)
PREFILLS = (512, 2048)
#: The mean difference of logits, against their mean size, that two bf16 computations may have.
TOLERANCE = 0.05


class Native:
    """The runtime, with every block in the order of the cache."""

    name = "rooflens"

    def __init__(self, directory: Path, kernels: str | None = None) -> None:
        started = time.perf_counter()
        self.backend = NativeBackend(directory, device="cpu", dtype="bf16", kv_tokens=4096, kernels=kernels)
        self.load_s = time.perf_counter() - started
        self.table = list(range(4096 // BLOCK_TOKENS))

    def prefill(self, tokens: list[int]) -> torch.Tensor:
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            logits = self.backend.step(StepBatch.build([Chunk(part, start, self.table)]))
        return logits

    def decode(self, context: int, count: int) -> None:
        for position in range(context, context + count):
            self.backend.step(StepBatch.build([Chunk([7], position, self.table)]))


class Transformers:
    """The same weights by transformers, eager, with its own dynamic cache."""

    name = "transformers"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache = transformers.DynamicCache(config=model.config)

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> torch.Tensor:
        self.cache = transformers.DynamicCache(config=self.model.config)
        output = self.model(
            torch.tensor([tokens]), past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[0].float()

    @torch.inference_mode()
    def decode(self, context: int, count: int) -> None:
        excess = self.cache.get_seq_length() - context
        if excess:
            self.cache.crop(-excess)
        for _ in range(count):
            self.model(torch.tensor([[7]]), past_key_values=self.cache, use_cache=True)


def probe(buffer: torch.Tensor) -> float:
    """Read bandwidth in bytes/s: the best of three sums over ``buffer``."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        buffer.sum()
        times.append(time.perf_counter() - started)
    return buffer.nbytes / min(times)


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def decode_bytes(backend: NativeBackend, context: int) -> float:
    """Bytes that one token must read: weights once, the cache once."""
    ops = step_ops(backend.spec, decode_step(sequences=1, context=context), kv_dtype=backend.kv_dtype)
    return float(sum(op.total.weight_bytes + op.total.kv_read_bytes for op in ops))


def measure_decode(engines: list[Any], context: int, rounds: int, tokens: int) -> dict[str, Any]:
    buffer = torch.ones(64 * MIB, dtype=torch.int64)
    needed = decode_bytes(engines[0].backend, context)
    for engine in engines:
        engine.prefill([5] * context)
        engine.decode(context, 2)
    rows: dict[str, list[tuple[float, float]]] = {engine.name: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            bandwidth = probe(buffer)
            seconds = timed(lambda engine=engine: engine.decode(context, tokens)) / tokens
            rows[engine.name].append((seconds, needed / seconds / bandwidth))
    return {name: summary(values) for name, values in rows.items()} | {
        "ratio": statistics.median(b[0] / a[0] for a, b in zip(*rows.values(), strict=True)),
        "bytes_per_token": needed,
        "read_bandwidth_bytes_per_s": probe(buffer),
    }


def summary(values: list[tuple[float, float]]) -> dict[str, float]:
    seconds = sorted(value[0] for value in values)
    return {
        "tokens_per_s": 1 / statistics.median(seconds),
        "tokens_per_s_best": 1 / seconds[0],
        "mbu": statistics.median(value[1] for value in values),
    }


def measure_prefill(engines: list[Any], tokens: int, rounds: int) -> dict[str, Any]:
    prompt = [5 + index % 1000 for index in range(tokens)]
    rows: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            rows[engine.name].append(timed(lambda engine=engine: engine.prefill(prompt)))
    rates = {
        name: {"tokens_per_s": tokens / statistics.median(times), "tokens_per_s_best": tokens / min(times)}
        for name, times in rows.items()
    }
    return rates | {"ratio": statistics.median(b / a for a, b in zip(*rows.values(), strict=True))}


def make_reference(model: str) -> Any:
    match = match_bundled(model)
    if match is None:
        raise SystemExit(f"{model} is not bundled")
    config = transformers.AutoConfig.from_pretrained(match.model.directory / CONFIG)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def check_outputs(native: Native, reference: Transformers) -> float:
    """Mean difference of the last logits over a prompt, relative; raises SystemExit where it is too large."""
    prompt = [5 + index * 31 % 5000 for index in range(200)]
    ours, theirs = native.prefill(prompt), reference.prefill(prompt)
    error = float((ours - theirs).abs().mean() / theirs.abs().mean())
    if not error <= TOLERANCE:
        raise SystemExit(f"outputs differ by {error:.1%}: no speed is told")
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of one decode sample")
    parser.add_argument("--kernels", help="cpu: by torch alone; without it the set that the runtime takes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = make_reference(options.model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        native, reference = Native(Path(folder), options.kernels), Transformers(model)
    result: dict[str, Any] = {
        "schema": "rooflens.benchmark.runtime_speed/1",
        "model": options.model,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "kernels": native.backend.report.kernels,
        "load_s": native.load_s,
        "held_bytes": native.backend.report.held_bytes,
        "logits_mean_error": check_outputs(native, reference),
    }
    print(f"loaded {native.backend.report.held_bytes / GIGA:.2f} GB in {native.load_s:.1f} s")
    engines = [native, reference]
    for context in DECODE_CONTEXTS:
        row = measure_decode(engines, context, options.rounds, options.tokens)
        result[f"decode_{context}"] = row
        print(f"decode at {context:5,} tokens: {line(row)}; MBU {row['rooflens']['mbu']:.2f}, "
              f"read {format_bandwidth(row['read_bandwidth_bytes_per_s'])}")  # fmt: skip
    for tokens in PREFILLS:
        row = measure_prefill(engines, tokens, max(3, options.rounds // 3))
        result[f"prefill_{tokens}"] = row
        print(f"prefill of {tokens:5,} tokens: {line(row)}")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def line(row: dict[str, Any]) -> str:
    ours, theirs = row["rooflens"]["tokens_per_s"], row["transformers"]["tokens_per_s"]
    return f"{ours:,.1f} tokens/s, transformers {theirs:,.1f}, ratio {row['ratio']:.2f}"


if __name__ == "__main__":
    main()
