"""The parts a search is put together from: one model instance on a device, priced over grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooflens.analysis.communication import shares_experts
from rooflens.analysis.engines import rules_for
from rooflens.analysis.estimate import setting_for
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.plan import ledger_input
from rooflens.analysis.requests import Requests
from rooflens.analysis.search_result import Goal
from rooflens.analysis.serving import Replica
from rooflens.analysis.step import decode_step, step_ops
from rooflens.analysis.workload import Workload, device_rates
from rooflens.errors import RooflensError
from rooflens.hardware.device import Device
from rooflens.models.accounting import kv_sequence_bytes
from rooflens.models.spec import MixtureOfExperts, ModelSpec

Array = np.ndarray[Any, Any]

BUDGETS = (2048, 4096, 8192, 16384)
WAYS = (1, 2, 4, 8, 16, 32)
STAGES = (2, 4)
GRID = np.unique(np.round(np.geomspace(1, 1024, 48)).astype(int)).astype(float)


@dataclass(frozen=True)
class Candidate:
    """A model's format on a device: what an instance is made of before layouts are chosen.

    ``weights`` None is the checkpoint's own format.
    """

    spec: ModelSpec
    device: Device
    weights: str | None

    @property
    def format(self) -> str:
        """The name of the weight format."""
        return self.weights or self.spec.quantization or self.spec.dtype


@dataclass(frozen=True)
class Unit:
    """One instance: a candidate, how it is cut, its cache type, and what its steps take.

    ``decode_s`` over GRID sequences of one rank, ``prompts_s`` (equally likely prompts alone, a row each) and
    ``held_tokens`` over BUDGETS. Of its
    ``ranks`` (data-parallel ones that share experts, else 1) each has a cache and sequences of its own.
    ``shared`` is the share of a prompt's time that others feel; ``prompt_cache_bytes`` one prompt's cache.
    """

    candidate: Candidate
    layout: Layout
    kv_dtype: str
    own_cache: bool
    ranks: int
    decode_s: Array
    prompts_s: Array
    held_tokens: Array
    request_s: float
    shared: float
    prompt_cache_bytes: float

    @property
    def prefill_s(self) -> Array:
        """A prompt alone in the mean, over BUDGETS."""
        mean: Array = self.prompts_s.mean(axis=0)
        return mean

    @property
    def devices(self) -> int:
        """Devices of one instance."""
        return self.layout.devices


def layouts_of(spec: ModelSpec, most: int, engine: str) -> list[Layout]:
    """The layouts worth trying with at most so many devices: those that the engine's start-up line can ask
    for, and those of experts only for models that have them."""
    if engine == "rooflens":
        return [Layout()]
    if engine in ("llama.cpp", "ollama"):
        return [Layout(tp) for tp in WAYS if tp <= most]
    sparse = any(isinstance(group.layer.mlp, MixtureOfExperts) for group in spec.groups)
    found = []
    for tp in WAYS:
        found.append(Layout(tp))
        found += [Layout(tp, pp) for pp in STAGES]
        if sparse and tp > 1:
            found += [Layout(tp, ep=tp), Layout(1, dp=tp, ep=tp)]
            found += [Layout(2, dp=tp // 2, ep=tp)] if tp > 2 else []
    return [layout for layout in found if layout.devices <= most]


def units(
    candidates: Sequence[Candidate],
    goal: Goal,
    base: Workload,
    kv_dtypes: Sequence[str | None],
    refused: Counter[str],
) -> Iterator[Unit]:
    """Every instance that can be; what cannot is counted in ``refused`` by reason."""
    for candidate in candidates:
        for layout in layouts_of(candidate.spec, goal.max_devices, base.engine):
            for kv_dtype in kv_dtypes:
                try:
                    yield _unit(candidate, goal.requests, base, layout, kv_dtype)
                except RooflensError as error:
                    refused[error.what] += 1


def _unit(
    candidate: Candidate, requests: Requests, base: Workload, layout: Layout, kv_dtype: str | None
) -> Unit:
    spec, device = candidate.spec, candidate.device
    work = replace(base, layout=layout, batch=layout.dp)
    if kv_dtype is not None:
        work = replace(work, kv_dtype=kv_dtype, kv_dtype_auto=False)
    probe = step_ops(spec, decode_step(sequences=1, context=1), kv_dtype=work.kv_dtype)
    roof = device_rates(spec, device, probe, strict=False, engine=work.engine).roof
    setting = setting_for(spec, device, work.engine)
    one = Replica(spec, layout, roof, setting, work.kv_dtype, work.network)
    budgets = np.array(BUDGETS, dtype=float)
    return Unit(
        candidate=candidate,
        layout=layout,
        kv_dtype=work.kv_dtype,
        own_cache=kv_dtype is None,
        ranks=layout.dp if shares_experts(layout) else 1,
        decode_s=np.broadcast_to(one.decode_s(GRID, requests), GRID.shape),
        prompts_s=np.stack(
            [np.broadcast_to(part, budgets.shape) for part in one.prompts_s(requests, budgets)]
        ),
        held_tokens=np.array(
            [_held(spec, device, replace(work, max_batched_tokens=budget)) for budget in BUDGETS]
        ),
        request_s=float(setting.engine.request_s),
        shared=float(one.shared_s(1.0)),
        prompt_cache_bytes=float(kv_sequence_bytes(spec, context=requests.prompt, kv_dtype=work.kv_dtype)),
    )


def _held(spec: ModelSpec, device: Device, work: Workload) -> int:
    """Tokens of cache that one rank holds; 0 where it does not start."""
    ledger = rules_for(work.engine)(ledger_input(spec, device, work))
    if ledger.kv_capacity_tokens is None or ledger.reasons:
        return 0
    return ledger.kv_capacity_tokens
