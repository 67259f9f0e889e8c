"""Step 3.5 and 3.7 Flash: windowed layers with more query heads, a gate per head, experts, images."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import (
    activation,
    attention,
    decoder,
    gated_mlp,
    linear,
    mixture,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import MAX_LAYERS, Config
from rooflens.models.families.deepseek import mtp_component
from rooflens.models.families.nested import text_config, with_defaults, wrapped
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms
from rooflens.models.families.vision import encoder_layer, layer_norm, matrix, patches, side
from rooflens.models.spec import (
    Attention,
    Component,
    DenseMlp,
    Layer,
    Linear,
    MixtureOfExperts,
    ModelSpec,
    Parameter,
    Part,
)

UNIT_OFFSET = 1.0
SLIDING = "sliding_attention"
_FULL_LAYERS_FIRST = 3  # dense layers where the config lists no sparse ones
TOWER_SIZES = {"image_size": 728, "patch_size": 14}


def _layer_types(cfg: Config, layers: int, predicted: int) -> list[str]:
    """The kind of every layer; the published lists go on over the next-token prediction layers."""
    known = ("full_attention", SLIDING)
    types = cfg.kinds("layer_types", known=known) or ["full_attention"] * layers
    if len(types) == layers + predicted:
        return types
    return [*(cfg.kinds("layer_types", known=known, length=layers) or types), *[types[-1]] * predicted]


def _sparse(cfg: Config, layers: int) -> list[bool]:
    types = cfg.kinds("mlp_layer_types", known=("dense", "sparse"))
    if types is not None and len(types) >= layers:
        return [kind == "sparse" for kind in types[:layers]]
    chosen = cfg.get("moe_layers_enum")
    if isinstance(chosen, str) and all(number.strip().isdecimal() for number in chosen.split(",")):
        sparse = [int(number) for number in chosen.split(",")]
        return [index in sparse for index in range(layers)]
    if chosen is not None:
        numbers = cfg.numbers("moe_layers_enum") or []
        return [index in numbers for index in range(layers)]
    first = cfg.count("first_k_dense_replace", default=_FULL_LAYERS_FIRST)
    return [index >= first for index in range(layers)]


def _heads(cfg: Config, *, sliding: bool) -> tuple[int, int]:
    """(query heads, KV heads) of a layer; windowed layers may have numbers of their own."""
    heads = cfg.size("num_attention_heads")
    kv_heads = cfg.size("num_attention_groups", "num_key_value_heads", default=8)
    if not sliding:
        return heads, kv_heads
    other = cfg.section("attention_other_setting")
    if other is not None:
        return (
            other.size("num_attention_heads", default=heads),
            other.size("num_attention_groups", default=kv_heads),
        )
    own = cfg.optional_size("num_sliding_attention_heads")
    if own is None:
        cfg.note(f"no heads are given for the windowed layers: {heads} as in the others")
    return own or heads, kv_heads


def _attention(cfg: Config, hidden: int, index: int, kind: str, *, eps: float) -> Attention:
    heads, kv_heads = _heads(cfg, sliding=kind == SLIDING)
    head_dim = cfg.size("head_dim", default=128)
    bias = cfg.flag("attention_bias", default=False)
    own = dict(cfg.fields)
    for field, scalar in (("rope_theta", "rope_theta"), ("partial_rotary_factors", "partial_rotary_factor")):
        values = cfg.fields.get(field)
        if isinstance(values, list) and values:  # one for every layer
            own[scalar] = values[min(index, len(values) - 1)]
    position = rotary(Config(own, where=cfg.where), head_dim, layer_type=kind)
    base = attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary=position,
        window=cfg.size("sliding_window") if kind == SLIDING else None,
        qkv_bias=bias,
        o_bias=bias,
        norms=query_key_norms(Sizes(hidden, 1, heads, kv_heads, head_dim), eps=eps, offset=UNIT_OFFSET),
    )
    gate = linear("g_proj", hidden, heads, "self_attn.g_proj")
    return replace(base, linears=(*base.linears, gate))


def _dense(cfg: Config, hidden: int) -> DenseMlp:
    bias = cfg.flag("mlp_bias", default=False)
    return gated_mlp(
        hidden=hidden, intermediate=cfg.size("intermediate_size"), activation=activation(cfg), bias=bias
    )


def _experts(cfg: Config, hidden: int) -> MixtureOfExperts:
    """All experts of a layer in three tensors, beside one shared expert."""
    count, size = (
        cfg.size("moe_num_experts", "n_routed_experts", "num_experts"),
        cfg.size("moe_intermediate_size"),
    )
    act = activation(cfg)
    parts = (Part("moe.gate_proj.weight", size), Part("moe.up_proj.weight", size))
    expert = DenseMlp(
        size,
        (
            Linear("gate_up_proj", hidden, parts),
            Linear("down_proj", size, (Part("moe.down_proj.weight", hidden),), shard="row"),
        ),
        act,
    )
    shared = cfg.count("share_expert_dim", "share_expert_dims", default=1280)
    return mixture(
        hidden=hidden,
        experts=count,
        top_k=cfg.size("moe_top_k", "num_experts_per_tok"),
        expert=expert,
        router_source="moe.gate",
        shared=gated_mlp(
            hidden=hidden,
            intermediate=shared,
            activation=act,
            bias=cfg.flag("mlp_bias", default=False),
            prefix="share_expert",
        )
        if shared
        else None,
        parameters=(Parameter("router_bias", (count,), "moe.router_bias", buffer=True),),
    )


def step_text(cfg: Config, name: str) -> ModelSpec:
    """The language model; next-token prediction layers have the dense feed-forward."""
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    predicted = cfg.count("num_nextn_predict_layers", limit=MAX_LAYERS)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    types, sparse = _layer_types(cfg, count, predicted), _sparse(cfg, count)
    norms = pre_norms(hidden, eps=eps, offset=UNIT_OFFSET)
    dense = _dense(cfg, hidden)
    experts = _experts(cfg, hidden) if any(sparse) else None
    layers = [
        Layer((_attention(cfg, hidden, index, kind, eps=eps),), experts if is_sparse else dense, norms)
        for index, (kind, is_sparse) in enumerate(zip(types[:count], sparse, strict=True))
    ]
    components: list[Component] = []
    for index, kind in enumerate(types[count:], start=count):
        predictor = Layer((_attention(cfg, hidden, index, kind, eps=eps),), dense, norms)
        components += mtp_component(predictor, hidden=hidden, count=1)
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps, offset=UNIT_OFFSET),
        components=tuple(components),
    )
    return with_notes(spec, cfg)


def vision_tower(cfg: Config) -> tuple[int, int]:
    """(tower with its two strided convolutions, size of its output)."""
    hidden = cfg.size("width", "hidden_size", default=1536)
    wide = int(hidden * cfg.number("mlp_ratio", default=8960 / 1536))
    layers = cfg.layers("layers", "num_hidden_layers") if cfg.get("layers", "num_hidden_layers") else 47
    positions = (side(cfg, "image_size") // side(cfg, "patch_size")) ** 2
    # Each layer scales the outputs of its two blocks per feature.
    tower = layers * (encoder_layer(hidden, wide) + 2 * hidden) + layer_norm(hidden)
    tower += patches(cfg, hidden, bias=False) + positions * hidden
    tower += matrix(9 * hidden, 2 * hidden) + matrix(9 * 2 * hidden, 4 * hidden)
    return tower, 4 * hidden


def step3p7(cfg: Config, name: str) -> ModelSpec:
    """Step 3.7 Flash with its image tower; flat configs hold the language model's fields themselves."""
    spec = step_text(text_config(cfg, required=False), name)
    section = cfg.section("vision_config")
    if section is None:
        section = Config({}, where=f"{cfg.where}: vision_config")
        section.notes = cfg.notes
        cfg.note("no vision_config: the tower has the sizes of the published one")
    tower, width = vision_tower(with_defaults(section, **TOWER_SIZES))
    projector = matrix(width, spec.hidden_size, bias=cfg.flag("projector_bias", default=False))
    components = (
        Component("vision_model", "vision", tower),
        Component("vit_large_projector", "projector", projector),
    )
    return wrapped(spec, cfg, components=components, model="model.")


ADAPTERS = {"step3p7": step3p7, "step3p5": step_text, "step3p7_text": step_text}
