"""Whisper and T5: a decoder that attends to what an encoder made of the input, once and for all.

The encoder is one component; the decoder's layers hold self- and cross-attention. Source: the models'
code in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families import audio
from rooflens.models.families.common import compute_dtype, gated_mlp, linear, norm, plain_mlp, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.vision import layer_norm
from rooflens.models.spec import (
    Attention,
    Component,
    DenseMlp,
    Embedding,
    Layer,
    Linear,
    ModelSpec,
    Norm,
    Parameter,
    Part,
)


def _cross(base: Attention, hidden: int, kv: tuple[Part, ...], *, tokens: int, bias: bool) -> Attention:
    """The same heads attending to ``tokens`` outputs of the encoder."""
    query, *_, out = base.linears
    return replace(
        base,
        linears=(query, Linear("kv_proj", hidden, kv, bias), out),
        causal=False,
        cross_tokens=tokens,
    )


def _whisper_attention(hidden: int, heads: int, source: str) -> Attention:
    """Projections with biases, except the key's."""
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        linears=(
            linear("q_proj", hidden, hidden, f"{source}.q_proj", bias=True),
            linear("k_proj", hidden, hidden, f"{source}.k_proj"),
            linear("v_proj", hidden, hidden, f"{source}.v_proj", bias=True),
            linear("o_proj", hidden, hidden, f"{source}.out_proj", bias=True, shard="row"),
        ),
    )


def whisper(cfg: Config, name: str) -> ModelSpec:
    """Whisper: 30 seconds of sound are 1500 tokens for the decoder to attend to."""
    cfg = with_defaults(cfg, max_source_positions=1500, max_target_positions=448, num_mel_bins=80)
    hidden, heads = cfg.size("d_model"), cfg.size("decoder_attention_heads")
    tokens, vocabulary = cfg.size("max_source_positions"), cfg.size("vocab_size")
    own = _whisper_attention(hidden, heads, "self_attn")
    query, key, value, out = _whisper_attention(hidden, heads, "encoder_attn").linears
    # Keys and values of the sound are made once; only the values have a bias, so they stay two matrices.
    across = replace(
        own,
        linears=(query, Linear("kv_proj", hidden, (*key.parts, *value.parts)), out),
        parameters=(Parameter("v_bias", (hidden,), "encoder_attn.v_proj.bias", "column"),),
        causal=False,
        cross_tokens=tokens,
    )
    mlp = plain_mlp(
        hidden=hidden,
        intermediate=cfg.size("decoder_ffn_dim"),
        activation=cfg.text("activation_function", default="gelu"),
        prefix="",
        names=("fc1", "fc2"),
    )
    norms = (
        norm("attention_norm", hidden, "self_attn_layer_norm", eps=1e-5, kind="layer"),
        norm("cross_attention_norm", hidden, "encoder_attn_layer_norm", eps=1e-5, kind="layer"),
        norm("mlp_norm", hidden, "final_layer_norm", eps=1e-5, kind="layer"),
    )
    positions = cfg.size("max_target_positions")
    encoder = audio.whisper_like(cfg) + tokens * hidden
    cfg.note(f"cross-attention holds {tokens} tokens of sound per sequence")
    spec = ModelSpec(
        name=name,
        model_type=cfg.text("model_type", default="whisper"),
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=(Layer((own, across), mlp, norms),) * cfg.layers("decoder_layers"),
        embedding=Embedding(vocabulary, hidden, "model.decoder.embed_tokens"),
        head=linear("lm_head", hidden, vocabulary, "proj_out"),
        tied=cfg.flag("tie_word_embeddings", default=True),
        final_norm=norm("final_norm", hidden, "model.decoder.layer_norm", eps=1e-5, kind="layer"),
        dtype=compute_dtype(cfg),
        max_context=positions,
        tables=(Embedding(positions, hidden, "model.decoder.embed_positions"),),
        components=(Component("model.encoder", "audio", encoder),),
        layer_prefix="model.decoder.layers.{i}.",
    )
    return with_notes(spec, cfg)


def _t5_attention(hidden: int, heads: int, head_dim: int, source: str, *, buckets: int) -> Attention:
    """Attention without scaling; ``buckets`` > 0 where it has the table of relative positions."""
    wide = heads * head_dim
    qkv = tuple(Part(f"{source}.{letter}", wide) for letter in "qkv")
    table = Parameter("position_bias", (buckets, heads), f"{source}.relative_attention_bias.weight")
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        linears=(Linear("qkv_proj", hidden, qkv), linear("o_proj", wide, hidden, f"{source}.o", shard="row")),
        parameters=(table,) if buckets else (),
        scale=1.0,
    )


def _t5_mlp(cfg: Config, hidden: int, source: str) -> DenseMlp:
    kind = cfg.text("feed_forward_proj", default="relu")
    wide, act = cfg.size("d_ff"), kind.removeprefix("gated-")
    if kind.startswith("gated-"):
        names = ("wi_0", "wi_1", "wo")
        return gated_mlp(hidden=hidden, intermediate=wide, activation=act, prefix=source, names=names)
    names_plain = ("wi", "wo")
    return plain_mlp(
        hidden=hidden, intermediate=wide, activation=act, bias=False, prefix=source, names=names_plain
    )


def _size(mlp: DenseMlp) -> int:
    return sum(item.parameters for item in mlp.linears)


def t5(cfg: Config, name: str) -> ModelSpec:
    """T5, Flan-T5, mT5 (and UMT5, whose every layer has a table of relative positions)."""
    hidden, heads, head_dim = cfg.size("d_model"), cfg.size("num_heads"), cfg.size("d_kv")
    count = cfg.layers("num_layers")
    decoding = cfg.layers("num_decoder_layers") if cfg.get("num_decoder_layers") is not None else count
    buckets, eps = (
        cfg.size("relative_attention_num_buckets", default=32),
        cfg.number("layer_norm_epsilon", default=1e-6),
    )
    every = cfg.text("model_type", default="t5") == "umt5"
    tokens = cfg.size("n_positions", default=512)
    cfg.note(f"cross-attention is priced for an input of {tokens} tokens")
    wide, vocabulary = heads * head_dim, cfg.size("vocab_size")

    def layer(index: int) -> Layer:
        has_table = every or index == 0
        own = _t5_attention(
            hidden, heads, head_dim, "layer.0.SelfAttention", buckets=buckets if has_table else 0
        )
        source = "layer.1.EncDecAttention"
        query = linear("q_proj", hidden, wide, f"{source}.q")
        base = _t5_attention(hidden, heads, head_dim, source, buckets=0)
        base = replace(base, linears=(query, base.linears[1]))
        across = _cross(
            base, hidden, (Part(f"{source}.k", wide), Part(f"{source}.v", wide)), tokens=tokens, bias=False
        )
        norms = tuple(
            norm(part, hidden, f"layer.{number}.layer_norm", eps=eps)
            for number, part in enumerate(("attention_norm", "cross_attention_norm", "mlp_norm"))
        )
        return Layer((own, across), _t5_mlp(cfg, hidden, "layer.2.DenseReluDense"), norms)

    tables = buckets * heads * (count if every else 1)
    encoder = (
        count * (4 * hidden * wide + _size(_t5_mlp(cfg, hidden, "")) + layer_norm(hidden)) + hidden + tables
    )
    tied = cfg.flag("tie_word_embeddings", default=True)
    spec = ModelSpec(
        name=name,
        model_type=cfg.text("model_type", default="t5"),
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=tuple(layer(index) for index in range(decoding)),
        embedding=Embedding(vocabulary, hidden, "shared"),
        head=linear("lm_head", hidden, vocabulary, "lm_head"),
        tied=tied,
        final_norm=Norm("final_norm", hidden, "rms", eps, source="decoder.final_layer_norm"),
        dtype=compute_dtype(cfg),
        components=(Component("encoder", "encoder", encoder),),
        layer_prefix="decoder.block.{i}.",
        head_scale=hidden**-0.5 if tied else 1.0,
    )
    return with_notes(spec, cfg)


ADAPTERS = {"whisper": whisper, "t5": t5, "mt5": t5, "umt5": t5}
