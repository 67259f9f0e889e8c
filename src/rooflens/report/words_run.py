"""The phrases of ``rooflens run``, in English and Chinese; accounts have their own."""

from __future__ import annotations

from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "title": "{model} on {device}",
    "tokens": "{prompt} prompt tokens, {output} generated",
    "finish.stop": "ended by itself",
    "finish.length": "stopped at the length asked for",
    "finish.cancelled": "interrupted; the text so far is kept",
    "finish.error": "ended by an error",
    "loaded": "loaded in {s}",
    "first": "first token after {s}",
    "rate": "then {rate} tok/s ({tpot} per token)",
    "guesses": "{accepted} of {drafted} guesses right ({share}), {tokens} tokens a step",
    "guesses.gain": "{gain} times the rate of the plain steps between (estimate)",
    "noise": "Random weights: the answer is noise and is not shown.",
    "memory": "Memory",
    "memory.weights": "weights",
    "memory.kv_used": "KV cache, most in use",
    "memory.kv_total": "KV cache, whole pool",
    "memory.allocated": "allocated by torch",
    "memory.reserved": "reserved by torch",
    "memory.rss": "resident set of the process",
    "no_roof": "This machine has no measured roofs, so times stand alone: `rooflens probe --quick` gives"
    " them, or --peak and --bandwidth, or --device-spec NAME.",
}

CHINESE: dict[str, str] = {
    "title": "{model}，运行于 {device}",
    "tokens": "提示 {prompt} 个 token，生成 {output} 个",
    "finish.stop": "自行结束",
    "finish.length": "达到要求的长度",
    "finish.cancelled": "已中断；已生成的文本保留",
    "finish.error": "因错误结束",
    "loaded": "加载用时 {s}",
    "first": "首个 token 用时 {s}",
    "rate": "此后 {rate} tok/s（每个 token {tpot}）",
    "guesses": "{drafted} 个猜测中 {accepted} 个正确（{share}），每步 {tokens} 个 token",
    "guesses.gain": "为其间普通步速率的 {gain} 倍（估计）",
    "noise": "随机权重：回答是噪声，不显示。",
    "memory": "内存",
    "memory.weights": "权重",
    "memory.kv_used": "KV 缓存，最大占用",
    "memory.kv_total": "KV 缓存，整个池",
    "memory.allocated": "torch 已分配",
    "memory.reserved": "torch 已保留",
    "memory.rss": "进程常驻内存",
    "no_roof": "这台机器没有实测的屋顶，因此只列时间：可用 `rooflens probe --quick` 测得，"
    "或用 --peak 与 --bandwidth，或 --device-spec NAME 给出。",
}


def run_words(say: Words) -> Words:
    """The run's phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
