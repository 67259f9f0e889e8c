"""gpt-oss: windows on every other layer, attention sinks, experts with biases stored in one tensor."""

from __future__ import annotations

from rooflens.models.families.common import decoder, linear, mixture, norm, rotary, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.stack import pre_norms, read_sizes, windows
from rooflens.models.spec import DenseMlp, Layer, Linear, ModelSpec, Parameter, Part


def _expert(hidden: int, intermediate: int) -> DenseMlp:
    """One expert: gate and up interleaved in one matrix, a clamped SwiGLU, biases on both matrices."""
    own = "mlp.experts"
    gate_up = (Part(f"{own}.gate_up_proj", 2 * intermediate),)
    return DenseMlp(
        intermediate_size=intermediate,
        linears=(
            Linear("gate_up_proj", hidden, gate_up, bias=True, transposed=True),
            linear(
                "down_proj",
                intermediate,
                hidden,
                f"{own}.down_proj",
                bias=True,
                shard="row",
                transposed=True,
            ),
        ),
        activation="swiglu_oai",
    )


def gpt_oss(cfg: Config, name: str) -> ModelSpec:
    """gpt-oss 20b and 120b."""
    sizes = read_sizes(cfg, default_head_dim=64)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=True)
    position = rotary(cfg, sizes.head_dim, theta=150000.0)
    sinks = Parameter("sinks", (sizes.heads,), "self_attn.sinks", "column")
    attentions = [
        sizes.attention(position, window=window, qkv_bias=bias, o_bias=bias, sinks=True, parameters=(sinks,))
        for window in windows(cfg, sizes.layers, default=lambda index: index % 2 == 0, assumed=128)
    ]
    experts = mixture(
        hidden=sizes.hidden,
        experts=cfg.size("num_local_experts", "num_experts"),
        top_k=cfg.size("num_experts_per_tok", "experts_per_token"),
        expert=_expert(sizes.hidden, cfg.size("intermediate_size")),
        router_source="mlp.router",
        router_bias=True,
    )
    norms = pre_norms(sizes.hidden, eps=eps)
    spec = decoder(
        cfg,
        name,
        layers=[Layer((mixer,), experts, norms) for mixer in attentions],
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
    )
    return with_notes(spec, cfg)


ADAPTERS = {"gpt_oss": gpt_oss}
