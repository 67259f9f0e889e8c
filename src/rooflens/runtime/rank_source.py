"""One rank's share of every tensor: which rows and columns of the checkpoint's matrices it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rooflens.errors import UnsupportedError
from rooflens.models.spec import Attention, DenseMlp, Layer, Linear, ModelSpec
from rooflens.runtime.tensor_source import TensorSource


@dataclass(frozen=True)
class Cut:
    """A part of a tensor of ``shape``: these rows, one range after the other, and these columns (None: all).

    Where the rank's tensor has more rows than that, the rest are zeros.
    """

    shape: tuple[int, ...]
    rows: tuple[range, ...]
    columns: range | None = None


class RankSource:
    """A tensor source that hands out one rank's part of what ``whole`` has.

    Each tensor is read whole and cut: what that needs beside the weights is the largest tensor, once.
    """

    def __init__(self, whole: TensorSource, spec: ModelSpec, *, rank: int, size: int) -> None:
        self.whole = whole
        self.norms_include_offset = whole.norms_include_offset
        self._cuts = dict(rank_cuts(spec, rank=rank, size=size))

    def has(self, name: str) -> bool:
        """See ``TensorSource.has``."""
        return self.whole.has(name)

    def leftovers(self) -> list[str]:
        """See ``TensorSource.leftovers``."""
        return self.whole.leftovers()

    def load_into(self, name: str, target: Tensor) -> None:
        """See ``TensorSource.load_into``; ``target`` has the shape of the rank's part."""
        cut = self._cuts.get(name)
        if cut is None:
            self.whole.load_into(name, target)
            return
        full = torch.empty(cut.shape, dtype=target.dtype)
        self.whole.load_into(name, full)
        done = 0
        for rows in cut.rows:
            piece = full[rows.start : rows.stop]
            if cut.columns is not None:
                piece = piece[:, cut.columns.start : cut.columns.stop]
            target[done : done + len(rows)] = piece
            done += len(rows)
        target[done:] = 0


def share(total: int, *, rank: int, size: int) -> range:
    """The rank's part of ``total`` rows in equal parts; the last ranks get fewer where it is not even."""
    part = -(-total // size)
    return range(min(rank * part, total), min((rank + 1) * part, total))


def rank_cuts(spec: ModelSpec, *, rank: int, size: int) -> Iterator[tuple[str, Cut]]:
    """(tensor name, its cut) of every tensor of ``spec`` that is not the same on every rank.

    The same cuts as ``rank_specs`` counts: q, k and v by heads, with a KV head on several ranks where
    there are fewer of them; MLP features; rows of the token table and the head. Inputs of ``o_proj`` and
    ``down_proj`` are cut by columns, and their bias is the first rank's alone, as outputs are summed.
    Raises UnsupportedError for norms that reach over the heads of several ranks.
    """
    vocabulary = share(spec.vocab_size, rank=rank, size=size)
    if spec.embedding is not None:
        shape = (spec.vocab_size, spec.hidden_size)
        yield f"{spec.embedding.source}.weight", Cut(shape, (vocabulary,))
    if spec.head is not None and not spec.tied:
        yield from _by_rows(spec.head, "", [(spec.vocab_size, vocabulary)])
    for index, layer in enumerate(spec.layers):
        yield from _layer_cuts(spec, layer, spec.layer_prefix.format(i=index), rank=rank, size=size)


def _layer_cuts(
    spec: ModelSpec, layer: Layer, prefix: str, *, rank: int, size: int
) -> Iterator[tuple[str, Cut]]:
    mixer, mlp = layer.mixers[0], layer.mlp
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, DenseMlp)
    for norm in mixer.norms:
        if norm.size != mixer.head_dim:
            raise UnsupportedError(
                f"tensor parallelism cannot cut {spec.name} ({spec.model_type}): "
                f"{norm.name} is taken over all heads, which lie on different ranks",
                next="run it on one device",
            )
    heads = share(mixer.heads, rank=rank, size=size)
    # With fewer KV heads than ranks, a rank's query heads all belong to one of them.
    first_kv = rank * mixer.kv_heads // size
    kv_heads = range(first_kv, first_kv + max(1, mixer.kv_heads // size))
    query = (mixer.heads * mixer.head_dim, _scaled(heads, mixer.head_dim))
    key_value = (mixer.kv_heads * mixer.head_dim, _scaled(kv_heads, mixer.head_dim))
    features = (mlp.intermediate_size, share(mlp.intermediate_size, rank=rank, size=size))
    qkv, output = mixer.linears
    up, down = mlp.linears
    yield from _by_rows(qkv, prefix, [query, key_value, key_value])
    yield from _by_columns(output, prefix, rank=rank, size=size)
    yield from _by_rows(up, prefix, [features] * (2 if mlp.gated else 1))
    yield from _by_columns(down, prefix, rank=rank, size=size)


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _by_rows(linear: Linear, prefix: str, sections: list[tuple[int, range]]) -> Iterator[tuple[str, Cut]]:
    """Cut each section (its rows, the rank's of them); the checkpoint may keep several in one tensor."""
    waiting = iter(sections)
    for part in linear.parts:
        start, rows = 0, []
        while start < part.out_features:
            length, own = next(waiting)
            rows.append(range(start + own.start, start + own.stop))
            start += length
        yield f"{prefix}{part.source}.weight", Cut((start, linear.in_features), tuple(rows))
        if linear.bias:
            yield f"{prefix}{part.source}.bias", Cut((start,), tuple(rows))


def _by_columns(linear: Linear, prefix: str, *, rank: int, size: int) -> Iterator[tuple[str, Cut]]:
    columns = share(linear.in_features, rank=rank, size=size)
    for part in linear.parts:
        whole = (range(part.out_features),)
        yield f"{prefix}{part.source}.weight", Cut((part.out_features, linear.in_features), whole, columns)
        if linear.bias:
            yield f"{prefix}{part.source}.bias", Cut((part.out_features,), whole if rank == 0 else ())
