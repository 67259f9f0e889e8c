"""What the engine hands to the model for one step: ragged tokens of many sequences, and where they live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from rooflens.analysis.engines.native import BLOCK_TOKENS
from rooflens.errors import InputError


@dataclass(frozen=True)
class Chunk:
    """One sequence's share of a step.

    ``token_ids`` (at least one) follow ``start`` tokens whose keys and values are in the cache already;
    ``block_table`` names the sequence's blocks in order and covers ``start + len(token_ids)`` tokens.
    The last ``sample`` rows get logits: 0 while a prompt is unfinished, 1 to go on, k + 1 to check k
    drafted tokens.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: int = 1


@dataclass(frozen=True)
class StepBatch:
    """Prefill chunks and decodes of one step, in the order of ``query_lengths``. T tokens, S sequences.

    token_ids      [T] int64
    positions      [T] int64   position of each token in its sequence, from 0
    query_lengths  S ints      tokens of each sequence in this step
    sequence_lengths S ints    tokens in the cache after this step, this step's included
    block_tables   [S, blocks] int64, rows padded with 0
    slot_mapping   [T] int64   block * block_tokens + offset where the token's key and value go
    sample_rows    [R] int64   rows of the T tokens whose logits are wanted, in order
    """

    token_ids: Tensor
    positions: Tensor
    query_lengths: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    block_tables: Tensor
    slot_mapping: Tensor
    sample_rows: Tensor
    block_tokens: int = BLOCK_TOKENS
    #: What kernels work out once per step and every layer uses again, by a key of theirs.
    plans: dict[object, object] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def build(
        cls,
        chunks: Sequence[Chunk],
        *,
        device: torch.device | str = "cpu",
        block_tokens: int = BLOCK_TOKENS,
    ) -> StepBatch:
        """Lay ``chunks`` out as one step. Raises InputError for a chunk without tokens or blocks."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sample_rows: list[int] = []
        for chunk in chunks:
            count, end = len(chunk.token_ids), chunk.start + len(chunk.token_ids)
            if count == 0 or not 0 <= chunk.sample <= count:
                raise InputError("a chunk needs tokens, and samples at most one row for each", value=count)
            if len(chunk.block_table) * block_tokens < end:
                raise InputError(
                    "a block table is too short for its sequence",
                    value=f"{len(chunk.block_table)} blocks of {block_tokens} for {end} tokens",
                )
            token_ids.extend(chunk.token_ids)
            positions.extend(range(chunk.start, end))
            slots.extend(
                chunk.block_table[position // block_tokens] * block_tokens + position % block_tokens
                for position in range(chunk.start, end)
            )
            sample_rows.extend(range(len(token_ids) - chunk.sample, len(token_ids)))
        width = max((len(chunk.block_table) for chunk in chunks), default=0)
        tables = [[*chunk.block_table, *[0] * (width - len(chunk.block_table))] for chunk in chunks]

        def on_device(values: list[int] | list[list[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            token_ids=on_device(token_ids),
            positions=on_device(positions),
            query_lengths=tuple(len(chunk.token_ids) for chunk in chunks),
            sequence_lengths=tuple(chunk.start + len(chunk.token_ids) for chunk in chunks),
            block_tables=on_device(tables),
            slot_mapping=on_device(slots),
            sample_rows=on_device(sample_rows),
            block_tokens=block_tokens,
        )

    @property
    def tokens(self) -> int:
        """Rows of this step, T."""
        return self.token_ids.shape[0]

    @cached_property
    def query_starts(self) -> tuple[int, ...]:
        """First row of each sequence."""
        starts, row = [], 0
        for length in self.query_lengths:
            starts.append(row)
            row += length
        return tuple(starts)
