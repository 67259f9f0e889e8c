"""From a config's model_type to the adapter that reads it; unknown types are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.spec import ModelSpec

Adapter = Callable[[Config, str], ModelSpec]

# model_type -> module of this package whose ADAPTERS has it; modules are imported when first needed.
FAMILIES: dict[str, str] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    # Latent attention, hybrids, multimodal models.
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseek_v32": "deepseek",
    "deepseek_v4": "deepseek_v4",
    "deepseek_ref": "deepseek_v4",
    "kimi_k2": "deepseek",
}


def adapter_for(model_type: str) -> Adapter:
    """The adapter of ``model_type``; raises UnsupportedError naming it and the nearest known types."""
    module = FAMILIES.get(model_type)
    if module is None:
        near = difflib.get_close_matches(model_type, FAMILIES, n=3)
        raise UnsupportedError(
            f"the architecture '{model_type}' is not covered",
            allowed=f"{len(FAMILIES)} model types, nearest: {', '.join(near)}" if near else None,
            next="give its sizes by hand with --params and --kv-bytes-per-token",
        )
    adapters: Mapping[str, Adapter] = import_module(f"rooflens.models.families.{module}").ADAPTERS
    return adapters[model_type]


def read_spec(fields: Mapping[str, Any], *, name: str, where: str = "config.json") -> ModelSpec:
    """Build the ModelSpec that a config.json describes.

    Never runs code of the checkpoint (``auto_map`` is ignored). Raises InputError for unusable
    fields and UnsupportedError for an architecture that is not covered.
    """
    cfg = Config(fields, where=where)
    model_type = cfg.text("model_type", default="")
    if not model_type:
        raise InputError(f"{where} has no model_type", allowed="the config.json of a language model")
    return adapter_for(model_type)(cfg, name)
