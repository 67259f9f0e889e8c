"""Tensors of a GGUF file under the names of the spec, expanded to the compute type."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rooflens.errors import UnsupportedError
from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.file_input import quoted
from rooflens.models.spec import Attention, ModelSpec
from rooflens.runtime.report import LoadReport
from rooflens.runtime.tensor_source import CheckpointSource

_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INSIDE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
#: Gemma 2 and 3 have norms on both sides of both blocks, and other names for them.
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
#: Architectures whose q and k rows llama.cpp stores with the two halves of each head interleaved.
_INTERLEAVED = ("llama",)
#: Architectures whose norm weights are stored with their offset added.
_OFFSET_ADDED = ("gemma", "gemma2", "gemma3")
_FLOATS = ("F32", "F16", "BF16")


class GgufSource(CheckpointSource):
    """A GGUF file's tensors."""

    def __init__(self, checkpoint: Checkpoint, directory: Path, report: LoadReport, spec: ModelSpec) -> None:
        super().__init__(checkpoint, directory, report)
        self._architecture = checkpoint.metadata["general.architecture"]
        self.norms_include_offset = self._architecture in _OFFSET_ADDED
        self._names = _INSIDE | (_SANDWICH if self._architecture in ("gemma2", "gemma3") else {})
        mixer = spec.layers[0].mixers[0]
        assert isinstance(mixer, Attention)
        self._heads = {"attn_q": mixer.heads, "attn_k": mixer.kv_heads}

    def stored_name(self, name: str) -> str:
        """See ``CheckpointSource.stored_name``."""
        module, _, kind = name.rpartition(".")
        match = _LAYER.fullmatch(module)
        if match is None:
            return f"{_OUTSIDE.get(module, module)}.{kind}"
        return f"blk.{match[1]}.{self._names.get(match[2], match[2])}.{kind}"

    def fill(self, info: TensorInfo, target: Tensor) -> None:
        """See ``CheckpointSource.fill``: expanded some rows at a time, so that fp32 never stands whole."""
        if info.dtype in _FLOATS:
            super().fill(info, target)
        else:
            self._expand(info, target)
            self.report.dequantized[info.dtype] += 1
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
