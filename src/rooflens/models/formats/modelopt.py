"""NVIDIA ModelOpt: one algorithm for the model or one per module, and wildcards for what is excluded.

The config stands in ``hf_quant_config.json`` or, newer, in the model's own config; a checkpoint that has
both is read from both. Source: ModelOpt's export code and the loader of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats import layouts
from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.compressed_tensors import kv_cache_scheme
from rooflens.models.formats.kv import kv_format
from rooflens.models.formats.matching import ByModule, Patterns, pattern_list
from rooflens.models.formats.quantization import Quantization, blocks_except
from rooflens.models.formats.rewrite import Matrix

MIXED = "MIXED_PRECISION"
_AWQ_GROUP = 128


def _with_pre_scale(layout: WeightFormat) -> WeightFormat:
    """AWQ's pre_quant_scale: one 16-bit factor per input feature."""
    return replace(layout, column_bits=layouts.HALF)


_ALGORITHMS: dict[str, Callable[[int | None], WeightFormat]] = {
    "FP8": lambda _: layouts.fp8_tensor(static_activations=True),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda _: layouts.fp8_channel(),
    "FP8_PB_WO": lambda _: layouts.fp8_block(activations=False),
    "MXFP8": lambda _: layouts.mxfp8(),
    "NVFP4": lambda group: layouts.nvfp4(group or layouts.NVFP4_GROUP),
    "NVFP4_AWQ": lambda group: _with_pre_scale(layouts.nvfp4(group or layouts.NVFP4_GROUP)),
    "W4A16_NVFP4": lambda group: layouts.nvfp4(group or layouts.NVFP4_GROUP, activations=False),
    "W4A8_NVFP4_FP8": lambda group: replace(layouts.nvfp4(group or layouts.NVFP4_GROUP), compute_dtype="fp8"),
    "W4A8_MXFP4_FP8": lambda _: replace(layouts.mxfp4(), compute_dtype="fp8"),
    "W4A16_AWQ": lambda group: _with_pre_scale(layouts.packed_int(4, group or _AWQ_GROUP)),
    "W4A8_AWQ": lambda group: _with_pre_scale(
        layouts.packed_int(4, group or _AWQ_GROUP, compute_dtype="fp8")
    ),
    "W8A16": lambda _: layouts.int8_channel(),
    "W8A8_SQ_PER_CHANNEL": lambda _: layouts.int8_channel(activations=True),
}
_ALIASES = {"INT4_AWQ": "W4A16_AWQ", "INT8_WO": "W8A16", "INT8_SQ": "W8A8_SQ_PER_CHANNEL"}


def _layout(cfg: Config) -> WeightFormat:
    name = cfg.text("quant_algo", default="").upper()
    build = _ALGORITHMS.get(_ALIASES.get(name, name))
    if build is None:
        raise UnsupportedError(
            f"{cfg.where}: quant_algo is not covered",
            value=cfg.get("quant_algo"),
            allowed=", ".join((*_ALGORITHMS, MIXED)),
        )
    return build(cfg.optional_size("group_size"))


def _merged(own: Mapping[str, Any], file: Mapping[str, Any] | None) -> dict[str, Any]:
    """The config's own entry over that of ``hf_quant_config.json``, whose fields stand one level down."""
    inner = (file or {}).get("quantization", file or {})
    if not isinstance(inner, Mapping):
        raise InputError("hf_quant_config.json: quantization is not an object", value=inner)
    flat = own.get("quantization", own)
    return {
        **inner,
        **{k: v for k, v in (flat if isinstance(flat, Mapping) else own).items() if v is not None},
    }


def modelopt(own: Mapping[str, Any], file: Mapping[str, Any] | None, *, where: str) -> Quantization:
    """A ModelOpt checkpoint from its config's entry and its ``hf_quant_config.json``, either may be empty."""
    cfg = Config(_merged(own, file), where=where)
    listed = [
        item
        for name in ("exclude_modules", "ignore")
        for item in pattern_list(cfg.get(name), field=f"{where}: {name}")
    ]
    excluded = Patterns(listed, field=f"{where}: exclude_modules")
    kv = cfg.get("kv_cache_quant_algo")
    kv_scheme = kv_format(str(kv), field=f"{where}: kv_cache_quant_algo").name if kv else kv_cache_scheme(cfg)
    algorithm = cfg.text("quant_algo", default="").upper()
    if algorithm != MIXED:
        return Quantization(
            f"modelopt {algorithm.lower()}",
            blocks_except(_layout(cfg), excluded),
            kv_scheme=kv_scheme,
        )
    layers = cfg.section("quantized_layers")
    if layers is None:
        raise InputError(f"{where}: {MIXED} has no quantized_layers")
    made: dict[str, WeightFormat] = {}
    cached: dict[tuple[Any, Any], WeightFormat] = {}
    for name in layers.fields:
        section = layers.section(name)
        if section is not None:
            key = (section.text("quant_algo", default=""), section.optional_size("group_size"))
            if key not in cached:
                cached[key] = _layout(section)
            made[name] = cached[key]
    named = ByModule(made, field=f"{where}: quantized_layers")

    def choose(matrix: Matrix) -> WeightFormat | None:
        return named.get(matrix)

    return Quantization("modelopt mixed precision", choose, kv_scheme=kv_scheme)
