"""LongCat-Flash: two latent attentions and two dense blocks a layer, experts on a shortcut, empty experts."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import activation, decoder, gated_mlp, mixture, norm, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import CORRECTION_BIAS, latent_attention
from rooflens.models.spec import Layer, ModelSpec, Parameter


def longcat_flash(cfg: Config, name: str) -> ModelSpec:
    """LongCat-Flash: each published layer is two of ours, the experts beside the first.

    A token's experts may be empty ones (``zero_expert_num``), which return their input, so ``top_k`` is
    the most it can visit and the active parameters are the upper end of the published range.
    """
    hidden = cfg.size("hidden_size")
    count = cfg.layers("num_layers") if cfg.get("num_layers") else cfg.layers("num_hidden_layers") // 2
    eps, act = cfg.number("rms_norm_eps", default=1e-5), activation(cfg)
    wide, size = cfg.size("ffn_hidden_size", "intermediate_size"), cfg.size("expert_ffn_hidden_size")
    routed, empty = cfg.size("n_routed_experts"), cfg.count("zero_expert_num")
    top_k = cfg.size("moe_topk", "num_experts_per_tok")
    if empty:
        cfg.note(
            f"{empty} of the {routed + empty} experts do nothing: a token visits at most {top_k} real ones"
        )
    layers = []
    # Two sublayers share a number in the checkpoint, so names carry it and the prefix does not.
    for index in range(count):
        router = f"{index}.mlp.router"
        bias = Parameter(
            CORRECTION_BIAS, (routed + empty,), f"{router}.{CORRECTION_BIAS}", dtype="fp32", buffer=True
        )
        experts = mixture(
            hidden=hidden,
            experts=routed,
            top_k=top_k,
            expert=gated_mlp(
                hidden=hidden, intermediate=size, activation=act, prefix=f"{index}.mlp.experts.{{e}}"
            ),
            router_source=f"{router}.classifier",
            router_bias=cfg.flag("router_bias", default=False),
            parameters=(bias,),
            zero_experts=empty,
        )
        rows = replace(experts.router.parts[0], out_features=routed + empty)
        experts = replace(experts, router=replace(experts.router, parts=(rows,)))
        for half in (0, 1):
            mixer = latent_attention(cfg, hidden=hidden, eps=1e-6, prefix=f"{index}.self_attn.{half}")
            dense = gated_mlp(hidden=hidden, intermediate=wide, activation=act, prefix=f"{index}.mlps.{half}")
            norms = (
                norm("attention_norm", hidden, f"{index}.input_layernorm.{half}", eps=eps),
                norm("mlp_norm", hidden, f"{index}.post_attention_layernorm.{half}", eps=eps),
            )
            layers.append(Layer((mixer,), dense, norms, extra_mlp=experts if half == 0 else None))
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
        layer_prefix="model.layers.",
    )
    return with_notes(spec, cfg)


ADAPTERS = {"longcat_flash": longcat_flash}
