"""A model known by four numbers, for back-of-envelope work."""

from __future__ import annotations

from math import isfinite

from rooflens.errors import InputError
from rooflens.models.formats.base import dtype_name
from rooflens.models.spec import FreeForm, ModelSpec
from rooflens.units import format_count


def _whole(value: float, field: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < least:
        raise InputError(f"{field} is not usable", value=value, allowed=f"a number of {least} or more")
    return round(value)


def dense(
    params: float,
    *,
    active_params: float | None = None,
    kv_bytes_per_token: float = 0,
    weights_bytes: float | None = None,
    dtype: str = "bf16",
) -> ModelSpec:
    """A model of ``params`` parameters whose layers nobody knows.

    ``active_params``: what a token uses (default all). ``kv_bytes_per_token``: cache of one token in all
    layers, in bytes. ``weights_bytes``: all weights as stored (default: params in ``dtype``). Raises
    InputError for sizes that are not positive, or more active parameters than there are.
    """
    total = _whole(params, "params", least=1)
    active = total if active_params is None else _whole(active_params, "active_params", least=1)
    if active > total:
        raise InputError("active_params is more than params", value=active, allowed=f"1 to {total}")
    return ModelSpec(
        name=f"dense {format_count(total)}",
        model_type="dense",
        hidden_size=0,
        vocab_size=0,
        layers=(),
        embedding=None,
        head=None,
        dtype=dtype_name(dtype),
        free_form=FreeForm(
            parameters=total,
            active_parameters=active,
            kv_bytes_per_token=_whole(kv_bytes_per_token, "kv_bytes_per_token", least=0),
            weights_bytes=None if weights_bytes is None else _whole(weights_bytes, "weights_bytes", least=1),
        ),
        evidence={"parameters": "given", "weights": "given", "kv_cache": "given"},
    )
