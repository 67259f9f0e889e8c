"""Tensors of a GGUF file under the names of the spec, expanded to the compute type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.file_input import quoted
from rooflens.models.headers.gguf_match import match_gguf
from rooflens.models.spec import Attention, ModelSpec
from rooflens.runtime.kernels.base import StoredPart
from rooflens.runtime.report import LoadReport
from rooflens.runtime.tensor_source import CheckpointSource

#: Architectures whose q and k rows llama.cpp stores with the two halves of each head interleaved.
_INTERLEAVED = ("llama",)
#: Architectures whose norm weights are stored with their offset added.
_OFFSET_ADDED = ("gemma", "gemma2", "gemma3")
_ENDINGS = {"matrix": ".weight", "weight": ".weight", "bias": ".bias"}
_FLOATS = ("F32", "F16", "BF16")
#: All of them set: infinite, or not a number.
_FP16_EXPONENT = 0x7C00
#: Where a block of each type that can be kept has its fp16 scales.
SCALE_BYTES = {
    **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0"), range(2)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), range(4)),
    "Q6_K": range(208, 210),
}


class GgufSource(CheckpointSource):
    """A GGUF file's tensors."""

    def __init__(self, checkpoint: Checkpoint, directory: Path, report: LoadReport, spec: ModelSpec) -> None:
        super().__init__(checkpoint, directory, report)
        self._architecture = checkpoint.metadata["general.architecture"]
        self.norms_include_offset = self._architecture in _OFFSET_ADDED
        self._names = dict(_names(spec, checkpoint))
        mixer = spec.layers[0].mixers[0]
        assert isinstance(mixer, Attention)
        self._heads = {"attn_q": mixer.heads, "attn_k": mixer.kv_heads}

    def stored_name(self, name: str) -> str:
        """See ``CheckpointSource.stored_name``."""
        return self._names.get(name, name)

    def kind(self, name: str) -> str:
        """The GGUF type of a tensor, empty for one that is not there."""
        info = self.checkpoint.by_name.get(self.stored_name(name))
        return "" if info is None else info.dtype

    def blocks(self, name: str, shape: tuple[int, ...]) -> StoredPart:
        """A matrix of ``shape`` as the file has it, its rows in the order of the spec.

        Raises what ``load_into`` raises, and InputError where a scale is not finite.
        """
        info = self.find(name, shape)
        raw = torch.empty((shape[0], info.bytes // shape[0]), dtype=torch.uint8)
        self.read(info, 0, raw.numpy().reshape(-1).data)
        self._check_scales(info, raw)
        self._reorder(info, raw)
        return StoredPart(info.dtype, raw)

    @staticmethod
    def _check_scales(info: TensorInfo, raw: Tensor) -> None:
        # Every block has an even number of bytes. By numpy: torch's threads cost more here than they save.
        halves = raw.numpy().view(np.uint16).reshape(-1, GGML_TYPES_BY_NAME[info.dtype].block_bytes // 2)
        places = SCALE_BYTES[info.dtype]
        scales = halves[:, places.start // 2 : places.stop // 2]
        bad = int(np.count_nonzero(scales & _FP16_EXPONENT == _FP16_EXPONENT))
        if bad:
            raise InputError(
                f"tensor {quoted(info.name)} has {bad:,} scales that are not finite",
                next="the checkpoint is damaged: download it again",
            )

    def fill(self, info: TensorInfo, target: Tensor) -> None:
        """See ``CheckpointSource.fill``: expanded some rows at a time, so that fp32 never stands whole."""
        if info.dtype in _FLOATS:
            super().fill(info, target)
        else:
            self._expand(info, target)
            self.report.dequantized[info.dtype] += 1
        self._reorder(info, target)

    def _reorder(self, info: TensorInfo, target: Tensor) -> None:
        part = info.name.split(".")[-2]
        if self._architecture in _INTERLEAVED and part in self._heads:
            self._halve(target, heads=self._heads[part])

    def _expand(self, info: TensorInfo, target: Tensor) -> None:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType[info.dtype]
        for rows, raw in self.pieces(info):
            packed = np.frombuffer(raw, dtype=np.uint8).reshape(rows.stop - rows.start, -1)
            try:
                wide = dequantize(packed, kind)
            except NotImplementedError:
                raise UnsupportedError(
                    f"tensor {quoted(info.name)} is stored in a type that cannot be expanded",
                    value=info.dtype,
                ) from None
            target[rows] = torch.from_numpy(np.ascontiguousarray(wide)).view(target[rows].shape)

    @staticmethod
    def _halve(target: Tensor, *, heads: int) -> None:
        """Undo llama.cpp's order of the rows of a head: pairs of neighbours become two halves."""
        pairs = target.view(heads, -1, 2, *target.shape[1:])
        target.copy_(pairs.transpose(1, 2).reshape(target.shape))


def _names(spec: ModelSpec, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """(the spec's name, the file's) of every tensor that stands for one of the model's, and no more."""
    for holding in match_gguf(spec, checkpoint).holdings:
        if len(holding.slots) == len(holding.tensors) == 1:
            slot = holding.slots[0]
            ending = _ENDINGS.get(slot.kind, "")
            yield slot.source + ending, holding.tensors[0].name
