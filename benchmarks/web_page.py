"""How fast the page is in a real browser: slider to result, first paint, weight.

python benchmarks/web_page.py            # on an otherwise idle machine
"""

from __future__ import annotations

import json
import statistics
import sys
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


def measure(browser: Any, address: str, case: str) -> dict[str, Any]:
    """One case, a fresh browser profile per round."""
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


def main() -> None:
    """Print the figures of every case as JSON."""
    with page_support.served() as address, page_support.chromium() as browser:
        print(json.dumps({name: measure(browser, address, case) for name, case in CASES.items()}, indent=2))


if __name__ == "__main__":
    main()
