"""A checkpoint's own quantisation: from its config to the format of every matrix of its ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats.apply import with_head_copy
from rooflens.models.formats.compressed_tensors import compressed_tensors
from rooflens.models.formats.methods import METHODS, Reader
from rooflens.models.formats.methods_more import MORE_METHODS
from rooflens.models.formats.modelopt import modelopt
from rooflens.models.formats.quantization import Quantization
from rooflens.models.formats.rewrite import predictor_bytes, rewrite
from rooflens.models.spec import ModelSpec

_WHERE = "quantization_config"
_READERS: dict[str, Reader] = {
    **METHODS,
    **MORE_METHODS,
    "compressed-tensors": compressed_tensors,
    "compressed_tensors": compressed_tensors,
}
# DeepSeek-V4 checkpoints that do not say it keep their experts in four bits.
_EXPERT_DTYPES = {"deepseek_v4": "fp4"}
_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed")


def _method(config: Mapping[str, Any]) -> str:
    """The method's name; some configs leave it out and are known by their fields."""
    name = config.get("quant_method")
    if name is not None:
        return str(name).lower()
    if "quant_algo" in config or "quantization" in config:
        return _MODELOPT[0]
    if "config_groups" in config:
        return "compressed-tensors"
    if "global_quant_config" in config:
        return "quark"
    if "bits" in config and "group_size" in config:
        return "mlx"
    if any(config.get(field) for field in ("load_in_4bit", "load_in_8bit")):
        return "bitsandbytes"
    raise InputError(f"{_WHERE} names no quant_method", value=", ".join(map(str, config)))


def _read(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, expert_dtype: str | None
) -> Quantization:
    if not config and hf_quant_config is not None:
        return modelopt({}, hf_quant_config, where="hf_quant_config.json")
    method = _method(config)
    if method in _MODELOPT:
        return modelopt(config, hf_quant_config, where=_WHERE)
    reader = _READERS.get(method)
    if reader is None:
        raise UnsupportedError(
            f"the quantisation method '{method}' is not covered",
            allowed=", ".join((*_READERS, _MODELOPT[0])),
            next="take the unquantised model and ask for a format with --weights",
        )
    return reader(Config({**config, "expert_dtype": expert_dtype}, where=_WHERE))


def apply_checkpoint_quantization(
    spec: ModelSpec,
    quant_config: Mapping[str, Any] | None,
    *,
    hf_quant_config: Mapping[str, Any] | None = None,
    expert_dtype: str | None = None,
) -> ModelSpec:
    """The spec with its matrices in the formats that its checkpoint stores; parameters stay what they are.

    ``quant_config`` is the config's own entry, ``hf_quant_config`` the file that ModelOpt puts beside it;
    ``expert_dtype`` is DeepSeek-V4's top-level field. The KV scheme is set as ``kv_scheme``, never
    applied. Vision and audio towers stay in the model's own type. Raises UnsupportedError naming a
    method or variant that is not covered, InputError for a config that cannot be used.
    """
    if not quant_config and not hf_quant_config:
        return spec
    expert_dtype = expert_dtype or _EXPERT_DTYPES.get(spec.model_type)
    found = _read(quant_config or {}, hf_quant_config, expert_dtype)
    made = rewrite(spec, found.choose, per_layer=found.per_layer)
    made = with_head_copy(made, found.head_copy)
    components = tuple(
        replace(part, weight_bytes=predictor_bytes(spec, found.choose, part)) if part.kind == "mtp" else part
        for part in made.components
    )
    return replace(
        made,
        components=components,
        quantization=found.name,
        kv_scheme=found.kv_scheme,
        notes=tuple(dict.fromkeys((*made.notes, *found.notes))),
        evidence={**made.evidence, "weights": found.evidence},
    )
