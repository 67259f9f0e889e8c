"""Running a whole step at once, where a kernel set can: the seam that CUDA graphs and the C step share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kv_cache import PagedKVCache


class StepRunner(Protocol):
    """Runs the steps that it takes instead of the model's modules; bound to one cache."""

    cache: PagedKVCache
    #: Whether its steps can tell the time of every module, so that a profiler need not call them one by one.
    times_modules: bool

    def takes(self, batch: StepBatch) -> bool:
        """Whether ``batch`` is of a kind that it runs."""
        ...

    def run(self, batch: StepBatch) -> Tensor:
        """fp32 logits of the rows to sample; valid until the next run."""
        ...
