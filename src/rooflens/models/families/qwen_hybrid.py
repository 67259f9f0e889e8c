"""Qwen3-Next and Qwen3.5: gated delta networks with a full-attention layer in every few.

The linear layers keep one key_dim x value_dim matrix per value head, whatever the length. Source: the
models' code in Hugging Face transformers; the recurrence is that of Yang et al., "Gated Delta Networks".
"""

from __future__ import annotations

from dataclasses import replace

from rooflens.errors import InputError
from rooflens.models.families.common import (
    activation,
    decoder,
    gated_mlp,
    linear,
    mixture,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import mtp_component
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes
from rooflens.models.formats.base import dtype_name
from rooflens.models.spec import (
    Attention,
    Layer,
    Linear,
    Mixer,
    MixerKind,
    MixtureOfExperts,
    Mlp,
    ModelSpec,
    Parameter,
    Part,
    Recurrent,
)

# Norms whose stored weight is added to one.
UNIT_OFFSET = 1.0


def delta_rule_flops(*, heads: int, key_dim: int, value_dim: int) -> int:
    """FLOPs of one token of the gated delta rule: S k, the outer product added to S, S q.

    Each is one multiply-add per element of the state: 3 x 2 x heads x key_dim x value_dim.
    """
    return 6 * heads * key_dim * value_dim


def gated_delta_net(cfg: Config, hidden: int, *, eps: float, fused: bool) -> Recurrent:
    """The linear layer; ``fused`` as Qwen3-Next stores its projections, else as Qwen3.5 does."""
    key_heads, value_heads = cfg.size("linear_num_key_heads"), cfg.size("linear_num_value_heads")
    key_dim, value_dim = cfg.size("linear_key_head_dim"), cfg.size("linear_value_head_dim")
    kernel = cfg.size("linear_conv_kernel_dim")
    if value_heads % key_heads:
        raise InputError(
            f"{cfg.where}: linear_num_key_heads does not divide {value_heads} value heads", value=key_heads
        )
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    own = "linear_attn"
    if fused:
        wide: tuple[Part, ...] = (Part(f"{own}.in_proj_qkvz", channels + values),)
        narrow: tuple[Part, ...] = (Part(f"{own}.in_proj_ba", 2 * value_heads),)
    else:
        wide = (Part(f"{own}.in_proj_qkv", channels), Part(f"{own}.in_proj_z", values))
        narrow = (Part(f"{own}.in_proj_b", value_heads), Part(f"{own}.in_proj_a", value_heads))
    state_dtype = dtype_name(cfg.text("mamba_ssm_dtype", default="float32"), field="mamba_ssm_dtype")
    return Recurrent(
        kind=MixerKind.LINEAR,
        attribute="linear_attention",
        linears=(
            Linear("in_proj_qkvz", hidden, wide),
            Linear("in_proj_ba", hidden, narrow),
            linear("out_proj", values, hidden, f"{own}.out_proj", shard="row"),
        ),
        state_elements=value_heads * key_dim * value_dim,
        conv_elements=channels * (kernel - 1),
        flops_per_token=delta_rule_flops(heads=value_heads, key_dim=key_dim, value_dim=value_dim)
        + 2 * channels * kernel,
        state_dtype=state_dtype,
        state_heads=key_heads,
        norms=(norm("norm", value_dim, f"{own}.norm", eps=eps),),
        parameters=(
            Parameter("conv1d", (channels, 1, kernel), f"{own}.conv1d.weight", "column"),
            Parameter("dt_bias", (value_heads,), f"{own}.dt_bias", "column"),
            Parameter("a_log", (value_heads,), f"{own}.A_log", "column"),
        ),
        variant="gated_delta_net",
        key_heads=key_heads,
        key_dim=key_dim,
        value_heads=value_heads,
        value_dim=value_dim,
        conv_kernel=kernel,
    )


def layer_kinds(cfg: Config, layers: int) -> list[bool]:
    """Which layers are linear: ``layer_types``, or all but every ``full_attention_interval``-th."""
    types = cfg.kinds("layer_types", known=("linear_attention", "full_attention"), length=layers)
    if types is None:
        every = cfg.size("full_attention_interval", default=4)
        return [bool((index + 1) % every) for index in range(layers)]
    return [kind == "linear_attention" for kind in types]


def _gated_attention(cfg: Config, sizes: Sizes, *, eps: float) -> Attention:
    """Full attention whose output is multiplied by a gate that q_proj computes beside the query."""
    bias = cfg.flag("attention_bias", default=False)
    gate = cfg.flag("attn_output_gate", default=True)
    position = rotary(cfg, sizes.head_dim, partial=0.25)
    return sizes.attention(
        replace(position, scaling=()) if dict(position.scaling).get("rope_type") == "mrope" else position,
        qkv_bias=bias,
        o_bias=bias,
        query_gate=gate,
        norms=query_key_norms(sizes, eps=eps, offset=UNIT_OFFSET),
    )


def _experts(cfg: Config, hidden: int, *, stacked: bool) -> MixtureOfExperts:
    act, size = activation(cfg), cfg.size("moe_intermediate_size")
    shared = cfg.count("shared_expert_intermediate_size")
    if stacked:
        expert = gated_mlp(
            hidden=hidden, intermediate=size, activation=act, prefix="mlp.experts", fused="gate_up_proj"
        )
    else:
        expert = gated_mlp(hidden=hidden, intermediate=size, activation=act, prefix="mlp.experts.{e}")
    return mixture(
        hidden=hidden,
        experts=cfg.size("num_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=expert,
        shared=gated_mlp(hidden=hidden, intermediate=shared, activation=act, prefix="mlp.shared_expert")
        if shared
        else None,
        shared_gate=linear("shared_gate", hidden, 1, "mlp.shared_expert_gate", shard="replicated")
        if shared
        else None,
    )


def _hybrid(cfg: Config, name: str, *, fused: bool, sparse: bool = True) -> ModelSpec:
    sizes = read_sizes(cfg, default_head_dim=256)
    hidden, count = sizes.hidden, sizes.layers
    eps = cfg.number("rms_norm_eps", default=1e-6)
    linear_layers = layer_kinds(cfg, count)
    full: Mixer = _gated_attention(cfg, sizes, eps=eps)
    delta: Mixer = gated_delta_net(cfg, hidden, eps=eps, fused=fused)
    step, dense_layers = cfg.size("decoder_sparse_step", default=1), set(cfg.numbers("mlp_only_layers") or ())
    # Qwen3.5 publishes all experts in one tensor; whoever quantises them writes them one by one.
    stacked = not fused and cfg.get("quantization_config") is None
    experts = _experts(cfg, hidden, stacked=stacked) if sparse and cfg.count("num_experts") else None
    has_experts = [
        experts is not None and i not in dense_layers and (i + 1) % step == 0 for i in range(count)
    ]
    dense = None if all(has_experts) else sizes.gated(cfg)
    mlps: list[Mlp | None] = [experts if chosen else dense for chosen in has_experts]
    norms = pre_norms(hidden, eps=eps, offset=UNIT_OFFSET)
    layers = [
        Layer((delta if is_linear else full,), mlp, norms)
        for is_linear, mlp in zip(linear_layers, mlps, strict=True)
    ]
    predicted = cfg.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
    predictor = Layer((full,), mlps[-1], norms)
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps, offset=UNIT_OFFSET),
        components=mtp_component(predictor, hidden=hidden, count=predicted),
    )
    return with_notes(spec, cfg)


LINEAR_SIZES = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


def qwen3_next(cfg: Config, name: str) -> ModelSpec:
    """Qwen3-Next: experts in every layer, projections of the linear layers fused by key head."""
    cfg = with_defaults(
        cfg,
        **LINEAR_SIZES,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    )
    return _hybrid(cfg, name, fused=True)


def qwen3_5(cfg: Config, name: str) -> ModelSpec:
    """The language model of Qwen3.5 and 3.6, dense."""
    return _hybrid(with_defaults(cfg, **LINEAR_SIZES), name, fused=False, sparse=False)


def qwen3_5_moe(cfg: Config, name: str) -> ModelSpec:
    """The language model of Qwen3.5 with experts in every layer."""
    return _hybrid(with_defaults(cfg, **LINEAR_SIZES), name, fused=False)


ADAPTERS = {"qwen3_next": qwen3_next, "qwen3_5_text": qwen3_5, "qwen3_5_moe_text": qwen3_5_moe}
