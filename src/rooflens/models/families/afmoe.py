"""Trinity (AFMoE) and Hunyuan 3: windowed or plain attention, then dense layers and sigmoid-routed experts.

Source: the models' code in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import decoder, linear, mixture, norm, rotary, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import mtp_component
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, windows
from rooflens.models.spec import Layer, MixtureOfExperts, Mlp, ModelSpec, Norm, Parameter


def _experts(
    cfg: Config, sizes: Sizes, *, router: str, shared: str, correction: str, trained: bool
) -> MixtureOfExperts:
    """Experts beside shared ones; ``correction`` steers the choice and is ``trained`` or only stored."""
    width, count = cfg.size("moe_intermediate_size"), cfg.size("num_experts", "num_local_experts")
    together = cfg.count("num_shared_experts")
    return mixture(
        hidden=sizes.hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, intermediate=width, prefix="mlp.experts.{e}"),
        router_source=router,
        shared=sizes.gated(cfg, intermediate=width * together, prefix=shared) if together else None,
        parameters=(Parameter("correction_bias", (count,), correction, dtype="fp32", buffer=not trained),),
    )


def _norms(hidden: int, *, eps: float) -> tuple[Norm, ...]:
    """On the input and on the output of the mixer, and of the feed-forward."""
    sources = {
        "attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_mlp_layernorm",
        "post_mlp_norm": "post_mlp_layernorm",
    }
    return tuple(norm(name, hidden, source, eps=eps) for name, source in sources.items())


def afmoe(cfg: Config, name: str) -> ModelSpec:
    """Trinity: three windowed layers, which alone have positions, for each full one; all have a gate."""
    cfg = with_defaults(cfg, num_experts=64, num_experts_per_tok=6, num_shared_experts=2, num_dense_layers=1)
    sizes = read_sizes(cfg, default_head_dim=128)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    every = cfg.size("global_attn_every_n_layers", default=4)
    in_force = windows(cfg, sizes.layers, default=lambda index: bool((index + 1) % every), assumed=1024)
    base = sizes.attention(None, qkv_bias=bias, o_bias=bias, norms=query_key_norms(sizes, eps=eps))
    gate = linear("g_proj", sizes.hidden, sizes.heads * sizes.head_dim, "self_attn.gate_proj")
    base = replace(base, linears=(*base.linears, gate))
    position = rotary(cfg, sizes.head_dim)
    local = {window: replace(base, window=window, rotary=position) for window in set(in_force) if window}
    dense: Mlp = sizes.gated(cfg)
    experts = _experts(
        cfg,
        sizes,
        router="mlp.router.gate",
        shared="mlp.shared_experts",
        correction="mlp.expert_bias",
        trained=True,
    )
    first, norms = cfg.count("num_dense_layers"), _norms(sizes.hidden, eps=eps)
    layers = [
        Layer((local[window] if window else base,), dense if index < first else experts, norms)
        for index, window in enumerate(in_force)
    ]
    scale = sizes.hidden**0.5 if cfg.flag("mup_enabled", default=False) else 1.0
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
        embedding_scale=scale,
    )
    return with_notes(spec, cfg)


def hy_v3(cfg: Config, name: str) -> ModelSpec:
    """Hunyuan 3: norms on the heads of q and k, the first layer dense."""
    cfg = with_defaults(cfg, num_experts=192, num_experts_per_tok=8, num_shared_experts=1)
    sizes = read_sizes(cfg, default_head_dim=128)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, theta=11158840.0),
        qkv_bias=bias,
        o_bias=bias,
        norms=query_key_norms(sizes, eps=eps),
    )
    types = cfg.kinds("mlp_layer_types", known=("dense", "sparse"), length=sizes.layers)
    if types is None:
        first = cfg.count("first_k_dense_replace", default=1)
        types = ["dense" if index < first else "sparse" for index in range(sizes.layers)]
    dense: Mlp = sizes.gated(cfg, bias=cfg.flag("mlp_bias", default=False))
    experts = _experts(
        cfg,
        sizes,
        router="mlp.router.gate",
        shared="mlp.shared_mlp",
        correction="mlp.expert_bias",
        trained=False,
    )
    norms = pre_norms(sizes.hidden, eps=eps)
    layers = [Layer((mixer,), dense if kind == "dense" else experts, norms) for kind in types]
    predicted = cfg.count("num_nextn_predict_layers", "num_mtp_layers")
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
        components=mtp_component(layers[-1], hidden=sizes.hidden, count=predicted),
    )
    return with_notes(spec, cfg)


ADAPTERS = {"afmoe": afmoe, "hy_v3": hy_v3}
