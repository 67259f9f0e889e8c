"""Element types by Rooflens's names and as torch's, and which of them a device computes well."""

from __future__ import annotations

import torch

from rooflens.errors import UnsupportedError
from rooflens.models.formats.base import dtype_name

COMPUTE_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
CACHE_DTYPES: dict[str, torch.dtype] = {**COMPUTE_DTYPES, "int8": torch.int8}


def element_bytes(dtype: torch.dtype) -> int:
    """Bytes of one element."""
    return dtype.itemsize


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a compute dtype; raises UnsupportedError for a type nothing here computes in."""
    spelt = dtype_name(name)
    if spelt not in COMPUTE_DTYPES:
        raise UnsupportedError(
            "the runtime cannot compute in this type", value=name, allowed=", ".join(COMPUTE_DTYPES)
        )
    return COMPUTE_DTYPES[spelt]


def name_of(dtype: torch.dtype) -> str:
    """Rooflens's name of a torch type."""
    return dtype_name(str(dtype))


def bf16_is_fast(device: torch.device) -> bool:
    """Whether ``device`` multiplies bf16 matrices in hardware."""
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return True


def resolve_dtype(asked: str | None, *, stored: str, device: torch.device) -> tuple[str, str | None]:
    """(compute dtype, why it is not the stored one or None) for weights stored as ``stored``."""
    if asked is not None:
        torch_dtype(asked)
        return dtype_name(asked), None
    if stored == "fp32":
        return "fp32", None
    if device.type == "cpu":
        if not bf16_is_fast(device):
            return "fp32", f"{stored} weights are held in fp32: this CPU has no bf16 multiply"
        if stored != "bf16":
            return "bf16", f"{stored} weights are held in bf16: CPUs multiply fp16 many times slower"
    elif stored not in ("fp16", "bf16"):
        return "bf16", f"{stored} weights are held in bf16"
    return (stored if stored in COMPUTE_DTYPES else "bf16"), None
