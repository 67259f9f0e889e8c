"""LFM2: short gated convolutions with a few layers of attention, dense or with experts."""

from __future__ import annotations

from rooflens.errors import InputError
from rooflens.models.families.common import decoder, gated_mlp, linear, mixture, norm, rotary, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes
from rooflens.models.spec import Layer, Mixer, MixerKind, Mlp, ModelSpec, Parameter, Recurrent

_NAMES = ("w1", "w3", "w2")


def short_convolution(cfg: Config, hidden: int) -> Recurrent:
    """A depthwise convolution between two gates: its last ``conv_L_cache`` - 1 inputs are all it keeps."""
    kernel, bias = cfg.size("conv_L_cache", default=3), cfg.flag("conv_bias", default=False)
    weights = [Parameter("conv", (hidden, 1, kernel), "conv.conv.weight", "column")]
    if bias:
        weights.append(Parameter("conv_bias", (hidden,), "conv.conv.bias", "column"))
    return Recurrent(
        kind=MixerKind.CONV,
        attribute="conv",
        linears=(
            linear("in_proj", hidden, 3 * hidden, "conv.in_proj", bias=bias),
            linear("out_proj", hidden, hidden, "conv.out_proj", bias=bias, shard="row"),
        ),
        state_elements=0,
        conv_elements=hidden * (kernel - 1),
        flops_per_token=2 * hidden * kernel,
        state_heads=hidden,
        parameters=tuple(weights),
        variant="short_conv",
        value_heads=hidden,
        value_dim=1,
        conv_kernel=kernel,
    )


def _attends(cfg: Config, layers: int) -> list[bool]:
    types = cfg.kinds("layer_types", known=("full_attention", "conv"), length=layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    chosen = cfg.numbers("full_attn_idxs")
    return [chosen is None or index in chosen for index in range(layers)]


def _adjusted(cfg: Config) -> int:
    """The feed-forward's width: two thirds of the declared one, rounded up, unless told otherwise."""
    size = cfg.size("block_ff_dim", "intermediate_size")
    if not cfg.flag("block_auto_adjust_ff_dim", default=True):
        return size
    multiple = cfg.size("block_multiple_of", default=256)
    real = int(cfg.number("block_ffn_dim_multiplier", default=1.0) * int(2 * size / 3))
    real = -(-real // multiple) * multiple
    if real < 1:
        raise InputError(f"{cfg.where}: block_ffn_dim_multiplier leaves no feed-forward", value=real)
    cfg.note(f"intermediate_size {size} is adjusted by the model's code: the feed-forward is {real} wide")
    return real


def _lfm2(cfg: Config, name: str, mlps: list[Mlp], sizes: Sizes, *, eps: float) -> ModelSpec:
    full: Mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, theta=1e6),
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
        norms=query_key_norms(sizes, eps=eps, sources=("self_attn.q_layernorm", "self_attn.k_layernorm")),
    )
    short = short_convolution(cfg, sizes.hidden)
    norms = pre_norms(sizes.hidden, eps=eps, sources=("operator_norm", "ffn_norm"))
    # The tying flag has a name of its own in this family.
    tied = cfg.flag("tie_embedding", default=True)
    spec = decoder(
        cfg,
        name,
        layers=[
            Layer((full if attends else short,), mlp, norms)
            for attends, mlp in zip(_attends(cfg, sizes.layers), mlps, strict=True)
        ],
        final_norm=norm("final_norm", sizes.hidden, "model.embedding_norm", eps=eps),
        tied_default=tied,
    )
    return with_notes(spec, cfg)


def lfm2(cfg: Config, name: str) -> ModelSpec:
    """LFM2, dense."""
    sizes = read_sizes(cfg)
    mlp = gated_mlp(hidden=sizes.hidden, intermediate=_adjusted(cfg), prefix="feed_forward", names=_NAMES)
    eps = cfg.number("norm_eps", "block_norm_eps", default=1e-5)
    return _lfm2(cfg, name, [mlp] * sizes.layers, sizes, eps=eps)


def lfm2_moe(cfg: Config, name: str) -> ModelSpec:
    """LFM2 with experts after the first dense layers."""
    cfg = with_defaults(cfg, num_dense_layers=2)
    sizes = read_sizes(cfg)
    hidden, first, count = sizes.hidden, cfg.count("num_dense_layers"), cfg.size("num_experts")
    dense = gated_mlp(
        hidden=hidden, intermediate=cfg.size("intermediate_size"), prefix="feed_forward", names=_NAMES
    )
    bias = Parameter("expert_bias", (count,), "feed_forward.expert_bias", dtype="fp32", buffer=True)
    experts = mixture(
        hidden=hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=gated_mlp(
            hidden=hidden,
            intermediate=cfg.size("moe_intermediate_size"),
            prefix="feed_forward.experts.{e}",
            names=_NAMES,
        ),
        router_source="feed_forward.gate",
        parameters=(bias,) if cfg.flag("use_expert_bias", default=True) else (),
    )
    mlps: list[Mlp] = [dense if index < first else experts for index in range(sizes.layers)]
    return _lfm2(cfg, name, mlps, sizes, eps=cfg.number("norm_eps", default=1e-5))


ADAPTERS = {"lfm2": lfm2, "lfm2_moe": lfm2_moe}
