"""OLMo Hybrid: gated delta networks with norms before them, OLMo 3's attention with norms after it."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import decoder, linear, norm, rotary, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.olmo import post_norms
from rooflens.models.families.qwen_hybrid import gated_delta_net, layer_kinds
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes
from rooflens.models.spec import Layer, Linear, ModelSpec, Parameter, Part, Recurrent, Rotary

# The sources of a linear layer's norms, other than those of an attention layer.
_NORMS = ("attention_layer_norm", "feedforward_layer_norm")
# What the model's code takes for the norm of a head's output, whatever the config says.
_HEAD_NORM_EPS = 1e-5


def _linear_sizes(cfg: Config, sizes: Sizes) -> Config:
    """The config with the sizes of the linear layers that follow from the others."""
    cfg = with_defaults(
        cfg,
        linear_num_key_heads=sizes.heads,
        linear_num_value_heads=sizes.heads,
        linear_conv_kernel_dim=4,
    )
    key_heads = cfg.size("linear_num_key_heads")
    # Three quarters of the hidden size for the keys, twice as much for the values.
    cfg = with_defaults(cfg, linear_key_head_dim=3 * sizes.hidden // (4 * key_heads))
    return with_defaults(cfg, linear_value_head_dim=2 * cfg.size("linear_key_head_dim"))


def _delta_net(cfg: Config, hidden: int) -> Recurrent:
    """Qwen3-Next's layer with every projection and every convolution stored apart."""
    base = gated_delta_net(cfg, hidden, eps=_HEAD_NORM_EPS, fused=False)
    keys, values, kernel = base.key_heads * base.key_dim, base.value_heads * base.value_dim, base.conv_kernel
    own = "linear_attn"
    wide = {"q": keys, "k": keys, "v": values}
    rows = {**wide, "g": values}
    return replace(
        base,
        linears=(
            Linear("in_proj_qkvz", hidden, tuple(Part(f"{own}.{x}_proj", size) for x, size in rows.items())),
            Linear("in_proj_ba", hidden, tuple(Part(f"{own}.{x}_proj", base.value_heads) for x in "ba")),
            linear("out_proj", values, hidden, f"{own}.o_proj", shard="row"),
        ),
        norms=(norm("norm", base.value_dim, f"{own}.o_norm", eps=_HEAD_NORM_EPS),),
        parameters=(
            *(
                Parameter(f"{x}_conv1d", (size, 1, kernel), f"{own}.{x}_conv1d.weight", "column")
                for x, size in wide.items()
            ),
            *(parameter for parameter in base.parameters if parameter.name != "conv1d"),
        ),
    )


def _positions(cfg: Config, head_dim: int) -> Rotary | None:
    """None as published: without a ``rope_theta`` nothing is rotated."""
    declared = cfg.section("rope_parameters", "rope_scaling")
    if cfg.get("rope_theta") is None and (declared is None or declared.get("rope_theta") is None):
        cfg.note("no rope_theta: the attention layers have no positions")
        return None
    return rotary(cfg, head_dim)


def olmo_hybrid(cfg: Config, name: str) -> ModelSpec:
    """OLMo Hybrid 7B: every fourth layer attends, over norms of all of q and of k."""
    sizes = read_sizes(cfg)
    cfg = _linear_sizes(cfg, sizes)
    hidden, eps = sizes.hidden, cfg.number("rms_norm_eps", default=1e-6)
    bias = cfg.flag("attention_bias", default=False)
    full = Layer(
        (
            sizes.attention(
                _positions(cfg, sizes.head_dim),
                qkv_bias=bias,
                o_bias=bias,
                norms=query_key_norms(sizes, eps=eps, whole=True),
            ),
        ),
        sizes.gated(cfg),
        post_norms(hidden, eps=eps),
    )
    recurrent = Layer((_delta_net(cfg, hidden),), full.mlp, pre_norms(hidden, eps=eps, sources=_NORMS))
    kinds = layer_kinds(cfg, sizes.layers)
    if all(kinds):  # a short model has an attention layer at its end
        kinds[-1] = False
    spec = decoder(
        cfg,
        name,
        layers=[recurrent if is_linear else full for is_linear in kinds],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
    )
    return with_notes(spec, cfg)


ADAPTERS = {"olmo_hybrid": olmo_hybrid}
