"""Checkpoints, read from their own headers: exact tensors and bytes, without reading a weight.

Knows files and formats, and nothing of model families.
"""

from __future__ import annotations

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
