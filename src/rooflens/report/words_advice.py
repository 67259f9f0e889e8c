"""The phrases of advice, in English and Chinese; the English reasons are those of the JSON."""

from __future__ import annotations

from rooflens.analysis.advice import Advice
from rooflens.analysis.advice_text import WHY
from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "title": "What would help",
    "title.aside": "predicted on this case, each alone; 1.5× is one and a half times as fast",
    "nothing": "No gain here",
    "technique": "technique",
    "throughput": "tok/s",
    "token": "TPOT",
    "first": "TTFT",
    "acts": "Acts on {on}.",
    "gap": " ",
    "saves": "saves",
    "why": "why",
    "weight_quantisation": "weight quantisation",
    "kv_quantisation": "KV quantisation",
    "continuous_batching": "larger batch",
    "speculative_decoding": "speculative decoding",
    "ngram_decoding": "n-gram guesses",
    "chunked_prefill": "chunked prefill",
    "prefix_caching": "prefix caching",
    "cuda_graphs": "CUDA graphs",
    "fused_attention": "fused attention",
    "expert_parallel": "expert parallel",
    "host_experts": "experts in host memory",
    "offload": "offload to the host",
    "nvme_offload": "offload to a drive",
    "other_layout": "another layout",
    "faster_device": "a faster device",
    "tensor_parallel": "more tensor parallel",
    "phase_split": "prefill/decode split",
}

CHINESE: dict[str, str] = {
    "title": "哪些手段有帮助",
    "title.aside": "针对本例逐项预测；1.5× 表示速度为原来的一倍半",
    "nothing": "此处无收益",
    "technique": "手段",
    "throughput": "吞吐",
    "token": "TPOT",
    "first": "TTFT",
    "acts": "作用于{on}。",
    "gap": "",
    "saves": "节省",
    "why": "原因",
    "weight_quantisation": "量化权重",
    "kv_quantisation": "量化 KV",
    "continuous_batching": "增大批量",
    "speculative_decoding": "推测解码",
    "ngram_decoding": "n-gram 猜测",
    "chunked_prefill": "分块预填充",
    "prefix_caching": "前缀缓存",
    "cuda_graphs": "CUDA 图",
    "fused_attention": "融合注意力",
    "expert_parallel": "专家并行",
    "host_experts": "专家放在主机内存",
    "offload": "卸载到主机",
    "nvme_offload": "卸载到硬盘",
    "other_layout": "另一种布局",
    "faster_device": "更快的设备",
    "tensor_parallel": "更多张量并行",
    "phase_split": "预填充/解码分离",
    "why.weights": "每台设备的权重从 {before} 降到 {after}；"
    "一旦受算力限制（此前：批量 {ridge}），收益所剩无几。",
    "why.weights.none": "权重已是小格式，或引擎没有合适的格式。",
    "why.cache": "缓存读取占解码步搬运量的 {share}；可容纳的 token 翻倍。上下文和批量越大，收益越高。",
    "why.cache.little": "缓存读取只占解码步搬运量的 {share}：省内存，几乎不省时间，除非上下文或批量增大。",
    "why.cache.small": "缓存已是 {dtype}。",
    "why.batch": "{batch} 条序列共享每次权重读取；每个 token 需 {tpot}。"
    "当缓存读取或算力（批量 {ridge}）成为主导时不再有效。",
    "why.batch.none": "放不下更多序列，或每个 token 会慢一倍以上（最多 {most}）。",
    "why.speculation": "验证步需 {verify}（普通步 {plain}），起草需 {draft}；"
    "若 {acceptance} 的猜测正确（假设），每步产出 {tokens} 个 token。批量到 {until} 时不再划算。",
    "why.look_up": "验证步需 {verify}（普通步 {plain}），查找几乎不耗时（{draft}）；"
    "若 {acceptance} 的猜测正确（假设：文本重复提示内容），每步产出 {tokens} 个 token。"
    "批量到 {until} 时不再划算。",
    "why.speculation.none": "批量 {batch} 时，验证猜测所花的时间与节省的相当。",
    "why.chunks": "解码的最长停顿从 {before} 降到 {after}；提示本身不会更快，"
    "分块过小时因反复读取权重还会更慢。",
    "why.chunks.short": "它限制激活峰值；提示比一个分块还短，解码的等待不会减少。",
    "why.chunks.none": "提示已经以这么小的分块运行。",
    "why.prefix": "若每个提示的 {share} 已缓存（假设），只需计算其余部分；没有共享前缀则无收益。",
    "why.graphs": "估计已假定使用图；否则每个 token 需要 {loss} 倍时间。",
    "why.fused": "估计已假定使用；否则首个 token 需要 {loss} 倍时间。",
    "why.experts": "每台设备持有完整专家，矩阵更大；路由不均和小批量会抵消收益。",
    "why.experts.none": "在此批量下，每台设备读取的专家字节数不变。",
    "why.offload": "它让模型能够运行：每步经主机链路读取 {bytes}，因此每个 token 需 {tpot}。",
    "why.offload.none": "一切都放得下，而主机链路比设备内存慢。",
    "why.host_experts": "它让模型能够运行：{bytes} 专家留在主机内存，每步访问到的经链路读取，"
    "因此每个 token 需 {tpot}。批量越大，访问的专家越多。",
    "why.host_experts.none": "专家放得下；放在主机内存（每台设备 {bytes}）时每个 token 需 {loss} 倍时间。",
    "why.nvme_offload": "它让模型能够运行：每步从硬盘读取 {bytes}（假设每台机器 7 GB/s），"
    "因此每个 token 需 {tpot}；主机内存有空间时更快。",
    "why.nvme_offload.none": "一切都放得下，而硬盘比主机内存更慢。",
    "why.device": "{device} 的带宽是 {bandwidth} 倍；一旦受算力限制，则看其峰值算力。",
    "why.device.none": "目录中没有同厂商带宽高于 {device} 的设备。",
    "why.layout": "每台设备读取一半；计入全归约后，每台设备的吞吐为原来的 {per_device}。"
    "从 tp {until} 起再翻倍，每个 token 的收益不到 10 %。",
    "why.other_layout": "设备与现在的 {now} 相同。当延迟比吞吐更重要（或相反）时不再有效。",
    "why.other_layout.none": "这些设备没有比 {now} 更好的布局。",
    "why.split": "提示不再插在解码之间，目前这占每个 token 时间的 {share}；"
    "传送一个提示的缓存需 {transfer}，并且需要第二组设备。",
    "why.split.none": "只有一条序列时，没有提示会拖慢其他序列。",
}


CHINESE_ACTS_ON: dict[str, str] = {
    "weight_quantisation": "权重字节：斜线右移",
    "kv_quantisation": "每个 token 的 KV 字节：长上下文，可容纳更多序列",
    "continuous_batching": "计算强度：一次权重读取服务更多请求",
    "speculative_decoding": "每次权重读取产出的 token 数，以空闲算力为代价",
    "ngram_decoding": "每次权重读取产出的 token 数，从已有文本猜测",
    "chunked_prefill": "激活峰值，以及长提示给解码造成的停顿",
    "prefix_caching": "提示的运算量：算过的不再计算",
    "cuda_graphs": "启动开销：一步中的内核整体重放，而不是逐个启动",
    "fused_attention": "字节：注意力分数留在片上",
    "expert_parallel": "专家从哪里读取：每台设备持有完整专家而非全部专家的切片",
    "host_experts": "容量：专家留在主机内存，访问到的经链路读取",
    "offload": "容量：放不下的权重经主机链路读取",
    "nvme_offload": "容量：放不下的权重从硬盘读取",
    "faster_device": "屋顶本身：带宽影响解码，算力影响预填充",
    "other_layout": "同样的设备换一种切分：全归约与各自批量之间的取舍",
    "tensor_parallel": "每台设备的字节和运算量，以全归约为代价",
    "phase_split": "两个阶段各用各的设备和设置",
}


def acts_on(advice: Advice, words: Words) -> str:
    """What a technique changes in the roofline picture, in the words' language."""
    return CHINESE_ACTS_ON[advice.technique] if words.language == "zh" else advice.acts_on


def advice_words(say: Words) -> Words:
    """The phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)


def reason(advice: Advice, words: Words) -> str:
    """Why a technique gains what it gains, in the words' language."""
    if words.language == "zh":
        return words(f"why.{advice.why}", **advice.facts)
    text = WHY[advice.why].format(**advice.facts)
    return text.removeprefix("No gain here: ") if text.startswith("No gain") else text
