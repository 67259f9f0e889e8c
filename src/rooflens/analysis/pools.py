"""Prefills and decodes on pools of their own: what each carries, what moves between them, what settles.

A request is prefilled on one instance, its cache is sent to another, which decodes; neither waits for the
other's kind of step. The first token reaches the client after the transfer and the next decode step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.analysis.communication import Network
from rooflens.analysis.goodput import Goodput, Latencies, goodput
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.requests import Requests
from rooflens.analysis.serving import (
    Replica,
    first_tokens_s,
    met_by_arrivals,
    overflow_share,
    place_wait_of,
    prompt_wait_of,
    rate_of,
    running_limit,
    tpot_std_s,
)
from rooflens.errors import InputError
from rooflens.hardware.device import Device


@dataclass(frozen=True)
class Pool:
    """Equal instances: ``replica`` prices one rank's steps, ``kv_capacity_tokens`` is what it holds."""

    device: Device
    instances: int
    replica: Replica
    layout: Layout
    kv_capacity_tokens: int | None
    max_sequences: int | None = None
    budget: int | None = None

    @property
    def devices(self) -> int:
        """Devices of the pool."""
        return self.instances * self.layout.devices

    @property
    def ranks(self) -> int:
        """Caches with sequences of their own."""
        return self.instances * self.replica.layout.dp


@dataclass(frozen=True)
class PoolState:
    """What a pool carries at most and how much of that is asked of it (None without a rate)."""

    role: str
    device: str
    devices: int
    instances: int
    layout: Layout
    max_rate_per_s: float
    busy: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "role": self.role,
            "device": self.device,
            "devices": self.devices,
            "instances": self.instances,
            "tp": self.layout.tp,
            "pp": self.layout.pp,
            "dp": self.layout.dp,
            "ep": self.layout.ep,
            "max_rate_per_s": self.max_rate_per_s,
            "busy": self.busy,
        }


@dataclass(frozen=True)
class Transfer:
    """One prompt's cache from pool to pool: over the ``link`` within a node or the ``network``."""

    bytes: float
    rate_bytes_per_s: float
    way: str

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.bytes / self.rate_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "bytes": self.bytes,
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "way": self.way,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Pools:
    """A prefill and a decode pool. ``balanced_ratio`` is how many of the prefill pool's devices keep one of
    the decode pool's busy; latencies are those at the asked rate, or of a request alone without one."""

    prefill: PoolState
    decode: PoolState
    transfer: Transfer
    rate_per_s: float | None
    max_rate_per_s: float
    limited_by: str
    balanced_ratio: float
    stable: bool
    running: float | None
    ttft_s: float | None
    tpot_s: float | None
    latencies: Latencies | None = None
    goodput: Goodput | None = None

    @property
    def devices(self) -> int:
        """Devices of both."""
        return self.prefill.devices + self.decode.devices

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
            "transfer": self.transfer.to_dict(),
            "devices": self.devices,
            "rate_per_s": self.rate_per_s,
            "max_rate_per_s": self.max_rate_per_s,
            "limited_by": self.limited_by,
            "balanced_ratio": self.balanced_ratio,
            "stable": self.stable,
            "running": self.running,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "goodput": None if self.goodput is None else self.goodput.to_dict(),
        }


def transfer_of(
    cache_bytes: float,
    source: Device,
    target: Device,
    *,
    source_devices: int,
    target_devices: int,
    devices: int,
    network: Network,
) -> Transfer:
    """How a prompt's cache gets from one instance to another.

    Over the devices' own links where all ``devices`` of both pools are of one kind in one node, else over the
    network; all devices of the smaller instance send at once, each its part.
    """
    link = source.link or source.host_link
    rate = link.bytes_per_s_per_direction if link else None
    if source.id == target.id and devices <= network.devices_per_node and rate:
        way = "link"
    else:
        way, rate = "network", network.bytes_per_s_per_device
    return Transfer(cache_bytes, rate * min(source_devices, target_devices), way)


def pools_of(
    prefill: Pool,
    decode: Pool,
    requests: Requests,
    transfer: Transfer,
    *,
    rate_per_s: float | None = None,
    limits_s: tuple[float | None, float | None] = (None, None),
) -> Pools:
    """What two pools carry and, at a rate, settle at.

    Raises InputError where the decode pool's cache holds less than one request, or the rate is not positive.
    """
    if rate_per_s is not None and not rate_per_s > 0:
        raise InputError("rate must be positive", value=rate_per_s)
    prompts_s = [float(value) for value in prefill.replica.prompts_s(requests, prefill.budget)]
    alone_s = sum(prompts_s) / len(prompts_s)
    # Stages of a pipeline work on different prompts at a time.
    servers = prefill.ranks * prefill.layout.pp
    prefills_most = servers / alone_s
    limit, _, _ = running_limit(requests, decode.kv_capacity_tokens, decode.max_sequences)

    def carried(sequences: float) -> float:
        step_s = float(decode.replica.decode_s(met_by_arrivals(sequences, limit), requests))
        again = overflow_share(requests, sequences, decode.kv_capacity_tokens) * requests.output
        redone_s = again / requests.computed * float(decode.replica.shared_s(alone_s))
        return float(rate_of(sequences, decode_s=step_s, shared_s=redone_s, output=requests.output))

    decodes_most = carried(limit) * decode.ranks
    most = min(prefills_most, decodes_most)
    states = [
        PoolState(
            role,
            pool.device.id,
            pool.devices,
            pool.instances,
            pool.layout,
            capacity,
            None if rate_per_s is None else rate_per_s / capacity,
        )
        for role, pool, capacity in (
            ("prefill", prefill, prefills_most), ("decode", decode, decodes_most),
        )
    ]  # fmt: skip
    known = {
        "prefill": states[0],
        "decode": states[1],
        "transfer": transfer,
        "rate_per_s": rate_per_s,
        "max_rate_per_s": most,
        "limited_by": "prefill" if prefills_most < decodes_most else "decode",
        "balanced_ratio": (decodes_most / decode.devices) / (prefills_most / prefill.devices),
    }
    if rate_per_s is not None and rate_per_s >= most:
        return Pools(**known, stable=False, running=None, ttft_s=None, tpot_s=None)  # type: ignore[arg-type]
    running = 1.0 if rate_per_s is None else _running(carried, rate_per_s / decode.ranks, limit)
    beside = running if rate_per_s is None else met_by_arrivals(running, limit)
    step_s, more_s = (float(decode.replica.decode_s(one, requests)) for one in (beside, beside + 1))
    before_s = prefill.replica.setting.engine.request_s + transfer.seconds
    rate = rate_per_s or 1e-9
    latencies = Latencies(
        prompts_s=first_tokens_s(before_s, prompts_s, step_s),
        prompt_wait=prompt_wait_of(rate, alone_s, prompts_s, servers=servers),
        place_wait=place_wait_of(0.0 if rate_per_s is None else running, limit, step_s, requests),
        tpot_s=step_s,
        tpot_std_s=0.0
        if rate_per_s is None
        else tpot_std_s(
            requests,
            running=running,
            tpot_s=step_s,
            slope_s=more_s - step_s,
            shared_s=0.0,
            arrivals=True,
        ),
    )
    waits_s = latencies.prompt_wait.mean_s + latencies.place_wait.mean_s
    good = None
    if rate_per_s is not None and limits_s != (None, None):
        good = goodput(latencies, rate_per_s, ttft_s=limits_s[0], tpot_s=limits_s[1])
    return Pools(
        **known,  # type: ignore[arg-type]
        stable=True,
        running=None if rate_per_s is None else running * decode.ranks,
        ttft_s=before_s + step_s / 2 + alone_s + (0.0 if rate_per_s is None else waits_s),
        tpot_s=step_s,
        latencies=latencies,
        goodput=good,
    )


def _running(carried: Any, rate: float, limit: int) -> float:
    """The sequences of one rank whose rate is the arriving one."""
    low, high = 0.0, float(limit)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if carried(middle) < rate else (low, middle)
    return high
