"""Checkpoints, read from their own headers: exact tensors and bytes, without reading a weight.

Knows files and formats, and nothing of model families. The names below are imported when first used: what
only needs a table of types does not pay for the readers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflens.models.checkpoint.gguf import read_gguf
    from rooflens.models.checkpoint.gguf_header import GGUFArray
    from rooflens.models.checkpoint.hub import HubRepo, open_hub_checkpoint
    from rooflens.models.checkpoint.source import open_checkpoint
    from rooflens.models.checkpoint.tensor import Checkpoint, CheckpointFile, TensorInfo

__all__ = [
    "Checkpoint",
    "CheckpointFile",
    "GGUFArray",
    "HubRepo",
    "TensorInfo",
    "open_checkpoint",
    "open_hub_checkpoint",
    "read_gguf",
]

_HOMES = {
    "Checkpoint": "tensor",
    "CheckpointFile": "tensor",
    "GGUFArray": "gguf_header",
    "HubRepo": "hub",
    "TensorInfo": "tensor",
    "open_checkpoint": "source",
    "open_hub_checkpoint": "hub",
    "read_gguf": "gguf",
}


def __getattr__(name: str) -> Any:
    """The named export, from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
