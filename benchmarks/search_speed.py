"""How long a search takes, and how many configurations it prices.

    python benchmarks/search_speed.py [--rounds 5]

Prints the median and range of the rounds for a dense and a sparse model over three devices: with pools of
their own for prefills and decodes, and without. The aim is a million configurations in a few seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "dense, 8 devices": {"model": "llama-3.1-8b", "max_devices": 8},
    "dense, 8 devices, no pools": {"model": "llama-3.1-8b", "max_devices": 8, "split": False},
    "dense, 16 devices": {"model": "llama-3.1-8b", "max_devices": 16},
    "sparse, 8 devices": {"model": "Qwen/Qwen3-30B-A3B", "max_devices": 8},
}
DEVICES = ["h100-sxm", "l40s", "rtx-4090"]
GOAL = {"rate": 20.0, "ttft": 0.5, "tpot": 0.04, "prompt": 1000, "output": 200, "price_source": "snapshot"}


def main() -> None:
    """One line a case, then the record as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    from rooflens import api

    record = {}
    for name, case in CASES.items():
        settings = {**GOAL, **{key: value for key, value in case.items() if key != "model"}}
        times = []
        tried = 0
        for _ in range(rounds):
            start = time.perf_counter()
            tried = api.search(case["model"], DEVICES, **settings).tried
            times.append(time.perf_counter() - start)
        middle = statistics.median(times)
        print(
            f"{name:30s} {tried:>10,} configurations in {middle:.2f} s"
            f" ({min(times):.2f} to {max(times):.2f}): {tried / middle / 1e6:.2f} million a second"
        )
        record[name] = {"configurations": tried, "seconds": times}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
