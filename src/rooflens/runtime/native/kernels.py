"""The kernel set whose linears are in C; what C does not do is the CPU set's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rooflens.runtime.kernels.base import PackedLinear, StoredPart, WeightHolding
from rooflens.runtime.kernels.cpu import CpuKernels
from rooflens.runtime.native.formats import GGUF_FORMATS, format_of, takes_columns
from rooflens.runtime.native.layout import MAX_SEGMENTS, Format
from rooflens.runtime.native.library import load
from rooflens.runtime.native.linear import NativeLinear, Part, pack_blocks, pack_rows
from rooflens.runtime.native.memory import Scratch
from rooflens.runtime.native.step import PROMPT_SETS, NativeSteps, most_rows
from rooflens.runtime.native.threads import choose_threads, take

if TYPE_CHECKING:
    from rooflens.runtime.kernels.steps import StepRunner
    from rooflens.runtime.kv_cache import PagedKVCache
    from rooflens.runtime.model import DecoderModel


class NativeKernels(CpuKernels):
    """Linears in tiles, steps of few rows as one call; attention of prompts and the rest by torch."""

    name = "native"
    quantises_wide = True

    def __init__(self, *, instructions: str | None = None, fp32: bool | None = True) -> None:
        """Raises BuildError where the library cannot be had; ``instructions`` names one of its sets.

        ``fp32``: whether plain fp32 weights are taken too; None: where prompts are faster than oneDNN's.
        """
        super().__init__()
        self.library = load(instructions)
        self._fp32 = self.library.instructions in PROMPT_SETS if fp32 is None else fp32
        self._take_threads(None)
        self._scratch = Scratch()
        self._steps = f"one call in C for up to {most_rows(self.library)} tokens, once a model is loaded"

    def expect(self, model_bytes: int) -> None:
        """See ``Kernels.expect``: on a machine of several memory nodes, the threads depend on it."""
        self._take_threads(model_bytes)

    def _take_threads(self, model_bytes: int | None) -> None:
        plan = choose_threads(model_bytes)
        if not self.library.place_threads(plan.places):
            plan = replace(plan, places=(), placing="placed by the system, which has no other way")
        self._plan, self.threads = plan, plan.count
        take(plan)

    def pack(self, weight: Tensor, bias: Tensor | None, *, holding: WeightHolding = "plain") -> PackedLinear:
        """See ``Kernels.pack``. Matrices of types that C does not compute are packed as the CPU set does."""
        form = format_of(holding, weight.dtype) if weight.device.type == "cpu" else None
        if form is None or (form is Format.F32 and not self._fp32):
            return super().pack(weight, bias, holding=holding)
        return self._linear(
            [pack_rows(self.library, weight, form, threads=self.threads, pieces=self._pieces)],
            bias,
            weight.shape[1],
        )

    def keeps(self, kinds: Sequence[str], in_features: int) -> bool:
        """See ``Kernels.keeps``."""
        forms = [GGUF_FORMATS.get(kind) for kind in kinds]
        return len(forms) <= MAX_SEGMENTS and all(
            form is not None and takes_columns(form, in_features) for form in forms
        )

    def pack_stored(
        self, parts: Sequence[StoredPart], bias: Tensor | None, *, in_features: int
    ) -> PackedLinear:
        """See ``Kernels.pack_stored``; neighbours of one format become one part."""
        made: list[Part] = []
        waiting: list[StoredPart] = []
        for index, part in enumerate(parts):
            waiting.append(part)
            if index + 1 == len(parts) or parts[index + 1].kind != part.kind:
                blocks = torch.cat([each.blocks for each in waiting]) if len(waiting) > 1 else part.blocks
                form = GGUF_FORMATS[part.kind]
                made.append(
                    pack_blocks(
                        self.library,
                        blocks,
                        form,
                        columns=in_features,
                        threads=self.threads,
                        pieces=self._pieces,
                    )
                )
                waiting = []
        return self._linear(made, bias, in_features)

    def _linear(self, parts: list[Part], bias: Tensor | None, in_features: int) -> NativeLinear:
        packed = NativeLinear(
            self.library, parts, bias, in_features=in_features, threads=self.threads, scratch=self._scratch
        )
        self._packing[packed.holding] = type(packed).__name__
        return packed

    def steps(self, model: DecoderModel, cache: PagedKVCache) -> StepRunner | None:
        """See ``Kernels.steps``."""
        made = NativeSteps.of(model, cache, self.library, threads=self.threads)
        if isinstance(made, str):
            self._steps = f"module by module: {made}"
            return None
        self._steps = f"one call in C for up to {made.max_rows} tokens, {self.threads} threads"
        return made

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        native = {"native": self.library.describe(), "threads": self._plan.describe(), "step": self._steps}
        told = super().describe()
        told["attention"] = f"in C within a step that is one call, else {told['attention']}"
        return {**told, **native}
