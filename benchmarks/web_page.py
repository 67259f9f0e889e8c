"""How fast the page of ``rooflens web`` is in a real browser: slider to result, first paint, weight.

python benchmarks/web_page.py                       # on an otherwise idle machine
python benchmarks/web_page.py -o benchmarks/results/web_page.json
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "integration"))

import page_support  # noqa: E402

CASES = {
    "dense model": "#plan",
    "four devices": "#plan?devices=rtx-4090,h100-sxm,a100-sxm-80,mi300x",
    "experts under vLLM": "#plan?model=deepseek-ai/DeepSeek-V3&devices=h200-sxm&tp=8&engine=vllm",
}
ROUNDS = 3


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of ``rooflens web``, a process of its own as for a user."""
    code = "import sys; from rooflens.cli.main import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "web", "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[2]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def measure(browser: Any, address: str, case: str) -> dict[str, Any]:
    """One case, a fresh browser profile per round. Times in ms, weight in bytes without compression."""
    script = (HERE / "web_page.js").read_text(encoding="utf-8")
    times: list[float] = []
    paints: list[float] = []
    weights: list[float] = []
    for _ in range(ROUNDS):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
        page = context.new_page()
        page.goto(address + case)
        page.locator("#bounds td").first.wait_for()
        page.wait_for_timeout(1000)
        entries = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(page.evaluate(entries))
        weights.append(
            page.evaluate(
                "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
                ".reduce((sum, one) => sum + Math.max(one.transferSize, one.decodedBodySize), 0)"
            )
        )
        times += page.evaluate(script)
        context.close()
    ordered = sorted(times)
    return {
        "moves": len(times),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(ordered[int(0.95 * (len(ordered) - 1))], 1),
        "worst_ms": round(ordered[-1], 1),
        "first_paint_ms": round(statistics.median(paints), 1),
        "page_bytes": round(max(weights)),
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Print the figures of every case as JSON, and keep them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="also write the figures to this file")
    output = parser.parse_args().output
    with served() as address, page_support.chromium() as browser:
        result = {
            "schema": "rooflens.benchmark.web_page/1",
            "date": datetime.date.today().isoformat(),
            "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()},
            "browser": f"chromium {browser.version}",
            "viewport": "1440x900",
            "cases": {name: measure(browser, address, case) for name, case in CASES.items()},
        }
    text = json.dumps(result, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
