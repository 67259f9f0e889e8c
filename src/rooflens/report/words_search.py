"""The phrases of ``search`` and of serving, in English and Chinese."""

from __future__ import annotations

from rooflens.analysis.search_text import LIMITS, Reason
from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "title": "{feasible} of {tried} configurations serve {rate} requests a second of {model} "
    "({prompt} + {output} tokens)",
    "limits": "limits: {listed}; figures are likely ones",
    "ranked.price": "the cheapest first; prices with date and source below",
    "ranked.power": "the fewest devices first, then power; give --prices to rank by price",
    "devices": "devices",
    "weights": "weights",
    "cache": "KV",
    "layout": "layout",
    "instances": "{count} instances",
    "first": "TTFT",
    "token": "TPOT",
    "most": "req/s",
    "price": "per hour",
    "million": "per 1M",
    "energy": "kWh per 1M",
    "good": "in limits",
    "good.means": "req/s: at most; in limits: share of requests that meet all of them (goodput over rate)",
    "million.means": "per 1M: output tokens at the asked rate; kWh with every device at its TDP",
    "role.prefill": "prefill",
    "role.decode": "decode",
    "date": "listed on",
    "source": "source",
    "prices": "Prices",
    "prices.aside": "per device and hour",
    "fail": "fail it",
    "watts": "TDP",
    "starred": "* nothing else is as cheap, as fast per token and carries as much",
    "rings": "ringed: nothing else is as cheap, as fast per token and carries as much",
    "start": "How to start the first",
    "better": "Why not better",
    "none": "Nothing meets the limits.",
    "constraint": "limit",
    "asked": "asked",
    "best": "best reached",
    "alone": "fail only this",
    "relaxed": "pass at 10 % looser",
    "constraints": "What each limit does",
    "constraints.aside": "the best is of configurations that meet all other limits",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "rate": "rate",
    "memory": "memory",
    "nearest": "Nearest: {devices}, {weights}: {over}.",
    "over": "{name} {share} of its limit",
    "refused": "Left out",
    "combinations": "combinations",
    "why": "why",
    "serving": "Served",
    "serving.rate": "{rate} requests a second, {tokens} output tokens a second",
    "serving.running": "{running} sequences run at once of at most {limit} (limited by {by})",
    "serving.latency": "TTFT {ttft}, of which waiting {wait}; TPOT {tpot}; longest gap {itl}",
    "serving.most": "at most {rate} requests a second",
    "serving.unstable": "More arrives than is served: queues grow without end.",
    "serving.preempts": "The running sequences want more cache than there is {share} of the time: some are "
    "preempted and computed again.",
    "serving.spread": "of 100 requests 90 have TTFT under {ttft_90} and TPOT under {tpot_90}; 99 under "
    "{ttft_99} and {tpot_99}",
    "serving.goodput": "goodput {rate} requests a second: {share} meet {limits}",
    "serving.cache": "{share} of the cache is in use",
    "limit.memory": "memory",
    "limit.engine": "the engine",
}

CHINESE: dict[str, str] = {
    "title": "{tried} 种配置中有 {feasible} 种能以每秒 {rate} 个请求服务 {model}"
    "（{prompt} + {output} token）",
    "limits": "限制：{listed}；数据均为估计中值",
    "ranked.price": "按价格从低到高；价格的日期和来源见下",
    "ranked.power": "按设备数、再按功耗排序；给出 --prices 可按价格排序",
    "devices": "设备",
    "weights": "权重",
    "cache": "KV",
    "layout": "布局",
    "instances": "{count} 个实例",
    "first": "TTFT",
    "token": "TPOT",
    "most": "请求/秒",
    "price": "每小时",
    "million": "每百万",
    "energy": "千瓦时/百万",
    "good": "达标",
    "good.means": "请求/秒：最高值；达标：满足全部限制的请求占比（有效吞吐除以请求率）",
    "million.means": "每百万：按所求请求率的输出 token；千瓦时按每台设备的 TDP 计",
    "role.prefill": "预填充",
    "role.decode": "解码",
    "date": "挂牌日期",
    "source": "来源",
    "prices": "价格",
    "prices.aside": "每台设备每小时",
    "fail": "不满足",
    "watts": "TDP",
    "starred": "* 没有其他配置同时一样便宜、一样快且承载同样多",
    "rings": "带圈：没有其他配置同时一样便宜、一样快且承载同样多",
    "start": "第一种的启动命令",
    "better": "为何不更好",
    "none": "没有配置满足限制。",
    "constraint": "限制",
    "asked": "要求",
    "best": "最好达到",
    "alone": "仅此不满足",
    "relaxed": "放宽 10 % 后满足",
    "constraints": "各项限制的作用",
    "constraints.aside": "最好值取自满足其余限制的配置",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "rate": "速率",
    "memory": "内存",
    "nearest": "最接近：{devices}，{weights}：{over}。",
    "over": "{name} 为限制的 {share}",
    "refused": "已排除",
    "combinations": "组合数",
    "why": "原因",
    "serving": "在线服务",
    "serving.rate": "每秒 {rate} 个请求，每秒输出 {tokens} 个 token",
    "serving.running": "同时运行 {running} 条序列，上限 {limit}（受{by}限制）",
    "serving.latency": "TTFT {ttft}，其中等待 {wait}；TPOT {tpot}；最长间隔 {itl}",
    "serving.most": "每秒最多 {rate} 个请求",
    "serving.unstable": "到达多于处理：队列会无限增长。",
    "serving.preempts": "运行的序列有 {share} 的时间需要超出缓存容量：部分会被抢占并重新计算。",
    "serving.spread": "每 100 个请求中有 90 个 TTFT 低于 {ttft_90}、TPOT 低于 {tpot_90}；"
    "99 个低于 {ttft_99} 和 {tpot_99}",
    "serving.goodput": "有效吞吐每秒 {rate} 个请求：{share} 满足 {limits}",
    "serving.cache": "缓存使用 {share}",
    "limit.memory": "内存",
    "limit.engine": "引擎",
}


CHINESE_REASONS: dict[str, str] = {
    "cheapest": "满足所有限制中最便宜的",
    "price": "价格为第一种的 {ratio} 倍",
    "price.same": "价格与第一种相同",
    "devices": "需要 {devices} 台设备，第一种只需 {first} 台",
    "devices.same": "设备数与第一种相同",
    "token": "每个 token 快 {ratio} 倍",
    "first": "首个 token 快 {ratio} 倍",
    "carries": "承载量为 {ratio} 倍",
    "dominated": "没有任何一项更好",
    "near": "{limit} 用到限制的 {share}",
    "fewer": "这些设备少 {devices} 台时，{limit} 将达到限制的 {share}",
    "fewer.enough": "这些设备少 {devices} 台也够",
    "fewer.memory": "这些设备少 {devices} 台时内存放不下",
    "least": "一个实例就需要全部设备",
    "kills.alone": "关键是{limit}：{count} 种配置仅此不满足；最好达到 {best}。",
    "kills.together": "没有单独一项限制起决定作用：每种配置至少有两项不满足。",
    "kills.memory": "关键是内存：没有放得下的配置。",
    "relaxed": "{limit} 放宽 10 %（{loose}）后有 {count} 种满足。",
    "relaxed.none": "{limit} 放宽 10 % 后仍没有满足的。",
    "relaxed.memory": "内存多 10 % 后有 {count} 种满足。",
    "relaxed.memory.none": "内存多 10 % 后仍没有满足的。",
}


def said(reason: Reason, words: Words) -> str:
    """A reason of a search in the words' language."""
    if words.language != "zh":
        return reason.english()
    facts = {name: words(value) if value in LIMITS else value for name, value in reason.facts.items()}
    return CHINESE_REASONS[reason.key].format(**facts)


def search_words(say: Words) -> Words:
    """The phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
