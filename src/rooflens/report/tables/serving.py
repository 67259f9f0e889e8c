"""The steady state of a plan under a request rate or a number of clients."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from rooflens.analysis.serving_result import Serving
from rooflens.report.tables.layout import BAD, KEY, heading, section
from rooflens.report.words import Words
from rooflens.report.words_search import search_words
from rooflens.units import format_rate, format_seconds


def serving_section(serving: Serving, say: Words) -> RenderableType:
    """Rates, concurrency and latencies in one line each."""
    words = search_words(say)
    lines = [Text(words("serving.most", rate=format_rate(serving.max_rate_per_s)))]
    if not serving.stable:
        lines.insert(0, Text(words("serving.unstable"), style=BAD))
        return section(heading(words("serving")), *lines)
    rate = words(
        "serving.rate",
        rate=format_rate(serving.rate_per_s),
        tokens=format_rate(serving.output_tokens_per_s),
    )
    running = words(
        "serving.running",
        running=format_rate(serving.running),
        limit=f"{serving.limit:,}",
        by=words(f"limit.{serving.limited_by}"),
    )
    latency = words(
        "serving.latency",
        ttft=_time(serving.ttft_s),
        wait=_time(serving.queue_s),
        tpot=_time(serving.tpot_s),
        itl=_time(serving.itl_longest_s),
    )
    lines = [Text(rate), Text(latency, style=KEY), *_spread(serving, words), Text(running), *lines]
    if serving.kv_use is not None:
        lines.append(Text(words("serving.cache", share=f"{serving.kv_use:.0%}")))
    if serving.preempts:
        share = f"{serving.overflow_share:.0%}"
        lines.append(Text(words("serving.preempts", share=share), style=BAD))
    return section(heading(words("serving")), *lines)


def _spread(serving: Serving, words: Words) -> list[Text]:
    """How latencies spread, and the goodput under limits."""
    lines = []
    if serving.ttft_quantiles_s and serving.tpot_quantiles_s:
        _, ttft_90, ttft_99 = map(format_seconds, serving.ttft_quantiles_s)
        _, tpot_90, tpot_99 = map(format_seconds, serving.tpot_quantiles_s)
        facts = {"ttft_90": ttft_90, "ttft_99": ttft_99, "tpot_90": tpot_90, "tpot_99": tpot_99}
        lines.append(Text(words("serving.spread", **facts)))
    good = serving.goodput
    if good is not None:
        limits = {"TTFT": good.ttft_limit_s, "TPOT": good.tpot_limit_s}
        listed = ", ".join(f"{k} {format_seconds(v)}" for k, v in limits.items() if v is not None)
        lines.append(
            Text(
                words(
                    "serving.goodput", rate=format_rate(good.per_s), share=f"{good.share:.0%}", limits=listed
                ),
                style=KEY,
            )
        )
    return lines


def _time(value: float | None) -> str:
    return "" if value is None else format_seconds(value)
