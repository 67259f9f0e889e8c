"""The phrases of accounts (``rooflens run --profile`` and the benches), in English and Chinese."""

from __future__ import annotations

from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "phases": "Phases",
    "phases.aside": "a mean step; bound: nothing can beat it",
    "phase": "phase",
    "phase.prefill": "prefill",
    "phase.decode": "decode",
    "steps": "steps",
    "per_step": "tokens",
    "measured": "measured",
    "unwatched": "unwatched",
    "bound": "bound",
    "roofline": "roofline",
    "ratio": "x",
    "share": "share",
    "gap": "gap",
    "mfu": "MFU",
    "mbu": "MBU",
    "modules": "Modules of {phase}",
    "modules.aside": "{tokens} tokens after {context}; roofline: each alone, one after the other",
    "modules.bare": "mean of {steps} steps",
    "module": "module",
    "other": "everything else",
    "whole": "whole step",
    "waterfall": "From the bound to the clock: {phase}",
    "part": "part",
    "row.weights": "weights",
    "row.kv": "KV cache",
    "row.compute": "compute",
    "row.attention": "attention, beyond its roofline",
    "row.matmuls": "multiplies, beyond their roofline",
    "row.small_operators": "norms and activations",
    "row.launch": "launching operators",
    "row.sampling": "sampling",
    "row.scheduling": "scheduling",
    "row.detokenisation": "detokenisation",
    "row.drafting": "guessing",
    "row.queues": "queues",
    "row.profiler": "the profiler itself",
    "row.unexplained": "unexplained",
    "only_predicted": "Predicted and not measured: {names}.",
    "only_measured": "Measured and not predicted: {names}.",
    "reading": "In the way",
}

CHINESE: dict[str, str] = {
    "phases": "阶段",
    "phases.aside": "平均一步；下限：不可能更快",
    "phase": "阶段",
    "phase.prefill": "预填充",
    "phase.decode": "解码",
    "steps": "步数",
    "per_step": "token",
    "measured": "实测",
    "unwatched": "未计时",
    "bound": "下限",
    "roofline": "屋顶线",
    "ratio": "倍",
    "share": "占比",
    "gap": "差距",
    "mfu": "MFU",
    "mbu": "MBU",
    "modules": "{phase}的模块",
    "modules.aside": "{context} 之后的 {tokens} 个 token；屋顶线：逐个单独计算",
    "modules.bare": "{steps} 步的平均",
    "module": "模块",
    "other": "其余",
    "whole": "整步",
    "waterfall": "从下限到时钟：{phase}",
    "part": "部分",
    "row.weights": "权重",
    "row.kv": "KV 缓存",
    "row.compute": "计算",
    "row.attention": "注意力，超出屋顶线的部分",
    "row.matmuls": "矩阵乘法，超出屋顶线的部分",
    "row.small_operators": "归一化与激活",
    "row.launch": "启动算子",
    "row.sampling": "采样",
    "row.scheduling": "调度",
    "row.detokenisation": "反分词",
    "row.drafting": "猜测",
    "row.queues": "排队",
    "row.profiler": "剖析器自身",
    "row.unexplained": "未解释",
    "only_predicted": "有预测而无实测：{names}。",
    "only_measured": "有实测而无预测：{names}。",
    "reading": "瓶颈",
}

# What a reading says, in Chinese, by its key; the English sentence is the reading's own.
_ONE_ROW = "{phase}一步用时 {clock_s}，下限为 {bound_s}。瓶颈：{what}，占 {share}。"
_PHASES = "预填充用到峰值的 {prefill_mfu}，解码用到峰值的 {decode_mfu} 和带宽的 {decode_mbu}"
CHINESE_READINGS: dict[str, str] = {
    "healthy": f"{_PHASES}：健康，预填充在峰值处，解码在带宽处。",
    "launch_bound": f"{_PHASES}：两者都低，启动算子占解码一步的 {{launch_share}}。",
    "both_low": f"{_PHASES}：两者都低，批次对该设备太小，或内核未达到其屋顶。",
    "mixed": f"{_PHASES}。",
    "row": _ONE_ROW,
}


def account_words(say: Words) -> Words:
    """The account's phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
