"""Threads that stay on their own core and do the same work at the same time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import torch

from rooflens.measure.timer import Batch, Work

Result = TypeVar("Result")
_MEETING_S = 30.0
"""Threads meet within microseconds; longer means that an interrupt left one without its task."""
_Task = Callable[[int], Any]


class PinnedThreads:
    """One Python thread per CPU of ``cpus``, each with one torch thread; a context manager.

    torch's operators release the interpreter's lock, so calls of a millisecond run side by side. What a
    thread allocates and first writes lies in memory near its core.
    """

    def __init__(self, cpus: Sequence[int], *, count: int | None = None) -> None:
        self._cpus = tuple(cpus)
        self.count = len(self._cpus) if count is None else count
        self._tasks: list[SimpleQueue[_Task | None]] = [SimpleQueue() for _ in range(self.count)]
        self._answers: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._torch_threads = torch.get_num_threads()

    def __enter__(self) -> PinnedThreads:
        for index in range(self.count):
            thread = threading.Thread(target=self._serve, args=(index,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tasks in self._tasks:
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        # Setting a thread's count also set the default of threads to come.
        torch.set_num_threads(self._torch_threads)

    def each(self, task: Callable[[int], Result], *, count: int | None = None) -> list[Result]:
        """Run ``task(index)`` on the first ``count`` threads (default: all); their results in order.

        The first error of a thread is raised here, after all have answered.
        """
        count = self.count if count is None else count
        for index in range(count):
            self._tasks[index].put(task)
        results: list[Any] = [None] * count
        failed: BaseException | None = None
        for _ in range(count):
            index, result, error = self._answers.get()
            results[index] = result
            failed = failed or error
        if failed is not None:
            raise failed
        return results

    def batch(self, works: Sequence[Work]) -> Batch:
        """Times ``calls`` calls of ``works[i]`` on thread i, from the first start to the last end."""
        count = len(works)

        def timed(calls: int) -> float:
            together = threading.Barrier(count, timeout=_MEETING_S)

            def one(index: int) -> tuple[float, float]:
                work = works[index]
                together.wait()
                start = time.perf_counter()
                for call in range(calls):
                    work(call)
                return start, time.perf_counter()

            spans = self.each(one, count=count)
            return max(end for _, end in spans) - min(start for start, _ in spans)

        return timed

    def _serve(self, index: int) -> None:
        if index < len(self._cpus):
            # On Linux 0 names the calling thread: the process keeps its own affinity.
            os.sched_setaffinity(0, {self._cpus[index]})
        torch.set_num_threads(1)
        while (task := self._tasks[index].get()) is not None:
            try:
                self._answers.put((index, task(index), None))
            except BaseException as error:
                self._answers.put((index, None, error))
