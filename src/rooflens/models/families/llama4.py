"""Llama 4: aligned chunks on the layers with positions, full attention on those without, experts."""

from __future__ import annotations

from rooflens.models.families.common import activation, decoder, gated_mlp, linear, mixture, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.nested import text_config, with_defaults, wrapped
from rooflens.models.families.stack import Sizes, pre_norms, read_sizes
from rooflens.models.families.vision import encoder_layer, layer_norm, matrix, patches, side
from rooflens.models.spec import Attention, Component, DenseMlp, Layer, Linear, Mlp, ModelSpec, Part

# The published configs of Llama 4 leave the tower out where it has these sizes.
VISION_SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 34,
    "num_channels": 3,
    "intermediate_size": 5632,
    "vision_output_dim": 7680,
    "image_size": 448,
    "patch_size": 14,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}


def _expert(cfg: Config, hidden: int, size: int) -> DenseMlp:
    """One routed expert: all of them in one tensor, unless a quantising tool took them apart."""
    own = "feed_forward.experts"
    if cfg.get("quantization_config") is not None:
        return gated_mlp(hidden=hidden, intermediate=size, activation=activation(cfg), prefix=f"{own}.{{e}}")
    gate_up = (Part(f"{own}.gate_up_proj", 2 * size),)
    down = linear("down_proj", size, hidden, f"{own}.down_proj", shard="row", transposed=True)
    return DenseMlp(
        intermediate_size=size,
        linears=(Linear("gate_up_proj", hidden, gate_up, transposed=True), down),
        activation=activation(cfg),
    )


def _attentions(cfg: Config, sizes: Sizes, *, eps: float) -> list[Attention]:
    """Layers with positions see their own chunk, every ``no_rope_layer_interval``-th one everything."""
    every = cfg.size("no_rope_layer_interval", default=4)
    flags = [int((i + 1) % every != 0) for i in range(sizes.layers)]
    if cfg.items("no_rope_layers"):  # an empty list means the interval
        flags = cfg.numbers("no_rope_layers", length=sizes.layers) or flags
    # An absent chunk size means the default, null means none.
    chunk = cfg.optional_size("attention_chunk_size")
    types = cfg.kinds("layer_types", known=("chunked_attention", "full_attention"), length=sizes.layers)
    bias = cfg.flag("attention_bias", default=False)
    position = rotary(cfg, sizes.head_dim, interleaved=True, theta=500000.0)
    unit = (
        norm("q_norm", sizes.head_dim, "", eps=eps, affine=False),
        norm("k_norm", sizes.head_dim, "", eps=eps, affine=False),
    )
    normed = cfg.flag("use_qk_norm", default=True)
    attentions = []
    for index, with_position in enumerate(flags):
        chunked = types[index] == "chunked_attention" if types else bool(with_position)
        attentions.append(
            sizes.attention(
                position if with_position else None,
                qkv_bias=bias,
                o_bias=bias,
                window=chunk if chunked else None,
                chunked=chunked and chunk is not None,
                norms=unit if normed and with_position else (),
            )
        )
    return attentions


def llama4_text(cfg: Config, name: str) -> ModelSpec:
    """The language model of Llama 4 Scout and Maverick."""
    cfg = with_defaults(
        cfg,
        attention_chunk_size=8192,
        interleave_moe_layer_step=1,
        intermediate_size_mlp=16384,
    )
    sizes = read_sizes(cfg, default_head_dim=128)
    hidden, eps = sizes.hidden, cfg.number("rms_norm_eps", default=1e-5)
    step, size = cfg.size("interleave_moe_layer_step"), cfg.size("intermediate_size")
    sparse = set(cfg.numbers("moe_layers") or range(step - 1, sizes.layers, step))
    act = activation(cfg)
    experts = mixture(
        hidden=hidden,
        experts=cfg.size("num_local_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=_expert(cfg, hidden, size),
        router_source="feed_forward.router",
        shared=gated_mlp(
            hidden=hidden, intermediate=size, activation=act, prefix="feed_forward.shared_expert"
        ),
    )
    dense = gated_mlp(
        hidden=hidden, intermediate=cfg.size("intermediate_size_mlp"), activation=act, prefix="feed_forward"
    )
    mlps: list[Mlp] = [experts if index in sparse else dense for index in range(sizes.layers)]
    norms = pre_norms(hidden, eps=eps)
    attentions = _attentions(cfg, sizes, eps=eps)
    return decoder(
        cfg,
        name,
        layers=[Layer((mixer,), mlp, norms) for mixer, mlp in zip(attentions, mlps, strict=True)],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
    )


def vision_tower(cfg: Config) -> int:
    """The image tower with its pixel-shuffle adapter: rotary positions beside a learnt table."""
    hidden, patch = cfg.size("hidden_size"), side(cfg, "patch_size")
    positions = (side(cfg, "image_size") // patch) ** 2 + 1
    tower = patches(cfg, hidden, bias=False) + hidden + positions * hidden + 2 * layer_norm(hidden)
    tower += cfg.layers("num_hidden_layers") * encoder_layer(hidden, cfg.size("intermediate_size"))
    middle, out = cfg.size("projector_input_dim"), cfg.size("projector_output_dim")
    adapter = matrix(cfg.size("intermediate_size"), middle, bias=False) + matrix(out, out, bias=False)
    return tower + adapter


def llama4(cfg: Config, name: str) -> ModelSpec:
    """Llama 4 with its image tower."""
    text = llama4_text(text_config(cfg), name)
    section = cfg.section("vision_config")
    if section is None:
        section = Config({}, where=f"{cfg.where}: vision_config")
        section.notes = cfg.notes
    section = with_defaults(section, **VISION_SIZES)
    projector = matrix(section.size("vision_output_dim"), text.hidden_size, bias=False)
    components = [
        Component("vision_model", "vision", vision_tower(section)),
        Component("multi_modal_projector", "projector", projector),
    ]
    return wrapped(
        text, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


ADAPTERS = {"llama4": llama4, "llama4_text": llama4_text}
