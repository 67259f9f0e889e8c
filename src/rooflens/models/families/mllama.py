"""Llama 3.2 Vision: layers of cross-attention to image tokens between the layers of Llama 3.1."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import decoder, linear, norm, rotary, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.nested import text_config, with_defaults, wrapped
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes
from rooflens.models.families.vision import encoder_layer, layer_norm, matrix, patches, side
from rooflens.models.spec import Attention, Component, Layer, Linear, ModelSpec, Parameter, Part

# Rows of the token table beyond the vocabulary: the image token and its reserve.
_EXTRA_ROWS = 8
_ASPECT_RATIOS = 8
TOWER_SIZES = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_global_layers": 8,
    "intermediate_size": 5120,
    "vision_output_dim": 7680,
    "image_size": 448,
    "patch_size": 14,
    "max_num_tiles": 4,
}


def _cross_attention(sizes: Sizes, *, tokens: int, eps: float) -> Attention:
    """Attention to the image: keys and values come from its tokens, once, and do not grow with the text."""
    base = sizes.attention(None, prefix="cross_attn")
    own, rows = "cross_attn", sizes.kv_heads * sizes.head_dim
    return replace(
        base,
        linears=(
            linear("q_proj", sizes.hidden, sizes.heads * sizes.head_dim, f"{own}.q_proj"),
            Linear("kv_proj", sizes.hidden, (Part(f"{own}.k_proj", rows), Part(f"{own}.v_proj", rows))),
            base.linears[1],
        ),
        norms=query_key_norms(sizes, eps=eps, sources=(f"{own}.q_norm", f"{own}.k_norm")),
        causal=False,
        cross_tokens=tokens,
    )


def image_tokens(tower: Config) -> int:
    """Tokens of one image at its most tiles, each of its patches and one class token."""
    side_patches = side(tower, "image_size") // side(tower, "patch_size")
    return tower.size("max_num_tiles") * (side_patches**2 + 1)


def vision_tower(cfg: Config) -> int:
    """Local and gated global layers; positions by patch, by tile and by aspect ratio."""
    hidden, wide, tiles = cfg.size("hidden_size"), cfg.size("intermediate_size"), cfg.size("max_num_tiles")
    ratios = len(cfg.items("supported_aspect_ratios") or range(_ASPECT_RATIOS)) + 1
    per_tile = (side(cfg, "image_size") // side(cfg, "patch_size")) ** 2 + 1
    layer = encoder_layer(hidden, wide) - 4 * hidden  # no biases in the attention
    count = cfg.layers("num_hidden_layers") + cfg.count("num_global_layers")
    tower = patches(cfg, hidden, bias=False) + hidden + 2 * layer_norm(hidden)
    tower += count * layer + 2 * cfg.count("num_global_layers")
    tower += 1 + per_tile * hidden + ratios * tiles * per_tile * hidden
    return tower + 2 * (ratios * tiles * hidden + 1)


def mllama_text(cfg: Config, name: str, *, tokens: int) -> ModelSpec:
    """The language model, with ``tokens`` image tokens in every cross-attention layer's cache."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    crossing = set(cfg.numbers("cross_attention_layers") or (3, 8, 13, 18, 23, 28, 33, 38))
    norms, mlp = pre_norms(sizes.hidden, eps=eps), sizes.gated(cfg)
    own = Layer((sizes.attention(rotary(cfg, sizes.head_dim, theta=500000.0)),), mlp, norms)
    gates = (
        Parameter("attention_gate", (1,), "cross_attn_attn_gate"),
        Parameter("mlp_gate", (1,), "cross_attn_mlp_gate"),
    )
    across = Layer((_cross_attention(sizes, tokens=tokens, eps=eps),), mlp, norms, parameters=gates)
    spec = decoder(
        cfg,
        name,
        layers=[across if index in crossing else own for index in range(sizes.layers)],
        final_norm=norm("final_norm", sizes.hidden, "model.norm", eps=eps),
    )
    if spec.embedding is not None:
        table = replace(spec.embedding, rows=spec.embedding.rows + _EXTRA_ROWS)
        spec = replace(spec, embedding=table)
    return with_notes(spec, cfg)


def mllama(cfg: Config, name: str) -> ModelSpec:
    """Llama 3.2 11B and 90B Vision."""
    section = cfg.section("vision_config") or Config({}, where=f"{cfg.where}: vision_config")
    section.notes = cfg.notes
    tower = with_defaults(section, **TOWER_SIZES)
    tokens = image_tokens(tower)
    cfg.note(
        f"cross-attention layers hold one image of {tokens} tokens per sequence, and nothing of the text"
    )
    spec = mllama_text(text_config(cfg), name, tokens=tokens)
    components = (
        Component("vision_model", "vision", vision_tower(tower)),
        Component(
            "multi_modal_projector", "projector", matrix(tower.size("vision_output_dim"), spec.hidden_size)
        ),
    )
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


ADAPTERS = {"mllama": mllama}
