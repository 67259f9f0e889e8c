"""All devices of a plan beside one of them, and a prefill and a decode pool beside each other."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rooflens.analysis.pools import Pools
from rooflens.analysis.totals import Totals
from rooflens.report.tables.layout import BAD, KEY, Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_search import search_words
from rooflens.units import format_bandwidth, format_bytes, format_flops, format_rate, format_seconds


def totals_section(totals: Totals, say: Words) -> RenderableType:
    """Per device and in all; nothing for one device."""
    if totals.devices == 1:
        return Group()
    words = search_words(say)
    rows = [(words("totals.weights"), *map(format_bytes, totals.weights_bytes))]
    rows.append((words("totals.cache"), *map(format_bytes, totals.kv_cache_bytes)))
    for name, phase in (("prefill", totals.prefill), ("decode", totals.decode)):
        rows.append((words(f"totals.{name}.flops"), *map(format_flops, phase.flops)))
        rows.append((words(f"totals.{name}.bytes"), *map(format_bytes, phase.moved_bytes)))
        rows.append((words(f"totals.{name}.sent"), *map(format_bytes, phase.sent_bytes)))
    heads = [
        Head(),
        Head(words("totals.one"), number=True),
        Head(words("totals.all", count=f"{totals.devices:,}"), number=True),
    ]
    return section(heading(words("totals"), words("totals.aside")), table(heads, rows))


def pools_section(pools: Pools, say: Words) -> RenderableType:
    """What each pool is and carries, the transfer, and what settles."""
    words = search_words(say)
    both = (pools.prefill, pools.decode)

    def row(key: str, texts: list[str], total: str = "") -> tuple[str, ...]:
        return (words(key), *texts, total)

    instances = [f"{state.instances:,} x tp {state.layout.tp}" for state in both]
    rows = [
        row("pools.devices", [f"{state.devices:,} x {state.device}" for state in both], f"{pools.devices:,}"),
        row("pools.instances", instances),
        row(
            "pools.most",
            [format_rate(state.max_rate_per_s) for state in both],
            format_rate(pools.max_rate_per_s),
        ),
    ]
    if pools.rate_per_s is not None:
        rows.append(row("pools.busy", [f"{state.busy:.0%}" for state in both if state.busy is not None]))
    heads = [
        Head(),
        Head(words("role.prefill"), number=True),
        Head(words("role.decode"), number=True),
        Head(words("pools.both"), number=True),
    ]
    sent = pools.transfer
    lines = [
        Text(
            words(
                "pools.transfer",
                bytes=format_bytes(sent.bytes),
                time=format_seconds(sent.seconds),
                way=words(f"pools.way.{sent.way}"),
                rate=format_bandwidth(sent.rate_bytes_per_s),
            )
        ),
        Text(
            words(
                "pools.balance",
                limit=words(f"role.{pools.limited_by}"),
                ratio=f"{pools.balanced_ratio:.2f}",
            )
        ),
    ]
    if not pools.stable:
        lines.insert(0, Text(words("serving.unstable"), style=BAD))
    elif pools.ttft_s is not None and pools.tpot_s is not None:
        key = "pools.alone" if pools.rate_per_s is None else "pools.settles"
        facts = {"ttft": format_seconds(pools.ttft_s), "tpot": format_seconds(pools.tpot_s)}
        rate = "" if pools.rate_per_s is None else format_rate(pools.rate_per_s)
        running = "" if pools.running is None else format_rate(pools.running)
        lines.insert(0, Text(words(key, **facts, rate=rate, running=running), style=KEY))
    good = pools.goodput
    if good is not None:
        limits = {"TTFT": good.ttft_limit_s, "TPOT": good.tpot_limit_s}
        listed = ", ".join(f"{k} {format_seconds(v)}" for k, v in limits.items() if v is not None)
        said = {"rate": format_rate(good.per_s), "share": f"{good.share:.0%}", "limits": listed}
        lines.append(Text(words("serving.goodput", **said), style=KEY))
    return section(heading(words("pools")), table(heads, rows), *lines)
