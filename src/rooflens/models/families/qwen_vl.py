"""Qwen's and GLM's multimodal models: their language models with image (and audio) towers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rooflens.models.families import audio
from rooflens.models.families.config import Config
from rooflens.models.families.nested import language_model, text_config, with_defaults, wrapped
from rooflens.models.families.vision import glm4v as glm4v_tower
from rooflens.models.families.vision import glm_ocr as glm_ocr_tower
from rooflens.models.families.vision import matrix
from rooflens.models.families.vision import qwen2_5_vl as qwen2_5_tower
from rooflens.models.families.vision import qwen2_vl as qwen2_tower
from rooflens.models.families.vision import qwen3_vl as qwen3_tower
from rooflens.models.spec import Component, Layer, MixtureOfExperts, ModelSpec, Part

Tower = Callable[[Config], tuple[int, int]]


def towers(cfg: Config, count: Tower) -> list[Component]:
    """The image tower and its projector, or nothing where the config has no ``vision_config``."""
    section = cfg.section("vision_config")
    if section is None:
        cfg.note("no vision_config: the language model alone is counted")
        return []
    tower, projector = count(section)
    return [Component("visual", "vision", tower), Component("visual.merger", "projector", projector)]


def _adapter(model_type: str, tower: Tower, *, model: str) -> Callable[[Config, str], ModelSpec]:
    def read(cfg: Config, name: str) -> ModelSpec:
        spec = language_model(text_config(cfg, required=False), name, model_type)
        return wrapped(spec, cfg, components=towers(cfg, tower), model=model)

    return read


def _stacked(layer: Layer) -> Layer:
    """The layer with its experts named as one tensor, [experts, in, out], gate and up side by side."""
    if not isinstance(layer.mlp, MixtureOfExperts):
        return layer
    expert = layer.mlp.expert
    gate_up, down = expert.linears
    own = "mlp.experts"
    linears = (
        replace(gate_up, parts=(Part(f"{own}.gate_up_proj", gate_up.out_features),), transposed=True),
        replace(down, parts=(Part(f"{own}.down_proj", down.out_features),), transposed=True),
    )
    return replace(layer, mlp=replace(layer.mlp, expert=replace(expert, linears=linears)))


def qwen3_vl_moe(cfg: Config, name: str) -> ModelSpec:
    """Qwen3-VL with experts, published as one tensor per layer unless a quantising tool took them apart."""
    spec = _adapter("qwen3_moe", qwen3_tower, model="model.language_model.")(cfg, name)
    if cfg.get("quantization_config") is not None:
        return spec
    return replace(spec, layers=tuple(_stacked(layer) for layer in spec.layers))


def _omni(
    model_type: str, images: Tower, sound: Callable[[Config], int]
) -> Callable[[Config, str], ModelSpec]:
    """The adapter of an Omni model: its thinker, which reads and writes text; speech output is left out."""

    def read(cfg: Config, name: str) -> ModelSpec:
        nested = cfg.section("thinker_config")
        thinker = nested or cfg
        spec = language_model(text_config(thinker, required=False), name, model_type)
        components = towers(thinker, images)
        section = thinker.section("audio_config")
        if section is not None:
            components.append(Component("audio_tower", "audio", sound(section)))
        if cfg.section("talker_config") is not None:
            cfg.note("the talker and the waveform decoder, which make speech, are not counted")
        outer = "thinker." if nested is not None else ""
        return wrapped(spec, cfg, components=components, model=f"{outer}model.", head=f"{outer}lm_head")

    return read


def qwen2_audio(cfg: Config, name: str) -> ModelSpec:
    """Qwen2-Audio: Qwen2 behind a Whisper encoder."""
    spec = language_model(text_config(cfg), name, "qwen2")
    section = cfg.section("audio_config")
    components: list[Component] = []
    if section is not None:
        width = section.size("d_model", default=1280)
        components = [
            Component("audio_tower", "audio", audio.qwen2_audio(section)),
            Component("multi_modal_projector", "projector", matrix(width, spec.hidden_size)),
        ]
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


def glm4v(cfg: Config, name: str) -> ModelSpec:
    """GLM-4.1V: GLM-4 with heads that divide the hidden size."""
    text = text_config(cfg, required=False)
    heads = text.size("num_attention_heads")
    text = Config({"head_dim": text.size("hidden_size") // heads, **text.fields}, where=text.where)
    text.notes = cfg.notes
    spec = language_model(text, name, "glm4")
    return wrapped(spec, cfg, components=towers(cfg, glm4v_tower), model="model.language_model.")


def glm_ocr(cfg: Config, name: str) -> ModelSpec:
    """GLM-OCR: a small GLM-4 without biases, behind a tower of its own."""
    text = text_config(cfg)
    head_dim = text.optional_size("head_dim") or text.size("hidden_size") // text.size("num_attention_heads")
    plain = Config({**text.fields, "head_dim": head_dim, "attention_bias": False}, where=text.where)
    plain.notes = cfg.notes
    spec = language_model(plain, name, "glm4")
    return wrapped(spec, cfg, components=towers(cfg, glm_ocr_tower), model="model.language_model.")


def glm46v(cfg: Config, name: str) -> ModelSpec:
    """GLM-4.6V: the experts of GLM-4.5V, or in the small size its dense layers."""
    inner = text_config(cfg, required=False).text("model_type", default="glm4v_text")
    return glm4v_moe(cfg, name) if "moe" in inner else glm4v(cfg, name)


def voxtral(cfg: Config, name: str) -> ModelSpec:
    """Voxtral: Mistral behind a Whisper encoder, four of its tokens in one vector."""
    text = with_defaults(text_config(cfg), **VOXTRAL_TEXT)
    spec = language_model(text, name, "llama")
    section = cfg.section("audio_config")
    components: list[Component] = []
    if section is not None:
        names = {"hidden_size": "d_model", "intermediate_size": "encoder_ffn_dim"}
        names |= {"num_hidden_layers": "encoder_layers"}
        known = {names.get(key, key): value for key, value in section.fields.items()}
        sound = Config(known, where=section.where)
        wide, text_size = sound.size("encoder_ffn_dim", default=5120), spec.hidden_size
        projector = matrix(wide, text_size, bias=False) + matrix(text_size, text_size, bias=False)
        components = [
            Component("audio_tower", "audio", audio.qwen2_audio(sound)),
            Component("multi_modal_projector", "projector", projector),
        ]
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


# What Voxtral's own code takes for sizes that its language model's section leaves out.
VOXTRAL_TEXT = {
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}

glm4v_moe = _adapter("glm4_moe", glm4v_tower, model="model.language_model.")

ADAPTERS = {
    "qwen2_vl": _adapter("qwen2", qwen2_tower, model="model."),
    "qwen2_5_vl": _adapter("qwen2", qwen2_5_tower, model="model."),
    "qwen3_vl": _adapter("qwen3", qwen3_tower, model="model.language_model."),
    "qwen3_vl_moe": qwen3_vl_moe,
    "qwen2_5_omni": _omni("qwen2", qwen2_5_tower, audio.qwen2_5_omni),
    "qwen2_5_omni_thinker": _omni("qwen2", qwen2_5_tower, audio.qwen2_5_omni),
    "qwen3_omni_moe": _omni("qwen3_moe", qwen3_tower, audio.qwen3_omni),
    "qwen3_omni_moe_thinker": _omni("qwen3_moe", qwen3_tower, audio.qwen3_omni),
    "qwen2_audio": qwen2_audio,
    "glm4v": glm4v,
    "glm4v_moe": glm4v_moe,
    "glm46v": glm46v,
    "glm_ocr": glm_ocr,
    "voxtral": voxtral,
    "qwen3_5": _adapter("qwen3_5_text", qwen3_tower, model="model.language_model."),
    "qwen3_5_moe": _adapter("qwen3_5_moe_text", qwen3_tower, model="model.language_model."),
}
