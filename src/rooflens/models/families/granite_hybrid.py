"""Granite 4 and Bamba: Mamba-2 layers and a few of attention; Falcon-H1: both in every layer."""

from __future__ import annotations

from rooflens.models.families.common import (
    activation,
    attention,
    decoder,
    gated_mlp,
    head_sizes,
    mixture,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.mamba import mamba2_mixer, mamba_head_dim
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import pre_norms
from rooflens.models.spec import (
    Attention,
    DenseMlp,
    Layer,
    Linear,
    Mixer,
    Mlp,
    ModelSpec,
    Part,
    Recurrent,
    Rotary,
)

MAMBA_SIZES = {
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_heads": 128,
}
_ATTENTION = ("attention", "full_attention")
_MAMBA = ("mamba", "linear_attention")


def _mixer(
    cfg: Config, *, hidden: int, heads: int, inner: int | None, eps: float, **fields: bool
) -> Recurrent:
    return mamba2_mixer(
        cfg,
        hidden=hidden,
        heads=heads,
        head_dim=mamba_head_dim(cfg, heads=heads, inner=inner),
        groups=cfg.size("mamba_n_groups"),
        state=cfg.size("mamba_d_state"),
        kernel=cfg.size("mamba_d_conv"),
        eps=eps,
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        bias=cfg.flag("mamba_proj_bias", default=False),
        source="mamba",
        **fields,
    )


def _attention(cfg: Config, hidden: int, position: Rotary | None, *, scale: float | None = None) -> Attention:
    heads, kv_heads, head_dim = head_sizes(cfg, hidden)
    bias = cfg.flag("attention_bias", default=False)
    return attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=position,
        qkv_bias=bias,
        o_bias=bias,
        scale=scale,
    )


def _is_attention(cfg: Config, layers: int) -> list[bool]:
    types = cfg.kinds("layer_types", "layers_block_type", known=(*_ATTENTION, *_MAMBA), length=layers)
    if types is None:
        indices = cfg.numbers("attn_layer_indices") or []
        return [index in indices for index in range(layers)]
    return [kind in _ATTENTION for kind in types]


def _granite_mlp(cfg: Config, hidden: int) -> Mlp:
    """A feed-forward that every token goes through and, unless there are none, experts beside it."""
    act = activation(cfg)

    def gated(source: str, size: int) -> DenseMlp:
        up, down = (Part(f"{source}.input_linear", 2 * size),), (Part(f"{source}.output_linear", hidden),)
        return DenseMlp(
            size, (Linear("gate_up_proj", hidden, up), Linear("down_proj", size, down, shard="row")), act
        )

    shared = gated("shared_mlp", cfg.size("shared_intermediate_size"))
    experts = cfg.count("num_local_experts")
    if not experts:
        return shared
    size, own = cfg.size("intermediate_size"), "block_sparse_moe"
    routed = DenseMlp(
        size,
        (
            Linear("gate_up_proj", hidden, (Part(f"{own}.input_linear.weight", 2 * size),)),
            Linear("down_proj", size, (Part(f"{own}.output_linear.weight", hidden),), shard="row"),
        ),
        act,
    )
    return mixture(
        hidden=hidden,
        experts=experts,
        top_k=cfg.size("num_experts_per_tok"),
        expert=routed,
        router_source=f"{own}.router.layer",
        shared=shared,
    )


def granitemoehybrid(cfg: Config, name: str) -> ModelSpec:
    """Granite 4 H and its dense sizes."""
    cfg = with_defaults(cfg, **MAMBA_SIZES, shared_intermediate_size=1024, num_local_experts=8)
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("rms_norm_eps", default=1e-6)
    attends = _is_attention(cfg, count)
    heads = cfg.size("mamba_n_heads")
    mixers: dict[bool, Mixer] = {}
    if any(attends):
        position = None
        if cfg.text("position_embedding_type", default="nope") == "rope":
            position = rotary(cfg, head_sizes(cfg, hidden)[2])
        scale = cfg.number("attention_multiplier", default=0.0) or None
        mixers[True] = _attention(cfg, hidden, position, scale=scale)
    if not all(attends):
        inner = int(cfg.number("mamba_expand", default=2) * hidden)
        mixers[False] = _mixer(cfg, hidden=hidden, heads=heads, inner=inner, eps=eps)
    mlp, norms = _granite_mlp(cfg, hidden), pre_norms(hidden, eps=eps)
    residual = cfg.number("residual_multiplier", default=1.0)
    spec = decoder(
        cfg,
        name,
        layers=[Layer((mixers[kind],), mlp, norms, residual_scale=residual) for kind in attends],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
        embedding_scale=cfg.number("embedding_multiplier", default=1.0),
        head_scale=1.0 / cfg.number("logits_scaling", default=1.0),
    )
    return with_notes(spec, cfg)


def bamba(cfg: Config, name: str) -> ModelSpec:
    """Bamba: half of each attention head rotated, a dense feed-forward everywhere."""
    cfg = with_defaults(cfg, **MAMBA_SIZES)
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("rms_norm_eps", default=1e-5)
    full = _attention(cfg, hidden, rotary(cfg, head_sizes(cfg, hidden)[2], partial=0.5))
    inner = int(cfg.number("mamba_expand", default=2) * hidden)
    other = _mixer(cfg, hidden=hidden, heads=cfg.size("mamba_n_heads"), inner=inner, eps=eps)
    mlp = _dense(cfg, hidden)
    norms = pre_norms(hidden, eps=eps, sources=("input_layernorm", "pre_ff_layernorm"))
    spec = decoder(
        cfg,
        name,
        layers=[Layer((full if kind else other,), mlp, norms) for kind in _is_attention(cfg, count)],
        final_norm=norm("final_norm", hidden, "model.final_layernorm", eps=eps),
    )
    return with_notes(spec, cfg)


def _dense(cfg: Config, hidden: int) -> DenseMlp:
    return gated_mlp(
        hidden=hidden,
        intermediate=cfg.size("intermediate_size"),
        activation=activation(cfg),
        bias=cfg.flag("mlp_bias", default=False),
        prefix="feed_forward",
    )


def falcon_h1(cfg: Config, name: str) -> ModelSpec:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, on the same input."""
    sizes = {key: value for key, value in MAMBA_SIZES.items() if key != "mamba_expand"}
    cfg = with_defaults(cfg, **sizes)
    hidden, heads = cfg.size("hidden_size"), cfg.size("mamba_n_heads")
    eps = cfg.number("rms_norm_eps", default=1e-5)
    inner = cfg.optional_size("mamba_d_ssm")
    if inner is None and cfg.get("mamba_d_head") not in (None, "auto"):
        cfg.note(f"mamba_d_ssm is not given: {heads} heads of {cfg.size('mamba_d_head')} features make it")
    elif inner is None:
        inner = int(cfg.number("mamba_expand", default=2) * hidden)
    other = _mixer(
        cfg,
        hidden=hidden,
        heads=heads,
        inner=inner,
        eps=eps,
        out_bias=cfg.flag("projectors_bias", default=False),
        gated_norm=cfg.flag("mamba_rms_norm", default=False),
    )
    full = _attention(cfg, hidden, rotary(cfg, head_sizes(cfg, hidden)[2]))
    norms = pre_norms(hidden, eps=eps, sources=("input_layernorm", "pre_ff_layernorm"))
    layer = Layer((full, other), _dense(cfg, hidden), norms)
    spec = decoder(
        cfg,
        name,
        layers=[layer] * cfg.layers("num_hidden_layers"),
        final_norm=norm("final_norm", hidden, "model.final_layernorm", eps=eps),
        embedding_scale=cfg.number("embedding_multiplier", default=1.0),
        head_scale=cfg.number("lm_head_multiplier", default=1.0),
    )
    return with_notes(spec, cfg)


ADAPTERS = {"granitemoehybrid": granitemoehybrid, "bamba": bamba, "falcon_h1": falcon_h1}
