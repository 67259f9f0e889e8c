"""Run steps as one call into C: decodes, checks of guesses, prompts where C is faster."""

from __future__ import annotations

import ctypes
import time
from array import array

import torch
from torch import Tensor

from rooflens.errors import RooflensError
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.model import DecoderModel
from rooflens.runtime.native import layout
from rooflens.runtime.native.library import NativeLibrary
from rooflens.runtime.native.memory import aligned, use_huge_pages
from rooflens.runtime.native.program import Buffers, NotInC, build
from rooflens.runtime.profile.modules import ModuleTimes

#: Rows of a step whose logits are made: rows of a large vocabulary are large.
MAX_SAMPLES = 64
#: Tokens of a step, where prompts are left to torch's attention and where they are not.
FEW_ROWS, PROMPT_ROWS = 64, 512
#: Instruction sets whose multiplies and prompt attention are faster than torch's: measured, docs/runtime.md.
PROMPT_SETS = ("avx512_bf16", "avx512", "avx2_vnni", "avx2")


def most_rows(library: NativeLibrary) -> int:
    """Tokens of the largest step that is one call."""
    return PROMPT_ROWS if library.instructions in PROMPT_SETS else FEW_ROWS


class NativeSteps:
    """The steps of ``model`` over ``cache`` of up to ``max_rows`` tokens."""

    times_modules = True

    def __init__(
        self,
        model: DecoderModel,
        cache: PagedKVCache,
        library: NativeLibrary,
        *,
        threads: int,
        max_rows: int | None = None,
    ) -> None:
        """Raises NotInC where C does not do something that the model needs."""
        self.model, self.cache, self.library = model, cache, library
        max_rows = max_rows or most_rows(library)
        self.threads, self.max_rows = threads, max_rows
        self._buffers = Buffers(max(threads, max_rows), MAX_SAMPLES)
        program = self._program = build(model, cache, self._buffers)
        self._paths = tuple(dict.fromkeys(program.paths))
        self._called = array("i", [self._paths.index(path) for path in program.paths])
        self._ops = (layout.Op * len(program.ops))(*program.ops)
        self._classes = (layout.AttentionClass * len(program.classes))(
            *(layout.AttentionClass(*each) for each in program.classes)
        )
        self._c_buffers = self._buffers.c()
        self._times = (ctypes.c_double * (len(program.ops) + 1))()
        self.c = layout.Program(
            ops=self._ops,
            buffers=self._c_buffers,
            classes=self._classes,
            cache_blocks=cache.blocks,
            vocabulary=model.spec.vocab_size,
            op_count=len(program.ops),
            buffer_count=len(self._c_buffers),
            class_count=len(program.classes),
            rotations=max(1, len(program.rotations)),
            rotation_stride=program.rotary_dim,
            max_rows=max_rows,
            max_threads=threads,
            max_features=program.max_features,
            max_partial=-(-program.max_partial // layout.TILE) * layout.TILE,
            max_samples=MAX_SAMPLES,
        )
        size = library.workspace(self.c)
        self._workspace = torch.zeros(size + 64, dtype=torch.uint8)
        use_huge_pages(self._workspace)
        self.c.workspace, self.c.workspace_bytes = aligned(self._workspace), size
        self._logits = self._buffers.tensors[self._buffers.get("logits", model.spec.vocab_size, sampled=True)]
        self._pointer = ctypes.byref(self.c)

    @classmethod
    def of(
        cls, model: DecoderModel, cache: PagedKVCache, library: NativeLibrary, *, threads: int
    ) -> NativeSteps | str:
        """The runner, or why there is none."""
        try:
            return cls(model, cache, library, threads=threads)
        except NotInC as reason:
            return str(reason)

    @property
    def bytes(self) -> int:
        """What it holds beside weights and cache."""
        return self._workspace.nbytes + sum(tensor.nbytes for tensor in self._buffers.tensors)

    def takes(self, batch: StepBatch) -> bool:
        """Whether the step is small enough, and on a device whose memory C can read."""
        small = 0 < batch.tokens <= self.max_rows and batch.sample_rows.shape[0] <= MAX_SAMPLES
        return small and batch.token_ids.device.type == "cpu"

    def run(self, batch: StepBatch) -> Tensor:
        """See ``StepRunner.run``."""
        watcher = self.model.watcher
        rows = array("i")
        for index, count in enumerate(batch.query_lengths):
            rows.extend([index] * count)
        samples = batch.sample_rows.shape[0]
        tables = batch.block_tables.contiguous()
        step = layout.Step(
            tokens=batch.token_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            slots=batch.slot_mapping.data_ptr(),
            block_tables=tables.data_ptr(),
            row_sequence=rows.buffer_info()[0],
            sample_rows=batch.sample_rows.data_ptr(),
            times=self._times if watcher is not None else None,
            table_stride=tables.shape[1],
            rows=batch.tokens,
            samples=samples,
            sequences=len(batch.query_lengths),
            threads=self.threads,
        )
        started = time.perf_counter()
        problem = self.library.step_run(self._pointer, ctypes.byref(step))
        if problem:
            raise RooflensError(f"a step cannot be run: {layout.PROBLEMS[problem]} is wrong")
        if watcher is not None:
            watcher(self._module_times(started, time.perf_counter()))
        return self._logits[:samples, : self.model.spec.vocab_size]

    def _module_times(self, started_s: float, ended_s: float) -> ModuleTimes:
        stamps = array("d", self._times)
        return ModuleTimes(started_s, ended_s, self._paths, self._called[:], stamps[:-1], stamps[1:])
