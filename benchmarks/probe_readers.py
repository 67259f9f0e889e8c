"""Do torch's reductions reach the memory limit? Each of the probe's readers against a loop in C.

    python benchmarks/probe_readers.py [--threads N] [--rounds 9] [--bytes 1GiB]

The same pinned threads read the same buffers; readers take turns within a round, and the ratio to C is
taken within the round, so that a neighbour slows both alike. Needs a C compiler (cc).
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from rooflens.measure.probes.cpu_memory import CHUNK_BYTES, READERS, _passes, _random_parts
from rooflens.measure.probes.pinned import PinnedThreads
from rooflens.measure.probes.target import open_target
from rooflens.measure.statistics import summarize
from rooflens.measure.timer import Work
from rooflens.units import format_bandwidth, parse_bytes

SOURCE = """
#include <stddef.h>
#include <stdint.h>
uint64_t sum(const uint64_t *data, size_t words) {
    uint64_t total[8] = {0};
    for (size_t i = 0; i + 64 <= words; i += 64) {
        __builtin_prefetch(data + i + 256); __builtin_prefetch(data + i + 264);
        __builtin_prefetch(data + i + 272); __builtin_prefetch(data + i + 280);
        __builtin_prefetch(data + i + 288); __builtin_prefetch(data + i + 296);
        __builtin_prefetch(data + i + 304); __builtin_prefetch(data + i + 312);
        for (size_t j = 0; j < 64; j += 8)
            for (size_t lane = 0; lane < 8; lane++) total[lane] += data[i + j + lane];
    }
    uint64_t all = 0;
    for (size_t lane = 0; lane < 8; lane++) all += total[lane];
    return all;
}
"""


def compiled_sum() -> Callable[[int, int], int]:
    """The loop above, built for this machine; ctypes lets go of the interpreter's lock while it runs."""
    folder = Path(tempfile.mkdtemp())
    (folder / "sum.c").write_text(SOURCE)
    library = folder / "sum.so"
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", str(folder / "sum.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).sum
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    return function


def main() -> None:
    """Print each reader's bandwidth and its ratio to C: median and p10 to p90 over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bytes", type=parse_bytes, default=parse_bytes("1GiB"))
    options = parser.parse_args()
    target = open_target("cpu", threads=options.threads)
    threads = target.threads or 1
    share = options.bytes // threads // CHUNK_BYTES * CHUNK_BYTES
    in_c = compiled_sum()

    def c_passes(parts: list[torch.Tensor]) -> Work:
        spans = [(part.data_ptr(), part.numel() // 2) for part in parts]  # words of 8 bytes, elements of 4
        return lambda _: [in_c(*span) for span in spans]

    with PinnedThreads(target.cpus, count=threads) as pool:
        parts = pool.each(lambda _: _random_parts(share))
        batches = {reader.name: pool.batch([_passes(reader, own) for own in parts]) for reader in READERS}
        batches["C"] = pool.batch([c_passes(own) for own in parts])
        rates: dict[str, list[float]] = {name: [] for name in batches}
        for round_number in range(-1, options.rounds):
            for name, batch in batches.items():
                seconds = batch(4) / 4
                if round_number >= 0:  # the first round warms up
                    rates[name].append(share * threads / seconds)
    print(f"{target.name}, {threads} threads, {options.rounds} rounds")
    for name, values in rates.items():
        ratio = summarize([value / c for value, c in zip(values, rates["C"], strict=True)])
        print(
            f"{name:18} {format_bandwidth(summarize(values).median):>10}  "
            f"x C {ratio.median:.2f} ({ratio.p10:.2f} to {ratio.p90:.2f})"
        )


if __name__ == "__main__":
    main()
