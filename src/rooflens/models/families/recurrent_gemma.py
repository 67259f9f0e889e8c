"""RecurrentGemma (Griffin): gated linear recurrences with a windowed attention layer in every three.

Source: De et al., "Griffin" (2024), and the model's code in Hugging Face transformers.
"""

from __future__ import annotations

from math import sqrt

from rooflens.errors import InputError
from rooflens.models.families.common import activation, attention, decoder, gated_mlp, linear, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.gemma import OFFSET
from rooflens.models.families.nested import with_defaults
from rooflens.models.spec import Layer, Mixer, MixerKind, ModelSpec, Parameter, Recurrent


def recurrent_block(cfg: Config, hidden: int) -> Recurrent:
    """The RG-LRU: one float32 number per channel, gates from block-diagonal matrices, a convolution before.

    FLOPs per token: two gate matrices of width x width / heads, the convolution; the recurrence itself is
    elementwise.
    """
    width, heads = cfg.optional_size("lru_width") or hidden, cfg.size("num_attention_heads")
    kernel = cfg.size("conv1d_width")
    if width % heads:
        raise InputError(f"{cfg.where}: lru_width does not divide into {heads} heads", value=width)
    block, own = width // heads, "temporal_block"
    gates = [
        item
        for gate in ("input", "recurrent")
        for item in (
            Parameter(f"{gate}_gate", (heads, block, block), f"{own}.rg_lru.{gate}_gate_weight", "column"),
            Parameter(f"{gate}_gate_bias", (heads, block), f"{own}.rg_lru.{gate}_gate_bias", "column"),
        )
    ]
    return Recurrent(
        kind=MixerKind.LINEAR,
        attribute="recurrent",
        linears=(
            linear("y_proj", hidden, width, f"{own}.linear_y", bias=True),
            linear("x_proj", hidden, width, f"{own}.linear_x", bias=True),
            linear("out_proj", width, hidden, f"{own}.linear_out", bias=True, shard="row"),
        ),
        state_elements=width,
        conv_elements=width * (kernel - 1),
        flops_per_token=4 * width * block + 2 * width * kernel,
        state_heads=heads,
        parameters=(
            Parameter("conv1d", (width, 1, kernel), f"{own}.conv_1d.weight", "column"),
            Parameter("conv1d_bias", (width,), f"{own}.conv_1d.bias", "column"),
            Parameter("decay", (width,), f"{own}.rg_lru.recurrent_param", "column"),
            *gates,
        ),
        variant="rg_lru",
        value_heads=heads,
        value_dim=block,
        conv_kernel=kernel,
    )


def recurrent_gemma(cfg: Config, name: str) -> ModelSpec:
    """RecurrentGemma 2B and 9B; ``intermediate_size`` counts gate and up together."""
    cfg = with_defaults(
        cfg,
        attention_window_size=2048,
        conv1d_width=4,
        block_types=["recurrent", "recurrent", "attention"],
    )
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    heads = cfg.size("num_attention_heads")
    kv_heads = cfg.size("num_key_value_heads", default=heads)
    head_dim = cfg.optional_size("head_dim") or hidden // heads
    eps, both = cfg.number("rms_norm_eps", default=1e-6), cfg.size("intermediate_size")
    kinds = cfg.kinds("block_types", known=("recurrent", "attention"))
    if not kinds:
        raise InputError(f"{cfg.where}: block_types is empty", value=kinds, allowed="recurrent or attention")
    cfg.note(f"intermediate_size {both} is gate and up together: the feed-forward is {both // 2} wide")
    own = "temporal_block"
    local: Mixer = attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=rotary(cfg, head_dim, partial=0.5),
        window=cfg.size("attention_window_size"),
        qkv_bias=cfg.flag("attention_bias", default=False),
        o_bias=True,
        prefix=own,
    )
    recurrent: Mixer = recurrent_block(cfg, hidden)
    mlp = gated_mlp(
        hidden=hidden,
        intermediate=both // 2,
        activation=activation(cfg, "hidden_activation", default="gelu_tanh"),
        bias=True,
        prefix="mlp_block",
    )
    norms = (
        norm("attention_norm", hidden, "temporal_pre_norm", eps=eps, offset=OFFSET),
        norm("mlp_norm", hidden, "channel_pre_norm", eps=eps, offset=OFFSET),
    )
    return decoder(
        cfg,
        name,
        layers=[
            Layer((local if kinds[index % len(kinds)] == "attention" else recurrent,), mlp, norms)
            for index in range(count)
        ],
        final_norm=norm("final_norm", hidden, "model.final_norm", eps=eps, offset=OFFSET),
        tied_default=True,
        embedding_scale=sqrt(hidden),
        final_logit_softcap=cfg.number("logits_soft_cap", default=30.0) or None,
    )


ADAPTERS = {"recurrent_gemma": recurrent_gemma}
