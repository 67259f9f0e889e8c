"""A linear whose weight lies in tiles: one format for all rows, or one for each of a few parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rooflens.models.formats.base import WeightFormat
from rooflens.runtime.kernels.base import PackedLinear
from rooflens.runtime.native.formats import name_of, weight_format
from rooflens.runtime.native.layout import (
    GROUP,
    MAX_SEGMENTS,
    TILE,
    X_BF16,
    X_F32,
    Format,
    Linear,
    Segment,
)
from rooflens.runtime.native.library import NativeLibrary
from rooflens.runtime.native.memory import Pieces, Scratch

X_TYPES = {torch.float32: X_F32, torch.bfloat16: X_BF16}


@dataclass(frozen=True)
class Part:
    """Some rows of a matrix, packed."""

    form: Format
    rows: int
    tiles: Tensor


class NativeLinear(PackedLinear):
    """Rows of ``parts`` one below the other, and a bias.

    ``nbytes`` leaves out what fills the last tile of a part: fewer than 16 rows.
    """

    gives_rows = True

    def __init__(
        self,
        library: NativeLibrary,
        parts: Sequence[Part],
        bias: Tensor | None,
        *,
        in_features: int,
        threads: int,
        scratch: Scratch,
    ) -> None:
        assert 0 < len(parts) <= MAX_SEGMENTS
        self.library = library
        self.parts = tuple(parts)
        self.threads = threads
        self.in_features = in_features
        self.out_features = sum(part.rows for part in parts)
        self.holding = " and ".join(dict.fromkeys(name_of(part.form) for part in parts))
        self.nbytes = sum(weight_format(part.form).matrix_bytes(part.rows, in_features) for part in parts)
        self.nbytes += bias.nbytes if bias is not None else 0
        self.bias = bias
        self._scratch = scratch
        self._wide_bias = None if bias is None else bias.float().contiguous()
        self.c = Linear(
            bias=None if self._wide_bias is None else self._wide_bias.data_ptr(),
            in_features=in_features,
            padded=padded(in_features),
            out_features=self.out_features,
            segments=len(parts),
        )
        first = 0
        for index, part in enumerate(parts):
            tiles = -(-part.rows // TILE)
            self.c.segment[index] = Segment(
                data=part.tiles.data_ptr(),
                tile_bytes=library.tile_bytes(part.form, padded(in_features)),
                format=part.form,
                first=first,
                rows=part.rows,
                tiles=tiles,
            )
            first += part.rows

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``."""
        return tuple((part.rows, weight_format(part.form)) for part in self.parts)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        rows, threads = x.shape[0], self.threads
        x = x if x.stride(-1) == 1 else x.contiguous()
        y = x.new_empty(rows, self.out_features)
        kind = X_TYPES[x.dtype]
        workspace = self._scratch.of(self.library.apply_bytes(self.c, rows, threads))
        self.library.apply(
            self.c, x.data_ptr(), kind, x.stride(0), y.data_ptr(), kind, self.out_features, rows, threads,
            workspace,
        )  # fmt: skip
        return y

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """See ``PackedLinear.rows``."""
        ids = ids.contiguous()
        found = torch.empty(ids.shape[0], self.in_features, dtype=dtype)
        self.library.rows(
            self.c,
            ids.data_ptr(),
            ids.shape[0],
            found.data_ptr(),
            X_TYPES[dtype],
            self.in_features,
            self.threads,
        )
        return found


def padded(features: int) -> int:
    """``features`` rounded up to whole groups."""
    return -(-features // GROUP) * GROUP


def pack_rows(
    library: NativeLibrary, weight: Tensor, form: Format, *, threads: int, pieces: Pieces | None = None
) -> Part:
    """``weight`` [rows, in_features] in fp32 or bf16, quantised where ``form`` is; from ``pieces``."""
    weight = weight if weight.stride(-1) == 1 else weight.contiguous()
    rows, columns = weight.shape
    tiles = (pieces or Pieces()).take(_bytes(library, form, rows, columns))
    library.pack(
        form, weight.data_ptr(), X_TYPES[weight.dtype], weight.stride(0), rows, columns, padded(columns),
        tiles.data_ptr(), threads,
    )  # fmt: skip
    return Part(form, rows, tiles)


def pack_blocks(
    library: NativeLibrary,
    blocks: Tensor,
    form: Format,
    *,
    columns: int,
    threads: int,
    pieces: Pieces | None = None,
) -> Part:
    """Rows of ggml's blocks, ``blocks`` [rows, bytes of a row], as they are; from ``pieces``."""
    tiles = (pieces or Pieces()).take(_bytes(library, form, blocks.shape[0], columns))
    blocks = blocks.contiguous()
    refused = library.pack_ggml(form, blocks.data_ptr(), blocks.shape[0], columns, tiles.data_ptr(), threads)
    assert not refused, form
    return Part(form, blocks.shape[0], tiles)


def _bytes(library: NativeLibrary, form: Format, rows: int, columns: int) -> int:
    size: int = -(-rows // TILE) * library.tile_bytes(form, padded(columns))
    return size
