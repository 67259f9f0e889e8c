"""Sweeps: many workloads in one vectorised call, and where the curve bends and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflens.analysis.communication import communication_bytes
from rooflens.analysis.ledger import FRAMEWORK_OVERHEAD_BYTES, widest_activation
from rooflens.analysis.parallelism import rank_specs
from rooflens.analysis.roofline import StepTimes, time_ops
from rooflens.analysis.step import decode_step, step_ops
from rooflens.analysis.workload import Workload, device_rates
from rooflens.display import Displayed
from rooflens.errors import InputError
from rooflens.hardware.device import Device
from rooflens.models.accounting import kv_sequence_bytes, state_sequence_bytes, weights_bytes
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    import numpy as np

Columns = dict[str, "np.ndarray[Any, Any]"]

WEIGHTS, KV, COMPUTE, MEMORY_FULL, COMMUNICATION = "weights", "kv", "compute", "memory_full", "communication"


@dataclass(frozen=True)
class Knee:
    """Where more sequences (or tokens) stop being nearly free, and the cause.

    ``cause``: ``compute`` (arithmetic takes as long as memory), ``kv`` (cache reads take as long as
    weight reads), ``memory_full`` (the next point does not fit), ``weights`` (none of these within the
    sweep: still on the slope where weight reads are shared).
    """

    value: int | None
    cause: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"value": self.value, "cause": self.cause}


@dataclass(frozen=True)
class Sweep(Displayed, Mapping[str, Any]):
    """Columns of equal length, one row per point; read as a mapping of numpy arrays.

    Seconds are those of one decode step at the bound. ``axis`` is the swept quantity that the knee is
    about, along the first value of the other one.
    """

    columns: Columns
    axis: str
    knee: Knee
    model: str
    device: str

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: columns as lists, null for unknown."""
        return {
            "schema": "rooflens.sweep/1",
            "model": self.model,
            "device": self.device,
            "axis": self.axis,
            "knee": self.knee.to_dict(),
            "columns": {name: values.tolist() for name, values in self.columns.items()},
        }


def axis_values(name: str, values: Sequence[int], *, least: int) -> list[int]:
    """The values of a swept axis, checked; raises InputError naming the first bad one."""
    if len(values) == 0:
        raise InputError(f"{name} to sweep is empty", allowed="one or more whole numbers")
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        raise InputError(f"{name} to sweep is not a list of numbers", value=values)
    bad = array[(array < least) | (array != np.floor(array))]
    if bad.size:
        raise InputError(
            f"{name} to sweep is not usable", value=bad[0], allowed=f"whole numbers from {least}"
        )
    result: list[int] = array.astype(int).tolist()
    return result


def sweep_spec(
    spec: ModelSpec,
    device: Device,
    workload: Workload,
    *,
    batch: Sequence[int],
    context: Sequence[int],
    strict: bool = True,
) -> Sweep:
    """Decode at every (batch, context): bounds, their parts, tokens per second, memory, fits.

    The rows run over contexts within batches. Memory is counted as by plain arithmetic (engine
    ``none``), on the fullest device. Raises as ``plan_spec``.
    """
    import numpy as np

    batches = np.asarray(axis_values("batch", batch, least=1), dtype=float)[:, None]
    contexts = np.asarray(axis_values("context", context, least=0), dtype=float)[None, :]
    layout = workload.layout
    replica = np.ceil(batches / layout.dp)
    stages = rank_specs(spec, layout)
    step = decode_step(sequences=replica, context=contexts)
    ops = [step_ops(stage, step, kv_dtype=workload.kv_dtype) for stage in stages]
    probe = step_ops(spec, decode_step(sequences=1, context=1), kv_dtype=workload.kv_dtype)
    rates = device_rates(spec, device, probe, strict=strict, engine=workload.engine)
    sent = communication_bytes(spec, layout, tokens=replica, least=True)
    times = [time_ops(stage, rates.roof, communication_bytes=sent) for stage in ops]
    slowest = times[0]
    if len(times) > 1:
        slowest = times[int(np.argmax([np.max(one.bound_s) for one in times]))]
    total = np.max(np.stack([_memory(stage, workload, replica, contexts) for stage in stages]), axis=0)
    return _as_sweep(spec, device, batches, contexts, slowest, total)


def _memory(stage: ModelSpec, workload: Workload, replica: Any, contexts: Any) -> Any:
    sequence = kv_sequence_bytes(stage, context=contexts, kv_dtype=workload.kv_dtype)
    in_flight = replica * workload.prompt
    if workload.max_batched_tokens is not None:
        import numpy as np

        in_flight = np.maximum(np.minimum(in_flight, workload.max_batched_tokens), replica)
    activations = in_flight * (widest_activation(stage) * dtype_bytes(stage.dtype))
    fixed = weights_bytes(stage) + FRAMEWORK_OVERHEAD_BYTES
    return fixed + replica * (sequence + state_sequence_bytes(stage)) + activations


def _as_sweep(
    spec: ModelSpec, device: Device, batches: Any, contexts: Any, times: StepTimes, total: Any
) -> Sweep:
    import numpy as np

    shape = np.broadcast_shapes(batches.shape, contexts.shape)

    def column(values: Any) -> Any:
        return np.broadcast_to(values, shape).ravel()

    bound = column(times.bound_s)
    memory = column(total)
    capacity = device.memory_bytes
    columns: Columns = {
        "batch": column(batches).astype(np.int64),
        "context": column(contexts).astype(np.int64),
        "bound_s": bound,
        "tokens_per_s": column(batches) / bound,
        "tokens_per_s_per_sequence": 1 / bound,
        "weights_s": column(times.weights_s),
        "kv_s": column(times.kv_s),
        "compute_s": column(times.compute_s),
        "communication_s": column(times.communication_s),
        "op_roofline_s": column(times.op_roofline_s),
        "total_bytes": memory,
    }
    if capacity is not None:
        columns["fits"] = memory <= capacity
    axis = "context" if batches.shape[0] == 1 and contexts.shape[1] > 1 else "batch"
    along = slice(0, shape[1]) if axis == "context" else slice(0, None, shape[1])
    knee = find_knee({name: values[along] for name, values in columns.items()}, axis)
    return Sweep(columns, axis, knee, spec.name, device.name)


def find_knee(columns: Columns, axis: str) -> Knee:
    """The first point along ``axis`` (ascending) at which anything but weight reads takes over."""
    import numpy as np

    order = np.argsort(columns[axis], kind="stable")
    column = {name: values[order] for name, values in columns.items()}
    memory_s = column["weights_s"] + column["kv_s"]
    tests = {
        MEMORY_FULL: ~column["fits"] if "fits" in column else np.zeros(len(memory_s), dtype=bool),
        COMMUNICATION: column["communication_s"] >= np.maximum(memory_s, column["compute_s"]),
        COMPUTE: column["compute_s"] >= memory_s,
        KV: column["kv_s"] >= column["weights_s"],
    }
    firsts = {cause: int(np.argmax(hit)) for cause, hit in tests.items() if hit.any()}
    if not firsts:
        return Knee(None, WEIGHTS)
    cause = min(firsts, key=lambda name: firsts[name])
    return Knee(int(column[axis][firsts[cause]]), cause)
