"""MiniMax-Text-01 and M1 (lightning attention) and M3 (grouped-query attention to chosen blocks).

M2 is with the other models of experts. Source: the models' code in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import replace

from rooflens.errors import InputError
from rooflens.models.families.common import (
    decoder,
    gated_mlp,
    linear,
    mixture,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import CORRECTION_BIAS
from rooflens.models.families.moe import note_mtp
from rooflens.models.families.nested import text_config, with_defaults, wrapped
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes
from rooflens.models.families.vision import encoder_layer, layer_norm, matrix, patches
from rooflens.models.spec import (
    Attention,
    Component,
    Layer,
    Mixer,
    MixerKind,
    MixtureOfExperts,
    ModelSpec,
    Parameter,
    Recurrent,
)

UNIT_OFFSET = 1.0


def lightning_attention(sizes: Sizes) -> Recurrent:
    """Linear attention with a fixed decay per head: a head_dim x head_dim state, float32.

    FLOPs per token and head: the outer product of key and value, and the query times the state.
    """
    heads, dim, hidden = sizes.heads, sizes.head_dim, sizes.hidden
    wide, own = heads * dim, "self_attn"
    return Recurrent(
        kind=MixerKind.LINEAR,
        attribute="linear_attention",
        linears=(
            linear("qkv_proj", hidden, 3 * wide, f"{own}.qkv_proj"),
            linear("output_gate", hidden, wide, f"{own}.output_gate"),
            linear("out_proj", wide, hidden, f"{own}.out_proj", shard="row"),
        ),
        state_elements=heads * dim * dim,
        conv_elements=0,
        flops_per_token=4 * heads * dim * dim,
        state_heads=heads,
        norms=(norm("norm", wide, f"{own}.norm"),),
        variant="lightning",
        key_heads=heads,
        key_dim=dim,
        value_heads=heads,
        value_dim=dim,
    )


def _full_layers(cfg: Config, layers: int) -> list[bool]:
    """Which layers have softmax attention: ``attn_type_list`` (1), ``layer_types``, or every other one."""
    numbers = cfg.numbers("attn_type_list", length=layers)
    if numbers is not None:
        return [bool(number) for number in numbers]
    types = cfg.kinds("layer_types", known=("full_attention", "linear_attention"), length=layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    return [(index + 1) % 2 == 1 for index in range(layers)]


def minimax(cfg: Config, name: str) -> ModelSpec:
    """MiniMax-Text-01 and M1: seven layers of lightning attention for one of softmax, experts in all."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    if cfg.count("shared_intermediate_size"):
        raise InputError(
            f"{cfg.where}: shared experts are not covered", value=cfg.get("shared_intermediate_size")
        )
    position = rotary(cfg, sizes.head_dim, dim=cfg.optional_size("rotary_dim"))
    mixers: dict[bool, Mixer] = {True: sizes.attention(position), False: lightning_attention(sizes)}
    experts = mixture(
        hidden=sizes.hidden,
        experts=cfg.size("num_local_experts"),
        top_k=cfg.size("num_experts_per_tok"),
        expert=sizes.gated(cfg, prefix="block_sparse_moe.experts.{e}", names=("w1", "w3", "w2")),
        router_source="block_sparse_moe.gate",
    )
    norms = pre_norms(sizes.hidden, eps=eps)
    spec = decoder(
        cfg,
        name,
        layers=[Layer((mixers[full],), experts, norms) for full in _full_layers(cfg, sizes.layers)],
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
    )
    return with_notes(spec, cfg)


def _sparse_attention(cfg: Config, sizes: Sizes, base: Attention, *, eps: float) -> Attention:
    """The layer with an indexer: its keys are cached, and a query attends to the blocks it picks."""
    options = cfg.section("sparse_attention_config") or Config(
        {}, where=f"{cfg.where}: sparse_attention_config"
    )
    heads = options.size("sparse_num_index_heads", default=cfg.size("index_n_heads", default=4))
    dim = options.size("sparse_index_dim", default=cfg.size("index_head_dim", default=128))
    block = options.size("sparse_block_size", default=cfg.size("index_block_size", default=128))
    blocks = options.size("sparse_topk_blocks", default=cfg.size("index_topk_blocks", default=16))
    own = "self_attn"
    return replace(
        base,
        linears=(
            *base.linears,
            linear("indexer.q_proj", sizes.hidden, heads * dim, f"{own}.index_q_proj", shard="replicated"),
            linear("indexer.k_proj", sizes.hidden, dim, f"{own}.index_k_proj", shard="replicated"),
        ),
        norms=(
            *base.norms,
            norm("indexer.q_norm", dim, f"{own}.index_q_norm", eps=eps, offset=UNIT_OFFSET),
            norm("indexer.k_norm", dim, f"{own}.index_k_norm", eps=eps, offset=UNIT_OFFSET),
        ),
        indexer_heads=heads,
        indexer_key_dim=dim,
        indexer_top_k=block * blocks,
    )


def _m3_experts(cfg: Config, hidden: int) -> MixtureOfExperts:
    own, count = "block_sparse_moe", cfg.size("num_local_experts", "num_experts")
    size = cfg.size("moe_intermediate_size", "intermediate_size")
    shared = cfg.count("shared_intermediate_size", default=3072) * cfg.count("n_shared_experts", default=1)
    return mixture(
        hidden=hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=gated_mlp(
            hidden=hidden,
            intermediate=size,
            activation="swiglu_oai",
            prefix=f"{own}.experts.{{e}}",
            names=("w1", "w3", "w2"),
        ),
        router_source=f"{own}.gate",
        shared=gated_mlp(
            hidden=hidden, intermediate=shared, activation="swiglu_oai", prefix=f"{own}.shared_experts"
        )
        if shared
        else None,
        parameters=(
            Parameter(CORRECTION_BIAS, (count,), f"{own}.{CORRECTION_BIAS}", dtype="fp32", buffer=True),
        ),
    )


def _flags(cfg: Config, layers: int, freq: str, types: str, kinds: tuple[str, str]) -> list[bool] | None:
    """A list of 0 and 1, or a list of kinds, or None where the config has neither."""
    numbers = cfg.numbers(freq, length=layers)
    if numbers is not None:
        return [bool(number) for number in numbers]
    names = cfg.kinds(types, known=kinds, length=layers)
    return None if names is None else [name == kinds[1] for name in names]


def minimax_m3_text(cfg: Config, name: str) -> ModelSpec:
    """The language model of MiniMax-M3: dense layers first, then experts and sparse attention."""
    cfg = with_defaults(cfg, shared_intermediate_size=3072, dense_intermediate_size=12288)
    sizes = read_sizes(cfg, default_head_dim=128)
    hidden, count, eps = sizes.hidden, sizes.layers, cfg.number("rms_norm_eps", default=1e-6)
    options = cfg.section("sparse_attention_config") or Config({}, where=cfg.where)
    kinds = ("full_attention", "minimax_m3_sparse")
    chosen = _flags(options, count, "sparse_attention_freq", "", kinds)
    if chosen is None:
        chosen = _flags(cfg, count, "", "layer_types", kinds) or [False] * count
    sparse = _flags(cfg, count, "moe_layer_freq", "mlp_layer_types", ("dense", "sparse")) or [True] * count
    full = sizes.attention(
        rotary(cfg, sizes.head_dim, theta=5e6, dim=cfg.size("rotary_dim", default=64)),
        norms=query_key_norms(sizes, eps=eps, offset=UNIT_OFFSET),
    )
    mixers = {False: full, True: _sparse_attention(cfg, sizes, full, eps=eps)}
    dense = gated_mlp(
        hidden=hidden, intermediate=cfg.size("dense_intermediate_size"), activation="swiglu_oai"
    )
    experts = _m3_experts(cfg, hidden) if any(sparse) else None
    norms = pre_norms(hidden, eps=eps, offset=UNIT_OFFSET)
    note_mtp(cfg, "num_mtp_modules", "num_nextn_predict_layers")
    spec = decoder(
        cfg,
        name,
        layers=[
            Layer((mixers[picks],), experts if has_experts else dense, norms)
            for picks, has_experts in zip(chosen, sparse, strict=True)
        ],
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps, offset=UNIT_OFFSET),
    )
    return with_notes(spec, cfg)


def minimax_m3_vl(cfg: Config, name: str) -> ModelSpec:
    """MiniMax-M3 with its image tower."""
    spec = minimax_m3_text(text_config(cfg), name)
    tower = cfg.section("vision_config")
    components: list[Component] = []
    if tower is not None:
        tower = with_defaults(tower, patch_size=14, temporal_patch_size=2, spatial_merge_size=2)
        hidden, text, width = (
            tower.size("hidden_size"),
            spec.hidden_size,
            cfg.size("projector_hidden_size", default=6144),
        )
        images = patches(tower, hidden, bias=False, frames=tower.size("temporal_patch_size")) + layer_norm(
            hidden
        )
        images += tower.layers("num_hidden_layers") * encoder_layer(hidden, tower.size("intermediate_size"))
        merged = text * tower.size("spatial_merge_size") ** 2
        projector = matrix(hidden, width) + matrix(merged, width) + 2 * matrix(width, text)
        components = [
            Component("vision_tower", "vision", images),
            Component("multi_modal_projector", "projector", projector),
        ]
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


ADAPTERS = {
    "minimax": minimax,
    "minimax_text_01": minimax,
    "minimax_m1": minimax,
    "minimax_m3": minimax_m3_text,
    "minimax_m3_vl_text": minimax_m3_text,
    "minimax_m3_vl": minimax_m3_vl,
}
