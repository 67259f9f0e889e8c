"""Speed and size of the core: the command, the import, one plan, a million points.

    python benchmarks/core_speed.py [--rounds 9]

Prints medians with the lowest and highest of the rounds, beside the limits that the project sets
itself. Whole processes are timed from outside; memory is the child's largest resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

MODEL, DEVICE = "Qwen/Qwen2.5-7B-Instruct", "rtx-4090"
PLAN = ["plan", MODEL, "--device", DEVICE, "--batch", "8", "--prompt", "1024", "--output", "256", "--json"]
MEGA = 10**6


def process(arguments: list[str]) -> tuple[float, float]:
    """(wall seconds, peak resident bytes) of one run of a command."""
    start = time.perf_counter()
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{arguments} exited with {child.returncode}")
    scale = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * scale


def seconds(action: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Measure everything and print one line per figure, then the record as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    script = "import sys; from rooflens.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, *PLAN]
    process(command)  # fills the byte-code cache
    runs = [process(command) for _ in range(rounds)]
    imports = [process([sys.executable, "-c", "import rooflens"])[0] for _ in range(rounds)]
    bare = [process([sys.executable, "-c", "pass"])[0] for _ in range(rounds)]

    import rooflens

    rooflens.plan(MODEL, DEVICE, batch=8).to_dict()

    def some_plans() -> list[object]:
        return [rooflens.plan(MODEL, DEVICE, batch=8, prompt=1024) for _ in range(20)]

    plans = [seconds(some_plans) / 20 for _ in range(rounds)]
    # The JSON also has the advice, which plans the case again for every technique.
    documents = [seconds(rooflens.plan(MODEL, DEVICE, batch=8, prompt=1024).to_dict) for _ in range(rounds)]
    axis = range(1, 1001)
    sweeps = [seconds(lambda: rooflens.sweep(MODEL, DEVICE, batch=axis, context=axis)) for _ in range(rounds)]
    figures = {
        "plan --json, wall [s]": ([wall for wall, _ in runs], 0.30),
        "plan --json, peak memory [MB]": ([peak / MEGA for _, peak in runs], 80),
        "import rooflens, wall less a bare interpreter [s]": (
            [max(0.0, wall - statistics.median(bare)) for wall in imports],
            0.10,
        ),
        "one plan through the API [ms]": ([one * 1e3 for one in plans], 1.0),
        "its JSON with advice [ms]": ([one * 1e3 for one in documents], None),
        "sweep of 1,000,000 points [s]": (sweeps, 1.0),
    }
    for name, (samples, limit) in figures.items():
        low, middle, high = min(samples), statistics.median(samples), max(samples)
        print(f"{name:52} {middle:8.3f}  ({low:.3f} to {high:.3f}), limit {limit or 'none'}")
    record = {name: samples for name, (samples, _) in figures.items()}

    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "rooflens": rooflens.__version__,
                "samples": record,
            }
        )
    )


if __name__ == "__main__":
    main()
