"""Gemma 3n: four residual streams, a per-layer input, shared caches. Source: its code in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from rooflens.errors import InputError
from rooflens.models.families import audio
from rooflens.models.families.common import decoder, linear, norm
from rooflens.models.families.config import Config
from rooflens.models.families.gemma_layers import (
    Heads,
    gated,
    gemma_attention,
    layer_types,
    per_layer_input,
    sandwich,
    sharing,
)
from rooflens.models.families.nested import text_config, with_defaults, wrapped
from rooflens.models.spec import Component, Layer, Linear, ModelSpec, Norm, Parameter

# MobileNet V5 300M, the only image tower of Gemma 3n, built with timm 1.0 and counted.
MOBILENET_V5_300M = 294_126_912


def _altup(cfg: Config, hidden: int, eps: float) -> tuple[list[Linear], list[Norm], Parameter]:
    """AltUp's predictor and corrector over ``altup_num_inputs`` streams, and the LAuReL low-rank branch."""
    streams, rank = cfg.size("altup_num_inputs"), cfg.size("laurel_rank")
    linears = [
        linear("altup.modality_router", hidden, streams, "altup.modality_router", shard="replicated"),
        linear("altup.prediction_coefs", streams, streams**2, "altup.prediction_coefs", shard="replicated"),
        linear("altup.correction_coefs", streams, streams, "altup.correction_coefs", shard="replicated"),
        linear("laurel.left", hidden, rank, "laurel.linear_left", shard="replicated"),
        linear("laurel.right", rank, hidden, "laurel.linear_right", shard="replicated"),
    ]
    norms = [
        norm("altup.router_norm", hidden, "altup.router_norm", eps=eps),
        norm("laurel.norm", hidden, "laurel.post_laurel_norm", eps=eps),
    ]
    return linears, norms, Parameter("altup.output_scale", (hidden,), "altup.correct_output_scale")


def _intermediate_sizes(cfg: Config, layers: int) -> Sequence[int]:
    sizes = cfg.get("intermediate_size")
    if isinstance(sizes, list):
        return cfg.numbers("intermediate_size", length=layers, least=1) or []
    return [cfg.size("intermediate_size")] * layers


def gemma3n_text(cfg: Config, name: str) -> ModelSpec:
    """The language model of Gemma 3n: four residual streams, a per-layer input, shared caches."""
    cfg = with_defaults(
        cfg,
        vocab_size=262400,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        sliding_window=512,
        vocab_size_per_layer_input=262144,
        hidden_size_per_layer_input=256,
        altup_num_inputs=4,
        num_kv_shared_layers=15,
        laurel_rank=64,
    )
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("rms_norm_eps", default=1e-6)
    heads = Heads(cfg.size("num_attention_heads"), cfg.size("num_key_value_heads"), cfg.size("head_dim"))
    own = per_layer_input(cfg, hidden, count, eps)
    if own is None:
        raise InputError(f"{cfg.where}: Gemma 3n needs hidden_size_per_layer_input", value=0)
    altup_linears, altup_norms, scale = _altup(cfg, hidden, eps)
    layers = [
        Layer(
            (gemma_attention(cfg, hidden, kind, heads, eps=eps, shared=shared),),
            gated(cfg, hidden, size),
            (*sandwich(hidden, eps, own.layer_norm), *altup_norms),
            linears=(*altup_linears, *own.layer_linears),
            parameters=(scale,),
        )
        for kind, shared, size in zip(
            layer_types(cfg, count, every=5),
            sharing(cfg, count),
            _intermediate_sizes(cfg, count),
            strict=True,
        )
    ]
    frame = own.frame()
    for kind in ("altup_projections", "altup_unembed_projections"):
        frame["linears"] += tuple(
            linear(f"{kind}.{i}", hidden, hidden, f"model.{kind}.{i}", shard="replicated")
            for i in range(cfg.size("altup_num_inputs") - 1)
        )
    return decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.norm", eps=eps),
        tied_default=True,
        embedding_scale=sqrt(hidden),
        final_logit_softcap=cfg.number("final_logit_softcapping", default=30.0) or None,
        **frame,
    )


def gemma3n(cfg: Config, name: str) -> ModelSpec:
    """Gemma 3n with its MobileNet and conformer towers."""
    spec = gemma3n_text(text_config(cfg), name)
    components: list[Component] = []
    images, sound = cfg.section("vision_config"), cfg.section("audio_config")
    if images is not None:
        kind = images.text("architecture", default="mobilenetv5_300m_enc")
        if kind != "mobilenetv5_300m_enc":
            raise InputError(
                f"{cfg.where}: the image tower is not known", value=kind, allowed="mobilenetv5_300m_enc"
            )
        components.append(Component("vision_tower", "vision", MOBILENET_V5_300M))
        components.append(_embedder(images, "embed_vision", spec.hidden_size, default=2048))
    if sound is not None:
        components.append(Component("audio_tower", "audio", audio.gemma3n(sound)))
        components.append(_embedder(sound, "embed_audio", spec.hidden_size, default=1536))
    return wrapped(spec, cfg, components=components, model="model.language_model.")


def _embedder(cfg: Config, name: str, text_hidden: int, *, default: int) -> Component:
    """Gemma 3n's own tokens of a tower, two norms, and the projection to the language model's size."""
    width, tokens = cfg.size("hidden_size", default=default), cfg.size("vocab_size", default=128)
    return Component(name, "projector", tokens * width + 2 * width + width * text_hidden)


ADAPTERS = {"gemma3n": gemma3n, "gemma3n_text": gemma3n_text}
