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
    "row.forward": "the forward pass, beyond its roofline",
    "row.attention": "attention, beyond its roofline",
    "row.matmuls": "multiplies, beyond their roofline",
    "row.small_operators": "norms and activations",
    "row.launch": "launching operators and threads",
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
    "chart.title": "From the bound to the clock: {model}",
    "chart.phase": "A {phase} step: {clock}",
    "chart.bound": "Dashed: the bound of {bound}, which nothing can beat; the clock is {times} times that",
    "chart.small": "smaller ones together",
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
    "row.forward": "前向计算，超出屋顶线的部分",
    "row.attention": "注意力，超出屋顶线的部分",
    "row.matmuls": "矩阵乘法，超出屋顶线的部分",
    "row.small_operators": "归一化与激活",
    "row.launch": "启动算子与线程",
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
    "chart.title": "从下限到时钟：{model}",
    "chart.phase": "{phase}一步：{clock}",
    "chart.bound": "虚线：下限 {bound}，不可能更快；时钟是它的 {times} 倍",
    "chart.small": "较小的合计",
}

# What a reading says, in Chinese, by its key; the English sentence is the reading's own.
_ONE_ROW = "{phase}一步用时 {clock_s}，下限为 {bound_s}。瓶颈：{what}，占 {share}。"
_PHASES = "预填充用到峰值的 {prefill_mfu}，解码用到峰值的 {decode_mfu} 和带宽的 {decode_mbu}"
_KNEE = (
    "拐点在批次 {batch}，早于批次 {ridge_batch} 的脊点：自批次 {first_batch} 起增加的时间中，{cause_share} 是"
)
CHINESE_READINGS: dict[str, str] = {
    "healthy": f"{_PHASES}：健康，预填充在峰值处，解码在带宽处。",
    "launch_bound": f"{_PHASES}：两者都低，启动算子占解码一步的 {{launch_share}}。",
    "both_low": f"{_PHASES}：两者都低，批次对该设备太小，或内核未达到其屋顶。",
    "mixed": f"{_PHASES}。",
    "row": _ONE_ROW,
    "no_knee": "直到批次 {batch}，一步用时都不到批次 {first_batch} 的 {slowdown} 倍；"
    "脊点在批次 {ridge_batch}。",
    "at_the_ridge": "拐点在批次 {batch}；脊点在批次 {ridge_batch}：如预测，算术取代了读取权重。",
    "kv_reads": f"{_KNEE} KV 缓存的读取，随批次乘以上下文增长。",
    "reachable_peak": f"{_KNEE}未达到数据手册峰值的矩阵乘法。",
    "overhead": f"{_KNEE}每一步、每条序列的固定开销。",
}

#: An account's remarks in Chinese; the English ones are its own.
CHINESE_REMARKS: dict[str, str] = {
    "faster": "快于屋顶线：{names}；设备的数字偏低，或数据来自缓存",
    "spread": "相同的步相差 {spread}（第 10 到第 90 百分位）：机器上的其他任务占用了一部分时间",
    "watching": "为模块计时后，一步用时是不计时的 {times} 倍",
    "whole": "没有为模块计时：整个前向计算作为一项比较",
}

#: What to do next, in Chinese, by the reading's key; the English is the reading's own.
CHINESE_NEXT: dict[str, str] = {
    "weights": "让一次读取服务更多序列，或用更少的比特存储权重",
    "kv": "用更少的比特保存缓存，或缩短上下文",
    "compute": "换用峰值更高的类型，或换设备",
    "forward": "为各模块计时：剖析逐算子执行的步",
    "attention": "对分页缓存使用融合的注意力内核",
    "matmuls": "使用打包或量化的内核，并确认设备上没有其他任务",
    "small_operators": "把它们融合进相邻的矩阵乘法",
    "launch": "把一步录制成图、编译或融合算子；更大的批次可分摊开销",
    "sampling": "用贪心采样或在设备上采样，一次处理多条序列",
    "scheduling": "每步运行更多序列",
    "detokenisation": "在另一个线程上反分词",
    "drafting": "少猜几个 token，或只在猜得准的地方猜",
    "queues": "不要让其他工作占用引擎线程",
    "profiler": "测量整步",
    "unexplained": "在安静的机器上再测一次",
    "healthy": "想要更高的每秒 token 数，就从批处理和字节数入手",
    "launch_bound": "把步录制成图、编译或融合算子",
    "both_low": "同时运行更多序列",
    "no_knee": "更大的批次仍几乎不增加用时",
    "at_the_ridge": "再增加序列，用时按比例增加",
    "kv_reads": "用更少的比特保存缓存，或缩短上下文",
    "reachable_peak": "以实测峰值计算脊点：用 probe 测量设备",
    "overhead": "把步录制成图，并把主机的工作移出每一步",
}


def account_words(say: Words) -> Words:
    """The account's phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
