"""Time per module of a model, under the names of the predicted operators."""

from __future__ import annotations

import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rooflens.runtime.engine.backend import synchronize

_LAYER_NUMBER = re.compile(r"\.\d+\.")
_CALIBRATION_CALLS = 2000


def operator_name(path: str) -> str:
    """``layers.3.mlp.down_proj`` as the prediction has it: ``layers.{i}.mlp.down_proj``."""
    return _LAYER_NUMBER.sub(".{i}.", path)


def leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of every module without children: where the work is done."""
    return ((path, module) for path, module in model.named_modules() if path and not any(module.children()))


@dataclass(frozen=True)
class ModuleTimes:
    """One forward pass: every call of a leaf module, in order, with its start and end (seconds of the clock).

    Every module was waited for, so on an asynchronous device the sum is longer than the same pass alone:
    launches are not hidden behind the work before them. Compare with a pass that was timed as a whole.
    """

    started_s: float
    ended_s: float
    paths: tuple[str, ...]
    called: array[int]
    starts_s: array[float]
    ends_s: array[float]

    @property
    def total_s(self) -> float:
        """The whole pass."""
        return self.ended_s - self.started_s

    def calls(self) -> Iterator[tuple[str, float, float]]:
        """(path, start, end) of every call."""
        for index, start, end in zip(self.called, self.starts_s, self.ends_s, strict=True):
            yield self.paths[index], start, end

    def by_operator(self) -> dict[str, tuple[int, float]]:
        """(calls, seconds) by operator name, in the order of first use.

        A module counts once, also where a step in one call spends several operators on it.
        """
        found: dict[str, tuple[int, float]] = {}
        names = [operator_name(path) for path in self.paths]
        seen: set[int] = set()
        for index, start, end in zip(self.called, self.starts_s, self.ends_s, strict=True):
            calls, seconds = found.get(names[index], (0, 0.0))
            found[names[index]] = (calls + (index not in seen), seconds + end - start)
            seen.add(index)
        return found

    @property
    def between_s(self) -> float:
        """The pass outside of its modules: calls, and threads that start and stop."""
        spent = (end - start for start, end in zip(self.starts_s, self.ends_s, strict=True))
        return max(0.0, self.total_s - sum(spent))


@dataclass(frozen=True)
class Overheads:
    """What looking costs, and what a call costs before it does anything; seconds each.

    dispatch_s: one call of a tiny operator; module_call_s: calling a module that does nothing;
    timer_s: what the profiler adds to one call.
    """

    dispatch_s: float
    module_call_s: float
    timer_s: float


class ModuleProfiler:
    """Times the leaf modules of ``model`` while it is entered, one ``ModuleTimes`` for each pass.

    The modules' ``forward`` is wrapped and put back at the end. Only eager passes call their modules: while
    the model has a ``watcher``, a backend runs those, or hands it the times that it has by other means.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.device = torch.device(device)
        self.clock = clock
        #: Passes since the last ``take``.
        self.passes: list[ModuleTimes] = []
        self._modules = list(leaves(model))
        self._paths = tuple(path for path, _ in self._modules)
        self._called, self._starts, self._ends = array("i"), array("d"), array("d")
        #: Whether passes are timed now.
        self.watching = False

    def __enter__(self) -> ModuleProfiler:
        self.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def watch(self) -> None:
        """Time passes from now on."""
        if not self.watching:
            for index, (_, module) in enumerate(self._modules):
                module.forward = self._timed(module.forward, index)
            self.model.forward = self._whole(self.model.forward)
            self._set_watching(True)

    def rest(self) -> None:
        """Leave passes alone from now on: the model is as it was."""
        if self.watching:
            for _, module in self._modules:
                del module.forward  # the class's own shows again
            del self.model.forward
            self._set_watching(False)

    def _set_watching(self, watching: bool) -> None:
        self.watching = watching
        self.model.watcher = self.passes.append if watching else None  # type: ignore[assignment]

    def take(self) -> ModuleTimes | None:
        """The last pass, once; None if there was none since."""
        last = self.passes[-1] if self.passes else None
        self.passes.clear()
        return last

    def _timed(self, forward: Callable[..., Any], index: int) -> Callable[..., Any]:
        clock, called, starts, ends = self.clock, self._called, self._starts, self._ends
        device, wait = self.device, self.device.type != "cpu"

        def timed(*args: Any, **named: Any) -> Any:
            if wait:
                synchronize(device)
            start = clock()
            result = forward(*args, **named)
            if wait:
                synchronize(device)
            ends.append(clock())
            starts.append(start)
            called.append(index)
            return result

        return timed

    def _whole(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def whole(*args: Any, **named: Any) -> Any:
            for kept in (self._called, self._starts, self._ends):
                del kept[:]
            synchronize(self.device)
            start = self.clock()
            result = forward(*args, **named)
            synchronize(self.device)
            end = self.clock()
            self.passes.append(
                ModuleTimes(start, end, self._paths, self._called[:], self._starts[:], self._ends[:])
            )
            return result

        return whole

    def overheads(self) -> Overheads:
        """Measured here and now, in a few milliseconds."""
        a, b = (torch.ones(16, device=self.device) for _ in range(2))
        out = torch.empty_like(a)
        nothing = _Nothing()
        with torch.inference_mode():
            dispatch_s = self._per_call(lambda: torch.add(a, b, out=out))
            bare_s = self._per_call(lambda: nothing.forward(a))
            call_s = self._per_call(lambda: nothing(a))
            with ModuleProfiler(_Holder(nothing), device="cpu"):
                timed_s = self._per_call(lambda: nothing(a))
        return Overheads(dispatch_s, max(0.0, call_s - bare_s), max(0.0, timed_s - call_s))

    def _per_call(self, work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(5):
            synchronize(self.device)
            start = self.clock()
            for _ in range(_CALIBRATION_CALLS // 5):
                work()
            synchronize(self.device)
            best = min(best, (self.clock() - start) / (_CALIBRATION_CALLS // 5))
        return best


class _Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Holder(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, where: list[str], counts: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where, self.counts = where, counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[self.where[-1]] += 1
        return func(*args, **(kwargs or {}))


def count_dispatches(model: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """Framework calls of one pass by operator name, views included; ``""``: those of no leaf module.

    ``run`` runs one pass of ``model``. Slow: for counting, not for timing.
    """
    where, counts = [""], Counter[str]()
    handles = []
    for path, module in leaves(model):
        name = operator_name(path)
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: where.append(name)))
        handles.append(module.register_forward_hook(lambda *_: where.pop() and None))
    try:
        with _Count(where, counts):
            run()
    finally:
        for handle in handles:
            handle.remove()
    return dict(counts)
