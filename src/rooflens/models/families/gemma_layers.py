"""What Gemma 3n and Gemma 4 share: layer kinds, shared caches, norms around blocks, per-layer inputs.

Source: the models' code in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from rooflens.errors import InputError
from rooflens.models.families.common import activation, attention, gated_mlp, linear, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.spec import Attention, DenseMlp, Embedding, Linear, Norm

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Heads:
    """Attention of one layer: head counts and size."""

    heads: int
    kv_heads: int
    head_dim: int


def layer_types(cfg: Config, layers: int, *, every: int) -> list[str]:
    types = cfg.kinds("layer_types", known=(FULL, SLIDING), length=layers)
    if types is None:
        return [FULL if (index + 1) % every == 0 else SLIDING for index in range(layers)]
    return list(types)


def sharing(cfg: Config, layers: int) -> list[bool]:
    """Which layers read the cache of an earlier layer of their kind: the last ``num_kv_shared_layers``."""
    shared = cfg.count("num_kv_shared_layers")
    if shared >= layers and layers:
        raise InputError(f"{cfg.where}: num_kv_shared_layers leaves no layer with a cache", value=shared)
    return [index >= layers - shared for index in range(layers)]


def gemma_attention(
    cfg: Config,
    hidden: int,
    kind: str,
    sizes: Heads,
    *,
    eps: float,
    shared: bool,
    value_is_key: bool = False,
) -> Attention:
    norms = [norm("q_norm", sizes.head_dim, "self_attn.q_norm", eps=eps)]
    if not shared:
        norms.append(norm("k_norm", sizes.head_dim, "self_attn.k_norm", eps=eps))
        norms.append(norm("v_norm", sizes.head_dim, "", eps=eps, affine=False))
    bias = cfg.flag("attention_bias", default=False)
    return attention(
        hidden=hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        rotary=rotary(cfg, sizes.head_dim, layer_type=kind, theta=1e6 if kind == FULL else 1e4),
        window=cfg.size("sliding_window") if kind == SLIDING else None,
        qkv_bias=bias,
        o_bias=bias,
        norms=tuple(norms),
        scale=1.0,
        shares_kv=shared,
        value_is_key=value_is_key and not shared,
    )


def sandwich(hidden: int, eps: float, *more: tuple[str, str]) -> tuple[Norm, ...]:
    names = (
        ("attention_norm", "input_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("mlp_norm", "pre_feedforward_layernorm"),
        ("post_mlp_norm", "post_feedforward_layernorm"),
        *more,
    )
    return tuple(norm(name, hidden, source, eps=eps) for name, source in names)


def gated(cfg: Config, hidden: int, size: int) -> DenseMlp:
    act = activation(cfg, "hidden_activation", "hidden_act", default="gelu_tanh")
    return gated_mlp(hidden=hidden, intermediate=size, activation=act)


@dataclass(frozen=True)
class PerLayerInput:
    """The embedding that every layer gets for itself: one more table, mixed with the token's own."""

    hidden: int
    width: int
    layers: int
    rows: int
    eps: float

    @property
    def layer_linears(self) -> tuple[Linear, ...]:
        """Gate and projection inside a layer."""
        return (
            linear(
                "per_layer_input_gate", self.hidden, self.width, "per_layer_input_gate", shard="replicated"
            ),
            linear(
                "per_layer_projection", self.width, self.hidden, "per_layer_projection", shard="replicated"
            ),
        )

    @property
    def layer_norm(self) -> tuple[str, str]:
        """Name and source of the norm after them."""
        return ("post_per_layer_input_norm", "post_per_layer_input_norm")

    def frame(self) -> dict[str, Any]:
        """What stands outside the layers: the table, the projection of the embedding, its norm."""
        wide = self.layers * self.width
        source = "model.per_layer_model_projection"
        return {
            "tables": (Embedding(self.rows, wide, "model.embed_tokens_per_layer", scale=sqrt(self.width)),),
            "linears": (linear("per_layer_model_projection", self.hidden, wide, source, shard="replicated"),),
            "norms": (
                norm(
                    "per_layer_projection_norm", self.width, "model.per_layer_projection_norm", eps=self.eps
                ),
            ),
        }


def per_layer_input(cfg: Config, hidden: int, layers: int, eps: float) -> PerLayerInput | None:
    width = cfg.count("hidden_size_per_layer_input")
    if not width:
        return None
    return PerLayerInput(hidden, width, layers, cfg.size("vocab_size_per_layer_input"), eps)
