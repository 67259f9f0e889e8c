"""The phrases of a checkpoint's header, in English and Chinese; the findings are English everywhere."""

from __future__ import annotations

from rooflens.report.words import Words

ENGLISH: dict[str, str] = {
    "title": "Stored weights",
    "aside.one": "{format}, one file, from its header",
    "aside.many": "{format}, {count} files, from their headers",
    "use": "part",
    "type": "stored type",
    "tensors": "tensors",
    "bytes": "bytes",
    "share": "share",
    "bits": "bits/element",
    "model": "the model",
    "not_counted": "not counted",
    "findings": "Findings",
    "part.embedding": "token embedding",
    "part.attention": "attention",
    "part.recurrent": "recurrent mixers",
    "part.mlp": "feed-forward",
    "part.experts": "routed experts",
    "part.norms": "norms",
    "part.head": "output head",
    "part.other": "other parts",
    "part.vision": "vision tower",
    "part.audio": "audio tower",
    "part.projector": "projector",
    "part.pooler": "pooler",
    "part.encoder": "encoder",
    "part.duplicates": "copy of the token table",
    "part.mtp": "next-token prediction",
    "part.tables": "tables, nothing trained",
    "part.adapters": "adapter",
    "part.unknown": "not of this model",
}

CHINESE: dict[str, str] = {
    "title": "存储的权重",
    "aside.one": "{format}，一个文件，取自文件头",
    "aside.many": "{format}，{count} 个文件，取自文件头",
    "use": "部分",
    "type": "存储类型",
    "tensors": "张量",
    "bytes": "字节",
    "share": "占比",
    "bits": "位/元素",
    "model": "模型",
    "not_counted": "不计入",
    "findings": "发现",
    "part.embedding": "词嵌入",
    "part.attention": "注意力",
    "part.recurrent": "循环层",
    "part.mlp": "前馈网络",
    "part.experts": "路由专家",
    "part.norms": "归一化",
    "part.head": "输出头",
    "part.other": "其他部分",
    "part.vision": "视觉塔",
    "part.audio": "音频塔",
    "part.projector": "投影层",
    "part.pooler": "池化层",
    "part.encoder": "编码器",
    "part.duplicates": "词嵌入的副本",
    "part.mtp": "多词元预测",
    "part.tables": "表格，未经训练",
    "part.adapters": "适配器",
    "part.unknown": "不属于此模型",
}


def checkpoint_words(say: Words) -> Words:
    """The phrases of a checkpoint in the language of ``say``."""
    return Words(say.language, CHINESE if say.language == "zh" else ENGLISH)
