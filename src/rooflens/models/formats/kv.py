"""KV-cache element types: what one cached element costs, scales included.

A cache is kept in the model's compute type unless asked otherwise: the precision of the weights says
nothing about it, and a scheme named in a checkpoint is reported, not applied.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from rooflens.dtypes import DTYPE_ALIASES
from rooflens.errors import UnsupportedError
from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from rooflens.models.formats.base import DTYPE_BITS
from rooflens.models.formats.layouts import BYTE, NVFP4_GROUP
from rooflens.units import BITS_PER_BYTE


@dataclass(frozen=True)
class KvFormat:
    """One cache type: ``bits`` per element, with ``block`` elements sharing a scale (1: none).

    Scales that are kept once a layer, as engines do for fp8, are not counted: a few bytes in all.
    """

    name: str
    bits: Fraction
    block: int
    about: str

    @property
    def element_bytes(self) -> float:
        """Bytes per element: 2, 1, or 1.0625 for Q8_0."""
        return float(self.bits / BITS_PER_BYTE)


# The block types that llama.cpp takes as --cache-type-k and -v.
_GGML_CACHE_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")
_PLAIN_CACHE_TYPES = {
    "fp32": "as stored",
    "bf16": "as stored",
    "fp16": "as stored",
    "fp8": "e4m3 or e5m2, one scale a layer (vLLM, SGLang, TensorRT-LLM)",
    "int8": "one byte, scales not counted",
    "int4": "half a byte, scales not counted",
}
_ALIASES = {
    **{alias: name for alias, name in DTYPE_ALIASES.items() if name in _PLAIN_CACHE_TYPES},
    "fp8_inc": "fp8", "e4m3": "fp8", "e5m2": "fp8", "fp8_e4m3fn": "fp8", "fp8_e5m2fn": "fp8",
    "fp4": "nvfp4", "fp4_e2m1": "nvfp4",
}  # fmt: skip


def _table() -> Iterator[KvFormat]:
    for name, about in _PLAIN_CACHE_TYPES.items():
        yield KvFormat(name, Fraction(DTYPE_BITS[name]), 1, about)
    yield KvFormat(
        "nvfp4",
        DTYPE_BITS["fp4"] + Fraction(BYTE, NVFP4_GROUP),
        NVFP4_GROUP,
        f"e2m1 with an fp8 scale per {NVFP4_GROUP} elements",
    )
    for ggml_name in _GGML_CACHE_TYPES:
        entry = GGML_TYPES_BY_NAME[ggml_name]
        bits = Fraction(entry.block_bytes * BITS_PER_BYTE, entry.block_elements)
        yield KvFormat(ggml_name.lower(), bits, entry.block_elements, "blocks as in llama.cpp")


KV_FORMATS: dict[str, KvFormat] = {entry.name: entry for entry in _table()}


@cache
def kv_format(name: str, *, field: str = "kv_dtype") -> KvFormat:
    """The cache type of this name or alias. Raises UnsupportedError naming it and the nearest known ones."""
    wanted = name.strip().lower().removeprefix("torch.")
    wanted = _ALIASES.get(wanted, wanted)
    found = KV_FORMATS.get(wanted)
    if found is None:
        near = difflib.get_close_matches(wanted, KV_FORMATS, n=1)
        raise UnsupportedError(
            f"{field} is not a known KV-cache type",
            value=name,
            allowed=", ".join(KV_FORMATS),
            next=f"did you mean {near[0]}?" if near else None,
        )
    return found


def kv_element_bytes(name: str) -> float:
    """Bytes of one cached element, scales included."""
    return kv_format(name).element_bytes
