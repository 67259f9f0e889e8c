"""Decode steps with fixed places for everything they read, so that CUDA can replay them as one graph.

A decode of few sequences is hundreds of kernels of some microseconds each, and launching them takes longer
than running them. Captured once per shape, they are launched together. Shapes are few: sequences and
blocks per sequence are rounded up to powers of two. The sequences added that way repeat the last real one:
they write the same values to the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rooflens.models.spec import Attention
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.kernels.paged_attention import AttentionPlan, Padded
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.model import DecoderModel

#: More sequences than this are compute enough to hide their launches.
MAX_SEQUENCES = 64
#: Runs before a capture, so that libraries have chosen their kernels and taken their memory.
_WARM_UPS = 2


@dataclass
class _Captured:
    """One shape: the batch whose tensors are overwritten before each run, and what it computes."""

    batch: StepBatch
    biases: dict[int | None, Tensor]
    graph: torch.cuda.CUDAGraph | None = None
    logits: Tensor | None = None


class DecodeGraphs:
    """Runs steps in which every sequence decodes one token. ``capture`` False runs them without CUDA's
    graphs, which is how tests check everything else."""

    times_modules = False

    def __init__(self, model: DecoderModel, cache: PagedKVCache, *, capture: bool = True) -> None:
        self.model = model
        self.cache = cache
        self.capture = capture
        self._shapes: dict[tuple[int, int], _Captured] = {}
        # A table that grows moves, and a captured graph would go on reading where it was.
        model.prepare_positions(cache.device)
        self._windows = {
            mixer.window
            for layer in model.spec.layers
            for mixer in layer.mixers
            if isinstance(mixer, Attention)
        }

    def takes(self, batch: StepBatch) -> bool:
        """Whether ``batch`` is of this kind: one token for each sequence, every row sampled."""
        sequences = len(batch.query_lengths)
        return (
            0 < sequences <= MAX_SEQUENCES
            and batch.tokens == sequences
            and batch.sample_rows.shape[0] == sequences
        )

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> Tensor:
        """Logits [sequences, vocabulary] of ``batch``; valid until the next run."""
        sequences, blocks = batch.block_tables.shape
        shape = (_round_up(sequences), _round_up(blocks))
        captured = self._shapes.get(shape)
        if captured is None:
            captured = self._shapes[shape] = self._prepare(*shape)
        self._fill(captured, batch)
        if not self.capture:
            logits: Tensor = self.model(captured.batch, self.cache)
            return logits[:sequences]
        if captured.graph is None:
            self._record(captured)
        assert captured.graph is not None
        assert captured.logits is not None
        captured.graph.replay()
        return captured.logits[:sequences]

    def _prepare(self, sequences: int, blocks: int) -> _Captured:
        device, width = self.cache.device, blocks * self.cache.block_tokens

        def places(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int64, device=device)

        tables = places(sequences, blocks)
        biases = {
            window: torch.zeros((sequences, 1, 1, width), dtype=self.model.dtype, device=device)
            for window in self._windows
        }
        rows = torch.arange(sequences, device=device)
        batch = StepBatch(
            token_ids=places(sequences),
            positions=places(sequences),
            query_lengths=(1,) * sequences,
            sequence_lengths=(1,) * sequences,
            block_tables=tables,
            slot_mapping=places(sequences),
            sample_rows=rows,
            block_tokens=self.cache.block_tokens,
        )
        for window, bias in biases.items():
            padded = Padded(rows, tables.view(-1), sequences, bias)
            batch.plans[window] = AttentionPlan((), padded)
        return _Captured(batch, biases)

    def _fill(self, captured: _Captured, batch: StepBatch) -> None:
        fixed, count = captured.batch, batch.tokens
        pairs = (
            (fixed.token_ids, batch.token_ids),
            (fixed.positions, batch.positions),
            (fixed.slot_mapping, batch.slot_mapping),
        )
        for place, values in pairs:
            place[:count] = values
            place[count:] = values[-1]
        width = batch.block_tables.shape[1]
        fixed.block_tables.zero_()
        fixed.block_tables[:count, :width] = batch.block_tables
        fixed.block_tables[count:, :width] = batch.block_tables[-1]
        last = fixed.positions[:, None]
        for window, bias in captured.biases.items():
            position = torch.arange(bias.shape[-1], device=bias.device)
            hidden = position > last
            if window is not None:
                hidden |= position <= last - window
            bias.zero_()
            bias.masked_fill_(hidden[:, None, None, :], float("-inf"))

    def _record(self, captured: _Captured) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self.model(captured.batch, self.cache)
        torch.cuda.current_stream().wait_stream(stream)
        captured.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured.graph):
            captured.logits = self.model(captured.batch, self.cache)


def _round_up(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
