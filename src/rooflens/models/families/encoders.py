"""Encoders: BERT, RoBERTa, DistilBERT, ModernBERT, EuroBERT, Nomic. They embed or score; nothing is cached.

Source: the models' code in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflens.models.families.common import (
    activation,
    attention,
    compute_dtype,
    gated_mlp,
    linear,
    norm,
    plain_mlp,
    rotary,
)
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import pre_norms
from rooflens.models.spec import (
    Attention,
    Component,
    Embedding,
    Layer,
    Linear,
    ModelSpec,
    Norm,
    Part,
)

# Positions that RoBERTa's table has beyond those that a text may use.
_ROBERTA_PADDING = 2


@dataclass(frozen=True)
class _Frame:
    """What stands around an encoder's layers."""

    hidden: int
    vocabulary: int
    prefix: str
    positions: int | None = None
    token_types: int = 0
    padding_positions: int = 0


def _class(cfg: Config) -> str:
    classes = cfg.items("architectures")
    return str(classes[0]) if classes else ""


def _labels(cfg: Config) -> int:
    names = cfg.get("id2label")
    return len(names) if isinstance(names, Mapping) and names else cfg.size("num_labels", default=2)


def _prefix(cfg: Config, own: str) -> str:
    """Checkpoints of a class with a head name the encoder inside it."""
    return f"{own}." if "For" in _class(cfg) or _class(cfg).endswith("LMHeadModel") else ""


def _head(
    cfg: Config, hidden: int, vocabulary: int, *, pooled: bool, dense_score: bool = False
) -> list[Component]:
    """What the config's class adds: a pooler, a score per label, or the masked-token head (tied, a bias)."""
    name = _class(cfg)
    dense = hidden * hidden + hidden
    if name.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
        return [Component("masked_lm", "other", dense + 2 * hidden + vocabulary)]
    components = [Component("pooler", "pooler", dense)] if pooled else []
    if name.endswith("ForSequenceClassification"):
        if dense_score:
            components = []
        score = hidden * _labels(cfg) + _labels(cfg) + (dense if dense_score else 0)
        components.append(Component("classifier", "other", score))
    return components


def _spec(
    cfg: Config,
    name: str,
    frame: _Frame,
    layers: list[Layer],
    *,
    norms: tuple[Norm, ...],
    components: list[Component],
    layer_prefix: str,
    embedding_source: str = "embeddings.word_embeddings",
    final_norm: Norm | None = None,
) -> ModelSpec:
    tables = []
    if frame.positions is not None:
        source = f"{frame.prefix}embeddings.position_embeddings"
        tables.append(Embedding(frame.positions, frame.hidden, source))
    if frame.token_types:
        source = f"{frame.prefix}embeddings.token_type_embeddings"
        tables.append(Embedding(frame.token_types, frame.hidden, source))
    context = (
        frame.positions
        if frame.positions is not None
        else cfg.optional_size("max_position_embeddings", "n_positions", "max_trained_positions")
    )
    return ModelSpec(
        name=name,
        model_type=cfg.text("model_type", default=""),
        hidden_size=frame.hidden,
        vocab_size=frame.vocabulary,
        layers=tuple(layers),
        embedding=Embedding(frame.vocabulary, frame.hidden, f"{frame.prefix}{embedding_source}"),
        head=None,
        final_norm=final_norm,
        dtype=compute_dtype(cfg),
        max_context=context - frame.padding_positions if context else None,
        norms=norms,
        tables=tuple(tables),
        components=tuple(components),
        layer_prefix=f"{frame.prefix}{layer_prefix}",
        generates=False,
        notes=tuple(cfg.notes),
    )


def _both_ways(hidden: int, heads: int, qkv: tuple[Part, ...], out: str, *, bias: bool = True) -> Attention:
    """Attention without a mask and without a cache."""
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        linears=(
            Linear("qkv_proj", hidden, qkv, bias),
            linear("o_proj", hidden, hidden, out, bias=bias, shard="row"),
        ),
        causal=False,
        cached=False,
    )


def _after_residual(hidden: int, eps: float, sources: tuple[str, str]) -> tuple[Norm, Norm]:
    """Norms of the sum of a block's input and output, as the first transformers had them."""
    return (
        norm("attention_residual_norm", hidden, sources[0], eps=eps, kind="layer"),
        norm("mlp_residual_norm", hidden, sources[1], eps=eps, kind="layer"),
    )


def _bert_like(
    cfg: Config, name: str, own: str, *, padding: int, pooled: bool, dense_score: bool
) -> ModelSpec:
    hidden, heads = cfg.size("hidden_size"), cfg.size("num_attention_heads")
    eps, vocabulary = cfg.number("layer_norm_eps", default=1e-12), cfg.size("vocab_size")
    qkv = tuple(Part(f"attention.self.{part}", hidden) for part in ("query", "key", "value"))
    mlp = plain_mlp(
        hidden=hidden,
        intermediate=cfg.size("intermediate_size"),
        activation=activation(cfg, default="gelu"),
        prefix="",
        names=("intermediate.dense", "output.dense"),
    )
    layer = Layer(
        (_both_ways(hidden, heads, qkv, "attention.output.dense"),),
        mlp,
        _after_residual(hidden, eps, ("attention.output.LayerNorm", "output.LayerNorm")),
    )
    prefix = _prefix(cfg, own)
    frame = _Frame(
        hidden,
        vocabulary,
        prefix,
        cfg.size("max_position_embeddings"),
        cfg.size("type_vocab_size", default=2),
        padding,
    )
    return _spec(
        cfg,
        name,
        frame,
        [layer] * cfg.layers("num_hidden_layers"),
        norms=(norm("embedding_norm", hidden, f"{prefix}embeddings.LayerNorm", eps=eps, kind="layer"),),
        components=_head(cfg, hidden, vocabulary, pooled=pooled, dense_score=dense_score),
        layer_prefix="encoder.layer.{i}.",
    )


def bert(cfg: Config, name: str) -> ModelSpec:
    """BERT, and the many embedding models published in its form."""
    return _bert_like(cfg, name, "bert", padding=0, pooled=True, dense_score=False)


def roberta(cfg: Config, name: str) -> ModelSpec:
    """RoBERTa, XLM-RoBERTa and CamemBERT: two positions reserved, a score head with a layer of its own."""
    return _bert_like(cfg, name, "roberta", padding=_ROBERTA_PADDING, pooled=True, dense_score=True)


def distilbert(cfg: Config, name: str) -> ModelSpec:
    """DistilBERT: BERT without token types and pooler."""
    hidden, heads = cfg.size("dim", "hidden_size"), cfg.size("n_heads", "num_attention_heads")
    vocabulary, eps = cfg.size("vocab_size"), 1e-12
    qkv = tuple(Part(f"attention.{part}_lin", hidden) for part in "qkv")
    mlp = plain_mlp(
        hidden=hidden,
        intermediate=cfg.size("hidden_dim", "intermediate_size"),
        activation=activation(cfg, "activation", default="gelu"),
        prefix="ffn",
        names=("lin1", "lin2"),
    )
    layer = Layer(
        (_both_ways(hidden, heads, qkv, "attention.out_lin"),),
        mlp,
        _after_residual(hidden, eps, ("sa_layer_norm", "output_layer_norm")),
    )
    prefix = _prefix(cfg, "distilbert")
    frame = _Frame(hidden, vocabulary, prefix, cfg.size("max_position_embeddings", default=512))
    return _spec(
        cfg,
        name,
        frame,
        [layer] * cfg.layers("n_layers", "num_hidden_layers"),
        norms=(norm("embedding_norm", hidden, f"{prefix}embeddings.LayerNorm", eps=eps, kind="layer"),),
        components=_head(cfg, hidden, vocabulary, pooled=False, dense_score=True),
        layer_prefix="transformer.layer.{i}.",
    )


def modernbert(cfg: Config, name: str) -> ModelSpec:
    """ModernBERT: a window on two layers of three, rotary positions, a gated feed-forward, norms before."""
    cfg = with_defaults(cfg, local_attention=128, global_attn_every_n_layers=3)
    hidden, heads, count = (
        cfg.size("hidden_size"),
        cfg.size("num_attention_heads"),
        cfg.layers("num_hidden_layers"),
    )
    eps, vocabulary = cfg.number("norm_eps", default=1e-5), cfg.size("vocab_size")
    biased, half = cfg.flag("norm_bias", default=False), cfg.size("local_attention") // 2
    types, every = (
        cfg.kinds("layer_types", known=("full_attention", "sliding_attention"), length=count),
        cfg.size("global_attn_every_n_layers"),
    )
    bias, mlp_bias = cfg.flag("attention_bias", default=False), cfg.flag("mlp_bias", default=False)
    mlp = gated_mlp(
        hidden=hidden,
        intermediate=cfg.size("intermediate_size"),
        activation=activation(cfg, "hidden_activation", default="gelu"),
        bias=mlp_bias,
        names=("", "", "Wo"),
        fused="Wi",
    )
    layers = []
    for index in range(count):
        sliding = types[index] == "sliding_attention" if types else bool(index % every)
        theta = (
            cfg.number("local_rope_theta", default=1e4)
            if sliding
            else cfg.number("global_rope_theta", default=1.6e5)
        )
        kind = "sliding_attention" if sliding else "full_attention"
        mixer = attention(
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            rotary=rotary(cfg, hidden // heads, layer_type=kind, theta=theta),
            window=2 * half + 1 if sliding else None,
            qkv_bias=bias,
            o_bias=bias,
            prefix="attn",
            names=("", "", "", "Wo"),
            fused="Wqkv",
            causal=False,
            cached=False,
        )
        both = pre_norms(hidden, eps=eps, kind="layer", bias=biased, sources=("attn_norm", "mlp_norm"))
        # The first layer takes the embedding's norm for its own.
        layers.append(Layer((mixer,), mlp, both if index else both[1:]))
    prefix = "model." if "For" in _class(cfg) else ""
    dense = hidden * hidden + hidden * int(cfg.flag("classifier_bias", default=False))
    dense += hidden * (1 + int(biased))
    components: list[Component] = []
    if _class(cfg).endswith("ForMaskedLM"):
        own_bias = vocabulary if cfg.flag("decoder_bias", default=True) else 0
        components = [Component("head", "other", dense + own_bias)]
    elif _class(cfg).endswith("ForSequenceClassification"):
        components = [Component("head", "other", dense + hidden * _labels(cfg) + _labels(cfg))]
    return _spec(
        cfg,
        name,
        _Frame(hidden, vocabulary, prefix),
        layers,
        norms=(
            norm("embedding_norm", hidden, f"{prefix}embeddings.norm", eps=eps, kind="layer", bias=biased),
        ),
        components=components,
        layer_prefix="layers.{i}.",
        embedding_source="embeddings.tok_embeddings",
        final_norm=norm("final_norm", hidden, f"{prefix}final_norm", eps=eps, kind="layer", bias=biased),
    )


def nomic_bert(cfg: Config, name: str) -> ModelSpec:
    """Nomic's BERT with rotary positions and a gated feed-forward; no pooler."""
    hidden, heads = cfg.size("n_embd", "hidden_size"), cfg.size("n_head", "num_attention_heads")
    eps = cfg.number("layer_norm_epsilon", "layer_norm_eps", default=1e-12)
    vocabulary, wide = cfg.size("vocab_size"), cfg.size("n_inner", "intermediate_size", default=4 * hidden)
    qkv = (Part("attn.Wqkv", 3 * hidden),)
    bias = cfg.flag("qkv_proj_bias", default=False)
    layer = Layer(
        (_both_ways(hidden, heads, qkv, "attn.out_proj", bias=bias),),
        gated_mlp(
            hidden=hidden,
            intermediate=wide,
            bias=cfg.flag("mlp_fc1_bias", default=False),
            names=("fc12", "fc11", "fc2"),
        ),
        _after_residual(hidden, eps, ("norm1", "norm2")),
    )
    prefix = _prefix(cfg, "nomic_bert")
    return _spec(
        cfg,
        name,
        _Frame(hidden, vocabulary, prefix, None, cfg.count("type_vocab_size", default=2)),
        [layer] * cfg.layers("n_layer", "num_hidden_layers"),
        norms=(norm("embedding_norm", hidden, f"{prefix}emb_ln", eps=eps, kind="layer"),),
        components=_head(cfg, hidden, vocabulary, pooled=_class(cfg).endswith("ForSequenceClassification")),
        layer_prefix="encoder.layers.{i}.",
    )


ADAPTERS = {
    "bert": bert,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "camembert": roberta,
    "distilbert": distilbert,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
}
