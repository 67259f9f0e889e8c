"""The phrases of ``validate``, in English and Chinese."""

from __future__ import annotations

from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "title": "{judged} rows judged of {rows}",
    "flagged": "{count} flagged rows are checked but not counted; {beating} of them beat the bound.",
    "sound": "No row beats the bound.",
    "unsound": "{count} rows beat the bound: the row, the device's figures or the bound is wrong",
    "excepted": "{count} more rows that beat it are explained in the list of exceptions.",
    "row": "row",
    "line": "line",
    "measured": "measured",
    "bound": "bound",
    "ratio": "bound / measured",
    "why": "why",
    "problems": "Rows that cannot be used",
    "skipped": "Skipped",
    "skipped.aside": "not known here, so not judged",
    "rows": "rows",
    "errors": "Estimate against measurement",
    "errors.aside": "the error of the likely figure; share of rows within low to high",
    "kind": "figure",
    "by": "by",
    "name": "which",
    "median": "median abs. error",
    "bias": "bias",
    "coverage": "within",
    "more": "and {count} more (--json lists all)",
    "by.all": "all",
    "by.source": "source",
    "by.engine": "engine",
    "by.device": "device",
    "by.model": "model",
    "none": "No row could be judged.",
}

CHINESE: dict[str, str] = {
    "title": "共 {rows} 行，评判 {judged} 行",
    "flagged": "{count} 行带有标记：仅检查，不计入统计；其中 {beating} 行快于上限。",
    "sound": "没有任何一行快于理论上限。",
    "unsound": "{count} 行快于理论上限：该行、设备数据或上限必有一处有误",
    "excepted": "另有 {count} 行快于上限，例外清单中已有说明。",
    "row": "行",
    "line": "行号",
    "measured": "实测",
    "bound": "上限",
    "ratio": "上限 / 实测",
    "why": "原因",
    "problems": "无法使用的行",
    "skipped": "已跳过",
    "skipped.aside": "此处未知，因此不作评判",
    "rows": "行数",
    "errors": "估计与实测",
    "errors.aside": "估计中值的误差；落在低至高区间内的比例",
    "kind": "指标",
    "by": "分组",
    "name": "名称",
    "median": "绝对误差中位数",
    "bias": "偏差",
    "coverage": "区间内",
    "more": "另有 {count} 行（--json 列出全部）",
    "by.all": "全部",
    "by.source": "来源",
    "by.engine": "引擎",
    "by.device": "设备",
    "by.model": "模型",
    "none": "没有可评判的行。",
}


def validate_words(say: Words) -> Words:
    """The phrases in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
