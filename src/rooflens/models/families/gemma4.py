"""Gemma 4: heads of two sizes, keys that are values, shared caches, experts beside a dense feed-forward.

Source: the model's code in Hugging Face transformers.
"""

from __future__ import annotations

from math import sqrt

from rooflens.errors import InputError
from rooflens.models.families import audio, vision
from rooflens.models.families.common import activation, decoder, gated_mlp, mixture, norm
from rooflens.models.families.config import Config
from rooflens.models.families.gemma_layers import (
    FULL,
    Heads,
    gated,
    gemma_attention,
    layer_types,
    per_layer_input,
    sandwich,
    sharing,
)
from rooflens.models.families.nested import text_config, with_defaults, wrapped
from rooflens.models.spec import Component, Layer, MixtureOfExperts, ModelSpec, Parameter


def _heads_by_layer(cfg: Config, types: list[str]) -> list[Heads]:
    """Full layers have heads of their own size and number: ``global_head_dim`` or ``per_layer_config``."""
    heads, kv_heads, head_dim = (
        cfg.size("num_attention_heads"),
        cfg.size("num_key_value_heads"),
        cfg.size("head_dim"),
    )
    overrides = cfg.section("per_layer_config")
    if overrides is not None:
        strange = [index for index in overrides.fields if not index.isdecimal()]
        if strange:
            raise InputError(
                f"{overrides.where} names no layer", value=strange[0], allowed="layer numbers, from 0"
            )
        by_index = {int(index): overrides.section(index) for index in overrides.fields}
        found = []
        for index in range(len(types)):
            own = by_index.get(index)
            found.append(
                Heads(
                    heads,
                    own.size("num_key_value_heads", default=kv_heads) if own else kv_heads,
                    own.size("head_dim", default=head_dim) if own else head_dim,
                )
            )
        return found
    wide = cfg.size("global_head_dim", default=512)
    fewer = kv_heads
    if cfg.flag("attention_k_eq_v", default=False):
        fewer = cfg.size("num_global_key_value_heads", default=kv_heads)
    return [Heads(heads, fewer, wide) if kind == FULL else Heads(heads, kv_heads, head_dim) for kind in types]


def _gemma4_experts(cfg: Config, hidden: int) -> MixtureOfExperts:
    size, experts = cfg.size("moe_intermediate_size", "expert_intermediate_size"), cfg.size("num_experts")
    act = activation(cfg, "hidden_activation", "hidden_act", default="gelu_tanh")
    own = "experts" if cfg.get("quantization_config") is None else "experts.{e}"
    fused = "gate_up_proj" if own == "experts" else None
    return mixture(
        hidden=hidden,
        experts=experts,
        top_k=cfg.size("top_k_experts", "num_experts_per_tok"),
        expert=gated_mlp(hidden=hidden, intermediate=size, activation=act, prefix=own, fused=fused),
        router_source="router.proj",
        parameters=(
            Parameter("router.scale", (hidden,), "router.scale"),
            Parameter("router.per_expert_scale", (experts,), "router.per_expert_scale"),
        ),
    )


def gemma4_text(cfg: Config, name: str) -> ModelSpec:
    """The language model of Gemma 4, dense or with experts beside the dense feed-forward."""
    cfg = with_defaults(
        cfg,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262144,
        sliding_window=512,
        head_dim=256,
    )
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("rms_norm_eps", default=1e-6)
    if cfg.text("use_bidirectional_attention", default="vision") == "all":
        raise InputError(f"{cfg.where}: use_bidirectional_attention is not covered", value="all")
    types = layer_types(cfg, count, every=6)
    if types[-1] != FULL:
        cfg.note("layer_types: the last layer attends to everything, as the model's code makes it")
        types[-1] = FULL
    shares, by_layer = sharing(cfg, count), _heads_by_layer(cfg, types)
    key_is_value = cfg.flag("attention_k_eq_v", default=False)
    sparse = cfg.flag("enable_moe_block", default=False)
    experts = _gemma4_experts(cfg, hidden) if sparse else None
    own = per_layer_input(cfg, hidden, count, eps)
    more = [own.layer_norm] if own else []
    if sparse:
        more += [
            ("post_mlp_norm_1", "post_feedforward_layernorm_1"),
            ("post_mlp_norm_2", "post_feedforward_layernorm_2"),
            ("mlp_norm_2", "pre_feedforward_layernorm_2"),
        ]
    norms = sandwich(hidden, eps, *more)
    doubled = cfg.flag("use_double_wide_mlp", default=False)
    size = cfg.size("intermediate_size")
    layers = [
        Layer(
            (
                gemma_attention(
                    cfg,
                    hidden,
                    kind,
                    heads,
                    eps=eps,
                    shared=shared,
                    value_is_key=key_is_value and kind == FULL,
                ),
            ),
            gated(cfg, hidden, 2 * size if doubled and shared else size),
            norms,
            linears=own.layer_linears if own else (),
            parameters=(Parameter("layer_scalar", (1,), "layer_scalar", buffer=True),),
            extra_mlp=experts,
        )
        for kind, shared, heads in zip(types, shares, by_layer, strict=True)
    ]
    return decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
        tied_default=True,
        embedding_scale=sqrt(hidden),
        final_logit_softcap=cfg.number("final_logit_softcapping", default=0.0) or None,
        **(own.frame() if own else {}),
    )


def gemma4(cfg: Config, name: str) -> ModelSpec:
    """Gemma 4 with whichever towers its config describes."""
    spec = gemma4_text(text_config(cfg), name)
    components: list[Component] = []
    images, sound = cfg.section("vision_config"), cfg.section("audio_config")
    if images is not None:
        width = images.size("hidden_size")
        components.append(Component("vision_tower", "vision", vision.gemma4(images)))
        components.append(Component("embed_vision", "projector", width * spec.hidden_size))
    if sound is not None:
        width = sound.size("output_proj_dims", default=1536)
        components.append(Component("audio_tower", "audio", audio.gemma4(sound)))
        components.append(Component("embed_audio", "projector", width * spec.hidden_size))
    return wrapped(spec, cfg, components=components, model="model.language_model.")


def gemma4_unified_text(cfg: Config, name: str) -> ModelSpec:
    """The language model of Gemma 4 12B: no input of each layer's own, no experts."""
    cfg = with_defaults(cfg, hidden_size_per_layer_input=0, sliding_window=1024)
    return gemma4_text(cfg, name)


def gemma4_unified(cfg: Config, name: str) -> ModelSpec:
    """Gemma 4 12B: patches of pixels and frames of sound go through one matrix each, without a tower."""
    spec = gemma4_unified_text(text_config(cfg), name)
    hidden = spec.hidden_size
    components: list[Component] = []
    images, sound = cfg.section("vision_config"), cfg.section("audio_config")
    if images is not None:
        images = with_defaults(
            images, patch_size=16, pooling_kernel_size=3, mm_embed_dim=3840, mm_posemb_size=1120
        )
        width = images.size("mm_embed_dim")
        side = images.size("patch_size") * images.size("pooling_kernel_size")
        patch = side**2 * vision.COLOURS
        embedder = vision.layer_norm(patch) + vision.matrix(patch, width) + 2 * vision.layer_norm(width)
        embedder += 2 * images.size("mm_posemb_size") * width
        components.append(Component("vision_embedder", "vision", embedder))
        width = images.size("output_proj_dims", default=3840)
        components.append(Component("embed_vision", "projector", width * hidden))
    if sound is not None:
        width = sound.size("audio_embed_dim", "hidden_size", default=640)
        components.append(Component("embed_audio", "projector", width * hidden))
    return wrapped(spec, cfg, components=components, model="model.language_model.")


ADAPTERS = {
    "gemma4": gemma4,
    "gemma4_text": gemma4_text,
    "gemma4_unified": gemma4_unified,
    "gemma4_unified_text": gemma4_unified_text,
}
