"""A probe record with round figures, for tests that do not measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflens.hardware.local_cpu import CpuInfo
from rooflens.measure.activity import Activity
from rooflens.measure.records import Measurement, ProbedDevice, ProbeRecord

QUIET = Activity(load_average=0.1, others_cores=0.01, stolen_share=0.0)
CPU = CpuInfo(
    name="Test CPU", machine_cores=4, usable_cores=4, usable_threads=4, quota_cpus=None, sockets=1, flags=(),
    caches=(("L1d", 131072),), memory_total_bytes=16 * 10**9, memory_limit_bytes=None,
)  # fmt: skip


def figure(name: str, unit: str, amount: float, seconds: float, **parameters: Any) -> Measurement:
    """A measurement whose samples are all ``seconds``."""
    return Measurement(
        name=name, unit=unit, amount=amount, samples_s=(seconds,) * 12, calls_per_batch=1, converged=True,
        method="torch.test", parameters=parameters,
    )  # fmt: skip


def cube(dtype: str, side: int, flops_per_s: float, element_bytes: float = 2) -> Measurement:
    """A cube of a dtype at a given rate."""
    flops = 2.0 * side**3
    return figure(
        f"gemm.{dtype}.{side}x{side}x{side}", "flops_per_s", flops, flops / flops_per_s,
        dtype=dtype, m=side, n=side, k=side, element_bytes=element_bytes,
    )  # fmt: skip


def linear(m: int, seconds: float, dtype: str = "bf16") -> Measurement:
    """A point of the batch sweep: 4096 x 4096 weights of two bytes, 2^25 bytes."""
    return figure(
        f"linear.{dtype}.m{m}", "bytes_per_s", 2.0**25, seconds, dtype=dtype, m=m, n=4096, k=4096, copies=8,
        weight_bytes_per_element=2, activation_bytes_per_element=2,
    )  # fmt: skip


def make_record(**changes: Any) -> ProbeRecord:
    """100 GB/s read, 1 TFLOP/s bf16 (ridge 10 FLOP/B), 250 GFLOP/s fp32, 5 us a tiny operator."""
    record = ProbeRecord(
        created="2026-11-30T04:05:06.123456Z",
        mode="quick",
        finished=True,
        duration_s=12.5,
        device=ProbedDevice(
            target="cpu", kind="cpu", name="Test CPU", memory_bytes=16 * 10**9, threads=4, cores=4,
            caches={"L1": 131072, "L2": 4194304},
        ),
        environment={"cpu": {"name": "Test CPU", "machine_cores": 4, "memory_total_bytes": 16 * 10**9}},
        activity=QUIET,
        measurements=(
            figure("memory.read", "bytes_per_s", 1e9, 0.01, threads=4),
            figure("memory.copy", "bytes_per_s", 1.6e9, 0.02, threads=4),
            cube("bf16", 2048, 1e12),
            cube("fp32", 1024, 250e9, 4),
            figure("cache.16384", "bytes_per_s", 4e6, 1e-5, level="L1"),
            figure("cache.65536", "bytes_per_s", 4e6, 2e-5, level=""),
            figure("cache.524288", "bytes_per_s", 4e6, 2e-5, level="L2"),
            figure("dispatch.tiny_op", "s", 1, 5e-6),
            figure("dispatch.region_one_thread", "s", 1, 3e-6),
            figure("dispatch.region_all_threads", "s", 1, 8e-6),
        ),
    )  # fmt: skip
    return replace(record, **changes)
