"""The paged cache of keys and values: blocks of tokens, per layer, in a float type or in int8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rooflens.analysis.engines.native import BLOCK_TOKENS, INT8_SCALE_BYTES
from rooflens.errors import CapacityError, InputError, UnsupportedError
from rooflens.models.spec import Attention, ModelSpec
from rooflens.runtime.dtypes import CACHE_DTYPES, element_bytes
from rooflens.units import format_bytes

_INT8_MAX = 127.0


@dataclass(frozen=True)
class KVShape:
    """What one layer keeps per token: ``kv_heads`` keys and values of ``head_dim`` features each."""

    kv_heads: int
    head_dim: int


def kv_shapes(spec: ModelSpec) -> tuple[KVShape, ...]:
    """The cache shape of every layer of ``spec``; raises UnsupportedError for other than plain attention."""
    shapes = []
    for index, layer in enumerate(spec.layers):
        mixer = layer.mixers[0]
        if len(layer.mixers) != 1 or not isinstance(mixer, Attention):
            raise UnsupportedError(
                f"layer {index} of {spec.name} is not plain attention", value=mixer.kind.value
            )
        shapes.append(KVShape(mixer.kv_heads, mixer.head_dim))
    return tuple(shapes)


def kv_bytes_per_token(spec: ModelSpec, dtype: str) -> int:
    """Bytes the cache holds per token, all layers, scales of an int8 cache included."""
    return sum(_layer_bytes_per_token(shape, dtype) for shape in kv_shapes(spec))


def _layer_bytes_per_token(shape: KVShape, dtype: str) -> int:
    per_head = shape.head_dim * element_bytes(CACHE_DTYPES[dtype])
    if dtype == "int8":
        per_head += INT8_SCALE_BYTES
    return 2 * shape.kv_heads * per_head


class PagedKVCache:
    """Keys and values of all layers in ``blocks`` blocks of ``block_tokens`` tokens.

    One tensor per layer and side: ``keys[layer]`` is [kv_heads, blocks, block_tokens, head_dim], so that
    the tokens of neighbouring blocks lie one after the other for each head. A *slot* is ``block *
    block_tokens + offset``. Which block belongs to whom is the engine's business: this class only stores
    and reads. Sliding-window layers keep every block too, and read only their window's.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        blocks: int,
        dtype: str,
        compute_dtype: torch.dtype,
        device: torch.device | str = "cpu",
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """``dtype``: fp32, bf16, fp16 or int8; reads give ``compute_dtype``.

        Raises InputError for an unusable size or type and CapacityError where the memory is not there.
        """
        if dtype not in CACHE_DTYPES:
            raise InputError(
                "the KV cache cannot be kept in this type", value=dtype, allowed=", ".join(CACHE_DTYPES)
            )
        if blocks < 1:
            raise InputError("the KV cache needs at least one block", value=blocks)
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.dtype = dtype
        self.compute_dtype = compute_dtype
        self.device = torch.device(device)
        self.shapes = kv_shapes(spec)
        self.bytes_per_block = block_tokens * kv_bytes_per_token(spec, dtype)
        stored = CACHE_DTYPES[dtype]
        try:
            self.keys = [self._empty(shape, stored) for shape in self.shapes]
            self.values = [self._empty(shape, stored) for shape in self.shapes]
            self._key_scales = [self._scales(shape) for shape in self.shapes]
            self._value_scales = [self._scales(shape) for shape in self.shapes]
        except (RuntimeError, MemoryError) as error:
            raise CapacityError(
                "the KV cache does not fit in memory",
                value=format_bytes(self.total_bytes),
                next="ask for fewer blocks or a shorter context",
            ) from error

    def _empty(self, shape: KVShape, stored: torch.dtype) -> Tensor:
        size = (shape.kv_heads, self.blocks, self.block_tokens, shape.head_dim)
        return torch.zeros(size, dtype=stored, device=self.device)

    def _scales(self, shape: KVShape) -> Tensor | None:
        if self.dtype != "int8":
            return None
        size = (shape.kv_heads, self.blocks, self.block_tokens, 1)
        return torch.zeros(size, dtype=torch.float32, device=self.device)

    def scales(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """The scales of an int8 cache's keys and values [kv_heads, blocks, block_tokens, 1]; else None."""
        key, value = self._key_scales[layer], self._value_scales[layer]
        return None if key is None or value is None else (key, value)

    @property
    def tokens(self) -> int:
        """Tokens that fit, over all sequences."""
        return self.blocks * self.block_tokens

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.bytes_per_block

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Store ``key`` and ``value`` [tokens, kv_heads, head_dim] at their slots."""
        sides = (
            (self.keys[layer], self._key_scales[layer], key),
            (self.values[layer], self._value_scales[layer], value),
        )
        for stored, scales, new in sides:
            if scales is not None:
                new, scale = quantize_int8(new)
                scales.flatten(1, 2).index_copy_(1, slot_mapping, scale.transpose(0, 1))
            stored.flatten(1, 2).index_copy_(1, slot_mapping, new.to(stored.dtype).transpose(0, 1))

    def read_blocks(self, layer: int, block_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of ``block_ids`` [n], in their order: [kv_heads, n * block_tokens, head_dim]."""
        return (
            self._gather(self.keys[layer], self._key_scales[layer], block_ids),
            self._gather(self.values[layer], self._value_scales[layer], block_ids),
        )

    def read_run(self, layer: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """As ``read_blocks`` for ``count`` neighbouring blocks: a view where no conversion is needed."""
        return (
            self._slice(self.keys[layer], self._key_scales[layer], first, count),
            self._slice(self.values[layer], self._value_scales[layer], first, count),
        )

    def _gather(self, stored: Tensor, scales: Tensor | None, block_ids: Tensor) -> Tensor:
        taken = stored.index_select(1, block_ids)
        if scales is not None:
            taken = dequantize_int8(taken, scales.index_select(1, block_ids), self.compute_dtype)
        return taken.to(self.compute_dtype).flatten(1, 2)

    def _slice(self, stored: Tensor, scales: Tensor | None, first: int, count: int) -> Tensor:
        run = stored.narrow(1, first, count)
        if scales is not None:
            run = dequantize_int8(run, scales.narrow(1, first, count), self.compute_dtype)
        return run.to(self.compute_dtype).flatten(1, 2)

    def copy_blocks(self, source: Tensor, target: Tensor) -> None:
        """Copy whole blocks, layer by layer: what a sequence needs before it writes into a shared block."""
        for tensors in (self.keys, self.values, self._key_scales, self._value_scales):
            for tensor in tensors:
                if tensor is not None:
                    tensor.index_copy_(1, target, tensor.index_select(1, source))


def quantize_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 values, fp32 scales [..., 1]): symmetric, one scale per token and head, scale = max|x| / 127."""
    wide = values.float()
    scale = wide.abs().amax(dim=-1, keepdim=True) / _INT8_MAX
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(wide / safe).to(torch.int8), scale


def dequantize_int8(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of ``quantize_int8``, in ``dtype``."""
    return (values.float() * scales).to(dtype)
