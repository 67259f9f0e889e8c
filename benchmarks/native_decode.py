"""Decode steps by the C kernels, by format and batch, beside PyTorch's and beside the roofs around them.

    python -m benchmarks.native_decode [--rounds 9] [--model qwen2.5-0.5b-instruct] [--out FILE.json]

One process holds the same random weights in every form. In each round every case runs once in every form,
in turn; the machine's read bandwidth is probed before and after each sample. MBU is the bytes that a step
must read (the plan's own operators, for the weights as held) over its time, over the mean of both probes.
A weight that fits the last cache may be read from there: the record has the caches' sizes. The share of the
roofs is the longer of bytes over bandwidth and FLOPs over the round's matrix rate, over the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rooflens.analysis.step import decode_step, step_ops
from rooflens.measure.environment import fingerprint
from rooflens.measure.statistics import median
from rooflens.runtime import NativeBackend
from rooflens.runtime.batch import BLOCK_TOKENS, Chunk, StepBatch
from rooflens.runtime.native.library import NativeLibrary, load
from rooflens.runtime.native.memory import use_huge_pages
from rooflens.runtime.native.threads import choose_threads
from rooflens.units import GIB, GIGA, KILO

#: (kernels, weights).
FORMS = (
    ("native", "bf16"), ("native", "int8"), ("native", "int4"),
    ("cpu", "bf16"), ("cpu", "int8"), ("cpu", "int4"),
)  # fmt: skip
#: (sequences, tokens of context of each).
CASES = ((1, 64), (1, 2000), (4, 64), (8, 64), (32, 64))
SAMPLE_S = 0.15
MATRIX = (512, 4864, 896)


class Bandwidth:
    """The read bandwidth of all threads over a set that no cache holds, by a loop in C."""

    def __init__(self, library: NativeLibrary, threads: int) -> None:
        self.library, self.threads = library, threads
        self.memory = torch.empty(GIB, dtype=torch.uint8)
        use_huge_pages(self.memory)
        self.memory.fill_(1)

    def probe(self) -> float:
        """Bytes a second, once over the set."""
        started = time.perf_counter()
        self.library.read(self.memory.data_ptr(), self.memory.nbytes, self.threads)
        return self.memory.nbytes / (time.perf_counter() - started)


@dataclass(frozen=True)
class Form:
    """A backend, and what a step of it must move and compute."""

    backend: NativeBackend
    name: str

    def needs(self, sequences: int, context: int) -> tuple[float, float]:
        """(bytes, FLOPs) of a step."""
        step = decode_step(sequences=sequences, context=context)
        ops = step_ops(self.backend.spec, step, kv_dtype=self.backend.kv_dtype)
        costs = [op.total for op in ops]
        read = sum(float(cost.weight_bytes + cost.kv_read_bytes) for cost in costs)
        return read, sum(float(cost.flops) for cost in costs)

    def run(self, sequences: int, context: int, steps: int) -> float:
        """Seconds of a step, the mean of ``steps``."""
        blocks = (context + steps) // BLOCK_TOKENS + 1
        tables = [range(index * blocks, (index + 1) * blocks) for index in range(sequences)]
        started = time.perf_counter()
        for place in range(context, context + steps):
            self.backend.step(StepBatch.build([Chunk([7], place, table) for table in tables]))
        return (time.perf_counter() - started) / steps


def main() -> None:
    """Measure, print a table, write the record."""
    options = _options()
    library, threads = load(), choose_threads().count
    bandwidth = Bandwidth(library, threads)
    forms = list(_forms(options.model, options.forms))
    samples: dict[tuple[str, int, int], list[dict[str, float]]] = defaultdict(list)
    rates = []
    for number in range(options.rounds + 1):
        rates.append(_matrix_rate())
        for sequences, context in CASES:
            for form in forms:
                sample = _sample(form, bandwidth, sequences, context)
                if number:  # the first round warms up
                    samples[form.name, sequences, context].append(sample)
    rows = [_row(key, found, median(rates)) for key, found in samples.items()]
    _print(rows)
    record = {
        "schema": "rooflens.benchmark.native-decode/1",
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "model": options.model,
        "rounds": options.rounds,
        "kernels": {form.name: dict(form.backend.report.kernels) for form in forms},
        "held_bytes": {form.name: form.backend.report.held_bytes for form in forms},
        "matrix_flops_per_s": median(rates),
        "environment": fingerprint(torch=torch, threads=threads),
        "rows": rows,
        "samples": [
            {"form": name, "sequences": sequences, "context": context, "samples": found}
            for (name, sequences, context), found in samples.items()
        ],
    }
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", default="qwen2.5-0.5b-instruct")
    parser.add_argument("--forms", default="native,cpu", help="kernels: native, cpu")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _forms(model: str, kernels: str) -> Iterator[Form]:
    tokens = max(sequences * (context + 64) for sequences, context in CASES)
    for name, weights in FORMS:
        if name in kernels.split(","):
            backend = NativeBackend.from_random(
                model, "cpu", "bf16", None if weights == "bf16" else weights, kernels=name, kv_tokens=tokens
            )
            yield Form(backend, f"{name} {weights}")


def _sample(form: Form, bandwidth: Bandwidth, sequences: int, context: int) -> dict[str, float]:
    before = bandwidth.probe()
    once = form.run(sequences, context, 1)
    step_s = form.run(sequences, context, max(1, min(32, round(SAMPLE_S / once))))
    bytes_per_s = (before + bandwidth.probe()) / 2
    read, flops = form.needs(sequences, context)
    return {"step_s": step_s, "probe_bytes_per_s": bytes_per_s, "bytes": read, "flops": flops}


def _matrix_rate() -> float:
    """FLOPs a second of a large bf16 multiply by torch: the compute roof of the round."""
    rows, out_features, in_features = MATRIX
    x = torch.randn(rows, in_features).bfloat16()
    weight = torch.randn(out_features, in_features).bfloat16()
    times = []
    with torch.inference_mode():
        for _ in range(9):
            started = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            times.append(time.perf_counter() - started)
    return 2.0 * rows * out_features * in_features / min(times)


def _row(key: tuple[str, int, int], samples: list[dict[str, float]], matrix_rate: float) -> dict[str, Any]:
    name, sequences, context = key
    mbu = [each["bytes"] / each["step_s"] / each["probe_bytes_per_s"] for each in samples]
    roof = [
        max(each["bytes"] / each["probe_bytes_per_s"], each["flops"] / matrix_rate) / each["step_s"]
        for each in samples
    ]
    return {
        "form": name,
        "sequences": sequences,
        "context": context,
        "tokens_per_s": sequences / median([each["step_s"] for each in samples]),
        "step_s": median([each["step_s"] for each in samples]),
        "mbu": median(mbu),
        "mbu_low": min(mbu),
        "mbu_high": max(mbu),
        "share_of_roofs": median(roof),
        "probe_bytes_per_s": median([each["probe_bytes_per_s"] for each in samples]),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print("form          sequences  context  tokens/s  step ms   MBU (low-high)      of roofs  probe GB/s")
    for row in rows:
        print(
            f"{row['form']:<14}{row['sequences']:>8}{row['context']:>9}{row['tokens_per_s']:>10.1f}"
            f"{row['step_s'] * KILO:>9.2f}   {row['mbu']:.2f} ({row['mbu_low']:.2f}-{row['mbu_high']:.2f})"
            f"{row['share_of_roofs']:>13.2f}{row['probe_bytes_per_s'] / GIGA:>12.1f}"
        )


if __name__ == "__main__":
    main()
