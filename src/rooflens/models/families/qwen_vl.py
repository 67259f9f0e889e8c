"""Qwen's multimodal models: a language model of the Qwen families with image (and audio) towers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rooflens.models.families.config import Config
from rooflens.models.families.nested import language_model, text_config, wrapped
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


ADAPTERS = {
    "qwen2_vl": _adapter("qwen2", qwen2_tower, model="model."),
    "qwen2_5_vl": _adapter("qwen2", qwen2_5_tower, model="model."),
    "qwen3_vl": _adapter("qwen3", qwen3_tower, model="model.language_model."),
    "qwen3_vl_moe": qwen3_vl_moe,
    "qwen3_5": _adapter("qwen3_5_text", qwen3_tower, model="model.language_model."),
    "qwen3_5_moe": _adapter("qwen3_5_moe_text", qwen3_tower, model="model.language_model."),
}
