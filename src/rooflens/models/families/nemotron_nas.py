"""Nemotron models found by architecture search: every layer has KV heads and a width of its own, or nothing.

Source: the DeciLM code published with Llama-3.1-Nemotron-51B and Llama-3.3-Nemotron-Super.
"""

from __future__ import annotations

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.common import activation, attention, decoder, gated_mlp, linear, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.spec import DenseMlp, Layer, Linear, Mixer, ModelSpec, Norm, Rotary

_WIDTH_MULTIPLE = 256
# Attention variants that the code knows and no published model uses.
_UNUSED = ("window_length", "num_sink_tokens", "sparsify")


def _block(cfg: Config, index: int, name: str) -> Config:
    blocks = cfg.items("block_configs") or []
    entry = blocks[index]
    if not isinstance(entry, dict) or not isinstance(entry.get(name), dict):
        raise InputError(f"{cfg.where}: block_configs[{index}] has no {name}", value=str(entry)[:80])
    return Config(entry[name], where=f"{cfg.where}: block_configs[{index}].{name}")


def ffn_width(multiplier: float, hidden: int) -> int:
    """Two thirds of ``multiplier`` x hidden, rounded up to a multiple of 256."""
    width = int(2 * multiplier * hidden / 3)
    return -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def _replacement(hidden: int, source: str) -> DenseMlp:
    """One square matrix in the place of a block."""
    return DenseMlp(
        hidden, (linear("linear", hidden, hidden, source, shard="replicated"),), "none", gated=False
    )


def _layer(cfg: Config, index: int, *, hidden: int, heads: int, position: Rotary, eps: float) -> Layer:
    mixing, feeding = _block(cfg, index, "attention"), _block(cfg, index, "ffn")
    for field in _UNUSED:
        if mixing.get(field) is not None:
            raise UnsupportedError(f"{mixing.where}: {field} is not covered", value=mixing.get(field))
    norms: list[Norm] = []
    linears: list[Linear] = []
    mixers: tuple[Mixer, ...] = ()
    if not mixing.flag("no_op", default=False):
        norms.append(norm("attention_norm", hidden, "input_layernorm", eps=eps))
        if mixing.flag("replace_with_linear", default=False):
            linears.append(
                linear("attention_linear", hidden, hidden, "self_attn.linear_attn", shard="replicated")
            )
        else:
            group = mixing.size("n_heads_in_group")
            if heads % group:
                raise InputError(f"{mixing.where}: n_heads_in_group does not divide {heads}", value=group)
            head_dim = cfg.optional_size("head_dim") or hidden // heads
            bias = cfg.flag("attention_bias", default=False)
            mixers = (
                attention(
                    hidden=hidden,
                    heads=heads,
                    kv_heads=heads // group,
                    head_dim=head_dim,
                    rotary=position,
                    qkv_bias=bias,
                    o_bias=bias,
                ),
            )
    mlp = None
    if not feeding.flag("no_op", default=False):
        norms.append(norm("mlp_norm", hidden, "post_attention_layernorm", eps=eps))
        if feeding.flag("replace_with_linear", default=False):
            mlp = _replacement(hidden, "mlp.linear_mlp")
        else:
            mlp = gated_mlp(
                hidden=hidden,
                intermediate=feeding.optional_size("intermediate_size")
                or ffn_width(feeding.number("ffn_mult", default=0.0), hidden),
                activation=activation(cfg),
                bias=cfg.flag("mlp_bias", default=False),
            )
    return Layer(mixers, mlp, tuple(norms), linears=tuple(linears))


def nemotron_nas(cfg: Config, name: str) -> ModelSpec:
    """Llama-Nemotron 51B, Super and Ultra."""
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    heads, eps = cfg.size("num_attention_heads"), cfg.number("rms_norm_eps", default=1e-5)
    if cfg.items("block_configs", length=count) is None:
        raise InputError(f"{cfg.where} has no block_configs")
    position = rotary(cfg, cfg.optional_size("head_dim") or hidden // heads)
    return decoder(
        cfg,
        name,
        layers=[
            _layer(cfg, index, hidden=hidden, heads=heads, position=position, eps=eps)
            for index in range(count)
        ],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
    )


ADAPTERS = {"nemotron-nas": nemotron_nas, "deci": nemotron_nas}
