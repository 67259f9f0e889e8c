"""Mamba and Mamba-2: state-space mixers, alone in a model or as the other half of a hybrid.

Source: Gu and Dao, "Mamba" (2023) and "Transformers are SSMs" (2024), and the models' code in Hugging
Face transformers.
"""

from __future__ import annotations

from math import ceil

from rooflens.errors import InputError
from rooflens.models.families.common import decoder, linear, norm, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.nested import with_defaults
from rooflens.models.formats.base import dtype_name
from rooflens.models.spec import Layer, MixerKind, ModelSpec, Norm, Parameter, Recurrent

STATE_DTYPES = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def state_dtype(cfg: Config) -> str:
    """The element type of the recurrent state: the config's, else float32, in which it is computed."""
    declared = cfg.get(*STATE_DTYPES)
    if declared is None:
        cfg.note("the config names no dtype for the recurrent state: float32, in which it is computed")
        return "fp32"
    return dtype_name(str(declared), field=STATE_DTYPES[0])


def ssd_flops(*, heads: int, head_dim: int, state: int) -> int:
    """FLOPs of one token of Mamba-2: the outer product added to the state, and C times the state.

    2 x 2 x heads x head_dim x state; the decay is one multiplication per element and not counted.
    """
    return 4 * heads * head_dim * state


def mamba2_mixer(
    cfg: Config,
    *,
    hidden: int,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    kernel: int,
    eps: float,
    conv_bias: bool = True,
    bias: bool = False,
    out_bias: bool | None = None,
    gated_norm: bool = True,
    source: str = "mixer",
) -> Recurrent:
    """Mamba-2: z, x, B, C and dt in one projection, a short convolution over x, B and C."""
    if heads % groups:
        raise InputError(f"{cfg.where}: the groups do not divide {heads} Mamba heads", value=groups)
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    convolution = [Parameter("conv1d", (channels, 1, kernel), f"{source}.conv1d.weight", "column")]
    if conv_bias:
        convolution.append(Parameter("conv1d_bias", (channels,), f"{source}.conv1d.bias", "column"))
    per_head = [
        Parameter(name, (heads,), f"{source}.{stored}", "column")
        for name, stored in (("dt_bias", "dt_bias"), ("a_log", "A_log"), ("d", "D"))
    ]
    norms: tuple[Norm, ...] = (norm("norm", inner, f"{source}.norm", eps=eps),) if gated_norm else ()
    return Recurrent(
        kind=MixerKind.MAMBA,
        attribute="mamba",
        linears=(
            linear("in_proj", hidden, inner + channels + heads, f"{source}.in_proj", bias=bias),
            linear(
                "out_proj",
                inner,
                hidden,
                f"{source}.out_proj",
                bias=bias if out_bias is None else out_bias,
                shard="row",
            ),
        ),
        state_elements=inner * state,
        conv_elements=channels * (kernel - 1),
        flops_per_token=ssd_flops(heads=heads, head_dim=head_dim, state=state) + 2 * channels * kernel,
        state_dtype=state_dtype(cfg),
        state_heads=groups if groups > 1 else heads,
        norms=norms,
        parameters=(*convolution, *per_head),
        variant="mamba2",
        key_heads=groups,
        key_dim=state,
        value_heads=heads,
        value_dim=head_dim,
        conv_kernel=kernel,
    )


def mamba1_mixer(
    cfg: Config,
    *,
    hidden: int,
    inner: int,
    state: int,
    kernel: int,
    rank: int,
    conv_bias: bool = True,
    bias: bool = False,
    norms: tuple[Norm, ...] = (),
    source: str = "mixer",
) -> Recurrent:
    """Mamba: every channel has a state of its own; B, C and a low-rank dt come from the convolved input."""
    convolution = [Parameter("conv1d", (inner, 1, kernel), f"{source}.conv1d.weight", "column")]
    if conv_bias:
        convolution.append(Parameter("conv1d_bias", (inner,), f"{source}.conv1d.bias", "column"))
    return Recurrent(
        kind=MixerKind.MAMBA,
        attribute="mamba",
        linears=(
            linear("in_proj", hidden, 2 * inner, f"{source}.in_proj", bias=bias),
            linear("x_proj", inner, rank + 2 * state, f"{source}.x_proj", shard="row"),
            linear("dt_proj", rank, inner, f"{source}.dt_proj", bias=True),
            linear("out_proj", inner, hidden, f"{source}.out_proj", bias=bias, shard="row"),
        ),
        state_elements=inner * state,
        conv_elements=inner * (kernel - 1),
        flops_per_token=ssd_flops(heads=inner, head_dim=1, state=state) + 2 * inner * kernel,
        state_dtype=state_dtype(cfg),
        state_heads=inner,
        norms=norms,
        parameters=(
            *convolution,
            Parameter("a_log", (inner, state), f"{source}.A_log", "column"),
            Parameter("d", (inner,), f"{source}.D", "column"),
        ),
        variant="mamba",
        value_heads=inner,
        value_dim=1,
        key_dim=state,
        conv_kernel=kernel,
    )


def time_step_rank(cfg: Config, hidden: int, *names: str) -> int:
    """The rank of dt: given, or a sixteenth of the hidden size."""
    value = cfg.get(*names)
    return ceil(hidden / 16) if value in (None, "auto") else cfg.size(*names)


def mamba_head_dim(cfg: Config, *, heads: int, inner: int | None, name: str = "mamba_d_head") -> int:
    """Features of a Mamba head; ``auto`` divides ``inner`` among the heads; a contradiction is refused."""
    declared = cfg.get(name)
    if declared in (None, "auto"):
        if inner is None or inner < heads or inner % heads:
            raise InputError(f"{cfg.where}: {heads} Mamba heads do not divide the inner size", value=inner)
        return inner // heads
    size = cfg.size(name)
    if inner is not None and heads * size != inner:
        raise InputError(
            f"{cfg.where}: {heads} Mamba heads of {size} features do not make the inner size",
            value=inner,
            allowed=str(heads * size),
        )
    return size


def _alone(cfg: Config, name: str, mixer: Recurrent, *, tied: bool) -> ModelSpec:
    """A model of nothing but Mamba layers."""
    hidden, eps = cfg.size("hidden_size", "d_model"), cfg.number("layer_norm_epsilon", default=1e-5)
    layer = Layer((mixer,), None, (norm("attention_norm", hidden, "norm", eps=eps),))
    spec = decoder(
        cfg,
        name,
        layers=[layer] * cfg.layers("num_hidden_layers", "n_layer"),
        final_norm=norm("final_norm", hidden, "backbone.norm_f", eps=eps),
        tied_default=tied,
        embedding_source="backbone.embeddings",
        layer_prefix="backbone.layers.{i}.",
    )
    return with_notes(spec, cfg)


def mamba(cfg: Config, name: str) -> ModelSpec:
    """Mamba, and Falcon Mamba, whose norms of dt, B and C have no weights."""
    cfg = with_defaults(cfg, state_size=16, expand=2, conv_kernel=4)
    hidden = cfg.size("hidden_size", "d_model")
    mixer = mamba1_mixer(
        cfg,
        hidden=hidden,
        inner=cfg.size("intermediate_size", "d_inner", default=cfg.size("expand") * hidden),
        state=cfg.size("state_size"),
        kernel=cfg.size("conv_kernel"),
        rank=time_step_rank(cfg, hidden, "time_step_rank"),
        conv_bias=cfg.flag("use_conv_bias", default=True),
        bias=cfg.flag("use_bias", default=False),
    )
    return _alone(cfg, name, mixer, tied=True)


def mamba2(cfg: Config, name: str) -> ModelSpec:
    """Mamba-2 and Codestral Mamba."""
    cfg = with_defaults(cfg, state_size=128, expand=2, conv_kernel=4, n_groups=8, num_heads=128)
    hidden, heads = cfg.size("hidden_size"), cfg.size("num_heads")
    inner = int(cfg.number("expand", default=2) * hidden)
    mixer = mamba2_mixer(
        cfg,
        hidden=hidden,
        heads=heads,
        head_dim=mamba_head_dim(cfg, heads=heads, inner=inner, name="head_dim"),
        groups=cfg.size("n_groups"),
        state=cfg.size("state_size"),
        kernel=cfg.size("conv_kernel"),
        eps=cfg.number("layer_norm_epsilon", default=1e-5),
        conv_bias=cfg.flag("use_conv_bias", default=True),
        bias=cfg.flag("use_bias", default=False),
    )
    return _alone(cfg, name, mixer, tied=False)


ADAPTERS = {"mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2}
