"""The time of one operator on real kernels: a few physical quantities, the same formula for all.

A kernel moves its bytes at a share of the memory's bandwidth and multiplies at a share of the peak,
overlaps the two imperfectly, and costs a fixed time to start; that last term is why small matrices reach
less. Every quantity may be an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rooflens.analysis.numeric import Quantity, maximum, where_positive
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Op

LINEAR, EXPERTS, ATTENTION, SMALL = "linear", "experts", "attention", "small"
KINDS = (LINEAR, EXPERTS, ATTENTION, SMALL)
"""Matrix multiplies, those of routed experts, attention over the cache (and recurrences), the rest."""


@dataclass(frozen=True)
class KernelRates:
    """What kernels reach: shares of bandwidth and peak, and seconds.

    ``padding_rows``: a matrix multiply of m rows takes the arithmetic of m + padding_rows, since tiles are
    never filled exactly. ``sharpness`` p: t = (memory^p + compute^p)^(1/p), from no overlap (1) to perfect.
    ``launch_s`` is one kernel's start, ``small_launch_s`` that of an elementwise operator, which engines
    fuse into their neighbours.
    """

    bandwidth: Quantity
    compute: Quantity
    expert_bandwidth: Quantity
    expert_compute: Quantity
    kv_bandwidth: Quantity
    attention_compute: Quantity
    activation_bandwidth: Quantity
    launch_s: Quantity
    small_launch_s: Quantity
    padding_rows: Quantity
    sharpness: Quantity


@dataclass(frozen=True)
class Load:
    """One row of operators against the roof: seconds at full rates, and the rows each matrix meets."""

    kind: str
    count: int
    compute_s: Quantity
    weight_s: Quantity
    kv_s: Quantity
    activation_s: Quantity
    rows: Quantity
    starts: Quantity = 1


def loads(ops: Iterable[Op], roof: Roof, *, tokens: Quantity, chunks: Quantity = 1) -> Iterator[Load]:
    """The operators as loads; experts read as many as uniform routing visits.

    A step run in ``chunks`` reads its weights in each, and its matrices meet fewer rows at a time; the
    its kernels start as often.
    """
    bandwidth = roof.bandwidth_bytes_per_s
    for op in ops:
        cost = op.cost
        kind = kind_of(op)
        weight_bytes = cost.weight_bytes
        rows = tokens / chunks
        if op.expected_weight_bytes is not None:
            # Visits spread over the visited experts; the cost counts top_k experts' bytes at least.
            rows = rows * cost.weight_bytes / maximum(op.expected_weight_bytes, 1)
            weight_bytes = op.expected_weight_bytes
        yield Load(
            kind=kind,
            count=op.count,
            compute_s=cost.flops / roof.peaks_flops_per_s[op.compute_dtype] if kind is not SMALL else 0.0,
            weight_s=weight_bytes * chunks / bandwidth,
            kv_s=(cost.kv_read_bytes + cost.kv_write_bytes) / bandwidth,
            activation_s=cost.activation_bytes / bandwidth,
            rows=rows,
            starts=chunks,
        )


def kind_of(op: Op) -> str:
    """Which kind of kernel runs an operator."""
    if op.expected_weight_bytes is not None:
        return EXPERTS
    if op.name.endswith((".core", "kv_cache")):
        return ATTENTION
    flops = op.cost.flops
    return SMALL if isinstance(flops, (int, float)) and flops == 0 else LINEAR


def overlap(memory_s: Quantity, compute_s: Quantity, sharpness: Quantity) -> Quantity:
    """Two streams of work side by side: the longer one alone at best, their sum at worst."""
    longest = maximum(memory_s, compute_s)
    shorter = memory_s + compute_s - longest
    ratio = shorter / maximum(longest, 1e-30)
    return longest * (1 + ratio**sharpness) ** (1 / sharpness)


def load_seconds(load: Load, k: KernelRates) -> Quantity:
    """Seconds of one operator of a load."""
    if load.kind == SMALL:
        return (load.weight_s + load.activation_s) / k.activation_bandwidth + k.small_launch_s * load.starts
    if load.kind == ATTENTION:
        memory_s = (load.weight_s + load.kv_s) / k.kv_bandwidth
        return overlap(memory_s, load.compute_s / k.attention_compute, k.sharpness) + k.launch_s * load.starts
    experts = load.kind == EXPERTS
    bandwidth = k.expert_bandwidth if experts else k.bandwidth
    share = k.expert_compute if experts else k.compute
    # One row runs on a matrix-vector kernel, which pads nothing; tiles take over as rows grow.
    rows = maximum(load.rows, 1.0)
    padded = load.compute_s * (1 + k.padding_rows / rows * (rows - 1) / (rows + _FEW_ROWS))
    busy = overlap(load.weight_s / bandwidth, padded / share, k.sharpness)
    return busy + where_positive(load.compute_s, k.launch_s * load.starts)


def step_seconds(
    kernels_s: Quantity,
    *,
    launches: Quantity,
    eager: Quantity,
    enqueue_s: Quantity,
    host_s: Quantity,
    host_per_sequence_s: Quantity,
    sequences: Quantity,
    communication_s: Quantity,
) -> Quantity:
    """Seconds of a step: its kernels, or the host that enqueues them if that takes longer; then the rest.

    ``eager`` is 1 where kernels are started one by one and 0 where a graph is replayed.
    """
    enqueued = launches * enqueue_s * eager
    return overlap(kernels_s, enqueued, _QUEUE) + communication_s + host_s + host_per_sequence_s * sequences


_FEW_ROWS = 15.0
_QUEUE = 4.0  # a queue hides the shorter of the two nearly perfectly


def reduce_seconds(
    *,
    reduces: Quantity,
    sent_s: Quantity,
    devices: Quantity,
    share: Quantity,
    latency_s: Quantity,
    crowding: Quantity,
) -> Quantity:
    """Seconds of a step's collectives: a start each, and the bytes at a share of the link.

    ``sent_s`` is what one device sends at the link's full rate. On a shared bus ``crowding`` makes both
    worse in proportion to (devices / 2)^crowding.
    """
    crowd = (maximum(devices, 2) / 2) ** crowding
    return (reduces * latency_s + sent_s / share) * crowd
