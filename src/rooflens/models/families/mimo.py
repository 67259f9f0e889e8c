"""MiMo-V2: windowed layers with KV heads and sinks of their own, values narrower than keys, experts."""

from __future__ import annotations

from rooflens.models.families.common import (
    activation,
    attention,
    decoder,
    gated_mlp,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import routed_experts, sparse_layers
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import pre_norms
from rooflens.models.spec import Attention, Layer, ModelSpec, Parameter


def _windowed(cfg: Config, layers: int) -> list[bool]:
    """Which layers have a window: ``hybrid_layer_pattern`` (1), ``layer_types``, or all but every sixth."""
    pattern = cfg.numbers("hybrid_layer_pattern", length=layers)
    if pattern is not None:
        return [bool(value) for value in pattern]
    types = cfg.kinds("layer_types", known=("full_attention", "sliding_attention"), length=layers)
    if types is not None:
        return [kind == "sliding_attention" for kind in types]
    return [index > 0 and (index + 1) % 6 != 0 for index in range(layers)]


def _window(cfg: Config) -> int:
    """Tokens a windowed query sees: ``sliding_window_size`` leaves the query's own token out."""
    before = cfg.optional_size("sliding_window_size")
    if before is None:
        return cfg.size("sliding_window", default=129)
    cfg.note(f"sliding_window_size {before} counts the tokens before the query's own: {before + 1} are seen")
    return before + 1


def _attention(cfg: Config, hidden: int, *, windowed: bool) -> Attention:
    kv_heads = cfg.size("num_key_value_heads")
    heads, head_dim = cfg.size("num_attention_heads"), cfg.size("head_dim", default=192)
    value_dim = cfg.size("v_head_dim", default=128)
    sinks = cfg.flag("add_full_attention_sink_bias", default=False)
    theta, kind = cfg.number("rope_theta", default=5e6), "full_attention"
    if windowed:
        heads = cfg.size("swa_num_attention_heads", default=heads)
        kv_heads = cfg.size("swa_num_key_value_heads", default=2 * kv_heads)
        head_dim = cfg.size("swa_head_dim", default=head_dim)
        value_dim = cfg.size("swa_v_head_dim", default=value_dim)
        sinks = cfg.flag("add_swa_attention_sink_bias", default=True)
        theta, kind = cfg.number("swa_rope_theta", default=1e4), "sliding_attention"
    bias = cfg.flag("attention_bias", default=False)
    position = rotary(cfg, head_dim, layer_type=kind, theta=theta, partial=0.334)
    name = "self_attn.attention_sink_bias"
    return attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=value_dim,
        rotary=position,
        window=_window(cfg) if windowed else None,
        qkv_bias=bias,
        sinks=sinks,
        parameters=(Parameter("sinks", (heads,), name, "column"),) if sinks else (),
    )


def mimo_v2_flash(cfg: Config, name: str) -> ModelSpec:
    """MiMo-V2-Flash."""
    if cfg.get("mlp_layer_types") is None and cfg.get("moe_layer_freq") is None:
        cfg = with_defaults(cfg, first_k_dense_replace=1)
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("layernorm_epsilon", "rms_norm_eps", default=1e-5)
    windowed = _windowed(cfg, count)
    mixers = {kind: _attention(cfg, hidden, windowed=kind) for kind in set(windowed)}
    dense = gated_mlp(hidden=hidden, intermediate=cfg.size("intermediate_size"), activation=activation(cfg))
    sparse = sparse_layers(cfg, count)
    experts = routed_experts(cfg, hidden) if any(sparse) else None
    norms = pre_norms(hidden, eps=eps)
    spec = decoder(
        cfg,
        name,
        layers=[
            Layer((mixers[kind],), experts if is_sparse else dense, norms)
            for kind, is_sparse in zip(windowed, sparse, strict=True)
        ],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
    )
    return with_notes(spec, cfg)


ADAPTERS = {"mimo_v2_flash": mimo_v2_flash}
