"""Configs within configs: the language model's own section, architecture defaults, checkpoint prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rooflens.errors import InputError
from rooflens.models.families.config import Config
from rooflens.models.spec import Component, Linear, ModelSpec, Norm

# Where multimodal configs keep the language model.
TEXT_SECTIONS = ("text_config", "language_config", "llm_config", "text_model_config")
# Fields of the outer config that hold for the language model too.
INHERITED = ("tie_word_embeddings", "dtype", "torch_dtype", "quantization_config")


def with_defaults(cfg: Config, **defaults: Any) -> Config:
    """The config with the architecture's own defaults for fields that it leaves out, said in a note.

    Only an absent field is filled: an explicit ``null`` means something (DeepSeek's q_lora_rank).
    """
    absent = {name: value for name, value in defaults.items() if name not in cfg.fields}
    if not absent:
        return cfg
    shown = ", ".join(f"{name} = {value}" for name, value in absent.items() if value is not None)
    if shown:
        cfg.note(f"not in {cfg.where}, the architecture's defaults apply: {shown}")
    filled = Config({**absent, **cfg.fields}, where=cfg.where)
    filled.notes = cfg.notes
    return filled


def text_config(cfg: Config, *, required: bool = True) -> Config:
    """The language model's section, wherever it is nested, with what it inherits from around it.

    A config that has no such section is flat: it is itself returned, or refused if ``required``.
    """
    section = cfg.section(*TEXT_SECTIONS)
    if section is None:
        thinker = cfg.section("thinker_config")
        section = thinker.section("text_config") if thinker is not None else None
    if section is None:
        if required:
            raise InputError(f"{cfg.where} has no language model section", allowed=" or ".join(TEXT_SECTIONS))
        return cfg
    fields = dict(section.fields)
    for name in INHERITED:
        if cfg.fields.get(name) is not None and (fields.get(name) is None or name == "tie_word_embeddings"):
            fields[name] = cfg.fields[name]
    merged = Config(fields, where=section.where)
    merged.notes = cfg.notes
    return merged


def language_model(cfg: Config, name: str, model_type: str) -> ModelSpec:
    """The language model that a section describes, read as ``model_type``.

    The section's own model_type may be absent or an alias (``qwen3_vl_text``).
    """
    # Imported here: the registry imports the families.
    from rooflens.models.families.registry import adapter_for

    typed = Config({**cfg.fields, "model_type": model_type}, where=cfg.where)
    typed.notes = cfg.notes
    return adapter_for(model_type)(typed, name)


def _renamed(source: str, model: str, head: str) -> str:
    if source.startswith("model."):
        return model + source.removeprefix("model.")
    if source.startswith("lm_head"):
        return head + source.removeprefix("lm_head")
    return head.removesuffix("lm_head") + source


def rebase(spec: ModelSpec, *, model: str, head: str = "lm_head") -> ModelSpec:
    """The spec with its checkpoint names moved: ``model.`` and ``lm_head`` get other beginnings."""

    def linear(item: Linear) -> Linear:
        parts = tuple(replace(part, source=_renamed(part.source, model, head)) for part in item.parts)
        return replace(item, parts=parts)

    def norm(item: Norm) -> Norm:
        return replace(item, source=_renamed(item.source, model, head))

    return replace(
        spec,
        embedding=spec.embedding
        and replace(spec.embedding, source=_renamed(spec.embedding.source, model, head)),
        tables=tuple(replace(x, source=_renamed(x.source, model, head)) for x in spec.tables),
        head=spec.head and linear(spec.head),
        final_norm=spec.final_norm and norm(spec.final_norm),
        norms=tuple(norm(x) for x in spec.norms),
        linears=tuple(linear(x) for x in spec.linears),
        parameters_extra=tuple(
            replace(x, source=_renamed(x.source, model, head)) for x in spec.parameters_extra
        ),
        layer_prefix=_renamed(spec.layer_prefix, model, head),
    )


def wrapped(
    spec: ModelSpec,
    cfg: Config,
    *,
    components: Iterable[Component],
    model: str = "model.language_model.",
    head: str = "lm_head",
) -> ModelSpec:
    """A language model as part of a multimodal one: the outer model_type, its towers, its names."""
    moved = rebase(spec, model=model, head=head)
    return replace(
        moved,
        model_type=cfg.text("model_type", default=spec.model_type),
        components=(*spec.components, *components),
        notes=tuple(dict.fromkeys((*spec.notes, *cfg.notes))),
    )
