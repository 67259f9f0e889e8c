"""Profile whatever an engine does for a while, and explain it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflens.analysis.step import decode_step, step_ops
from rooflens.analysis.workload import device_rates
from rooflens.display import Displayed
from rooflens.explain import Account
from rooflens.hardware.device import Device
from rooflens.reading import Reading, read_account, read_phases
from rooflens.runtime.backend import NativeBackend
from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.engine.records import Work
from rooflens.runtime.profile.account import count_step_dispatches, example_batch, phase_account
from rooflens.runtime.profile.engine import EngineProfile, EngineProfiler
from rooflens.runtime.profile.memory import MemoryProfiler
from rooflens.runtime.profile.modules import ModuleProfiler

_PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class RunProfile(Displayed):
    """A profiled run: what happened, the account of each phase, and what they mean.

    ``accounts`` are of steps whose modules were timed, so they ran eagerly; ``whole`` of the steps between,
    which ran as they always do (on CUDA captured in graphs). ``readings``: one for each phase, of ``whole``
    where timing the modules made the step another one; ``reading`` is on both phases, or on the only one.
    """

    profile: EngineProfile
    accounts: tuple[Account, ...]
    whole: tuple[Account, ...]
    readings: tuple[Reading, ...]
    reading: Reading | None
    notes: tuple[str, ...]

    def account(self, phase: str) -> Account | None:
        """The account of ``prefill`` or ``decode`` steps."""
        return next((found for found in self.accounts if found.phase == phase), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the profile with ``accounts``, ``readings``, ``reading`` and the notes beside it."""
        plain = self.profile.to_dict()
        return plain | {
            "accounts": [found.to_dict() for found in self.accounts],
            "whole": [found.to_dict() for found in self.whole],
            "readings": [found.to_dict() for found in self.readings],
            "reading": None if self.reading is None else self.reading.to_dict(),
            "notes": [*plain["notes"], *self.notes],
        }


class RunProfiler:
    """Watches an engine over a ``NativeBackend`` while it is entered.

    Modules are timed in every other step. Enter before the first step and leave between steps; everything
    that was seen is there after an interruption too.
    """

    def __init__(self, engine: Engine, backend: NativeBackend) -> None:
        """``backend`` is the engine's own."""
        self.engine = engine
        self.backend = backend
        self.modules = ModuleProfiler(backend.model, device=backend.device)
        memory = MemoryProfiler(
            weights_bytes=backend.report.held_bytes,
            bytes_per_block=backend.cache.bytes_per_block,
            device=backend.device,
        )
        self.observer = EngineProfiler(modules=self.modules, memory=memory, alternate=True)
        self._settings = engine.settings

    def __enter__(self) -> RunProfiler:
        self.engine.settings = replace(self._settings, synchronize=True)
        self.engine.observers.append(self.observer)
        self.modules.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self.modules.rest()
        self.engine.observers.remove(self.observer)
        self.engine.settings = self._settings

    def warm_up(self, *, prompt_tokens: int) -> None:
        """Run a prefill of this length and a decode aside, so that no first use is in the measurement.

        Module by module, and, while the cache holds nothing yet, as such steps are run without a profiler.
        """
        tokens = min(prompt_tokens, self.engine.scheduler.limits.max_batched_tokens)
        pool = self.engine.scheduler.pool
        for work in (Work(0, tokens, 1, True), Work(prompt_tokens, 1, 1, False)):
            count_step_dispatches(self.backend, [work])
            batch = example_batch(self.backend, [work])
            if not pool.used and not pool.cached and batch.block_tables.shape[1] <= pool.total:
                self.backend.step(batch)

    def result(self, device: Device) -> RunProfile:
        """Explain what was seen against ``device``: a catalogue entry, or a probe of this machine.

        Raises UnsupportedError where the device has no bandwidth or no peak for the model's types.
        """
        backend, profile = self.backend, self.observer.profile()
        ops = step_ops(backend.spec, decode_step(sequences=1, context=0), kv_dtype=backend.kv_dtype)
        rates = device_rates(backend.spec, device, ops, strict=False)
        overheads = self.modules.overheads()
        found, whole = (
            [phase_account(backend, profile, phase, overheads, rates.roof, whole=whole) for phase in _PHASES]
            for whole in (False, True)
        )
        accounts = tuple(account for account in found if account is not None)
        telling = [_telling(timed, left_alone) for timed, left_alone in zip(found, whole, strict=True)]
        readings = tuple(read_account(account) for account in telling if account is not None)
        both = read_phases(*telling)
        return RunProfile(
            profile=profile,
            accounts=accounts,
            whole=tuple(account for account in whole if account is not None),
            readings=readings,
            reading=both or (readings[0] if readings else None),
            notes=rates.notes,
        )


def _telling(timed: Account | None, whole: Account | None) -> Account | None:
    """The one of two accounts of the same steps that says more and is true of the usual run."""
    return whole if whole is not None and timed is not None and not timed.stands_for_others else timed
