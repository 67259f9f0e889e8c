"""Continuous batching in the long run: what rates, latencies and concurrencies settle at.

Definitions, as benchmark clients measure them: TTFT is from sending a request to its first token; ITL is
the gap between two tokens of a request; TPOT is the mean of its gaps after the first token; goodput is the
requests a second that meet every limit. All seconds are likely (mid) figures.

Model of one replica: N sequences decode in steps of t(N). Every request also brings a prefill, of which
``mix`` parts of its time alone are added to the steps it shares. With arrivals of rate r and O tokens a
request, Little's law gives N = r O TPOT with TPOT = t(N) + N c / O, c = mix x prefill time. The rate that a
concurrency N carries is therefore N / (O t(N) + N c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.analysis.calibration import calibration
from rooflens.analysis.estimate import Setting, estimate_s
from rooflens.analysis.numeric import Quantity, maximum, minimum
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Step, decode_step, prefill_step, step_ops
from rooflens.analysis.workload import collectives, communication_bytes
from rooflens.errors import InputError
from rooflens.models.spec import ModelSpec

_FULL = 0.999  # formulas of queues have no answer at full load
_MOST = 4096
"""Sequences at once where neither memory nor the engine sets a limit."""


@dataclass(frozen=True)
class Requests:
    """What arrives: lengths in tokens, ``output_cv`` the standard deviation of outputs over their mean,
    ``shared_prefix`` the share of each prompt that is cached already."""

    prompt: int
    output: int
    output_cv: float = 0.0
    shared_prefix: float = 0.0

    @property
    def computed(self) -> int:
        """Prompt tokens that are computed: at least the last one."""
        return max(1, round(self.prompt * (1 - self.shared_prefix)))

    @property
    def mean_context(self) -> float:
        """Tokens held by a sequence at a random moment; long outputs are met more often than short ones."""
        return self.prompt + self.output * (1 + self.output_cv**2) / 2


@dataclass(frozen=True)
class Replica:
    """One model instance under an engine: everything that prices its steps."""

    spec: ModelSpec
    layout: Layout
    roof: Roof
    setting: Setting
    kv_dtype: str

    def step_s(self, step: Step, *, eager: bool, chunks: Quantity = 1) -> Quantity:
        """Likely seconds of a step; pipeline stages one after the other."""
        sent = communication_bytes(self.spec, self.layout, tokens=step.tokens)
        total: Quantity = 0.0
        for stage in rank_specs(self.spec, self.layout):
            total = total + estimate_s(
                step_ops(stage, step, kv_dtype=self.kv_dtype),
                self.roof,
                self.setting,
                tokens=step.tokens,
                sequences=step.sequences,
                eager=eager,
                chunks=chunks,
                reduces=collectives(self.spec, self.layout),
                communication_bytes=sent,
                devices=max(self.layout.tp, self.layout.ep),
            )
        return total

    def decode_s(self, sequences: Quantity, requests: Requests) -> Quantity:
        """t(N): a decode step of N sequences at their mean context."""
        return self.step_s(decode_step(sequences=sequences, context=requests.mean_context), eager=False)

    def prefill_s(self, requests: Requests, budget: Quantity | None = None) -> Quantity:
        """One request's prompt alone, in chunks of at most ``budget`` tokens."""
        cached = requests.prompt - requests.computed
        step = prefill_step(sequences=1, prompt=requests.computed, context=cached)
        chunks = 1 if budget is None else maximum(1.0, requests.computed / budget)
        return self.step_s(step, eager=True, chunks=chunks)


def rate_of(sequences: Quantity, *, decode_s: Quantity, prefill_s: Quantity, output: int) -> Quantity:
    """Requests a second that N decoding sequences carry: N / (O t(N) + N c)."""
    shared_s = calibration().table["general"]["mix"] * prefill_s
    return sequences / (output * decode_s + sequences * shared_s)


def queue_s(*, busy: Quantity, service_s: Quantity, servers: Quantity, variation: float = 1.0) -> Quantity:
    """Mean wait for one of several servers that are ``busy`` (a share below 1) of the time.

    service / servers x busy^(sqrt(2 (servers + 1)) - 1) / (1 - busy) x variation, the mean of the squared
    coefficients of variation of arrivals and service. Source: H. Sakasegawa, "An approximation formula",
    1977; exact for one server.
    """
    exponent = (2 * (servers + 1)) ** 0.5 - 1
    return service_s / servers * busy**exponent / (1 - busy) * variation


@dataclass(frozen=True)
class Serving:
    """The steady state of all replicas. Per-second figures are totals, latencies those of one request.

    ``running`` sequences decode at once over all replicas; ``limit`` is the most that memory and engine
    allow, ``limited_by`` which of the two. Where the asked rate is over ``max_rate_per_s`` nothing settles:
    latencies are None.
    """

    rate_per_s: float
    max_rate_per_s: float
    stable: bool
    running: float
    limit: int
    limited_by: str
    ttft_s: float | None
    tpot_s: float | None
    itl_longest_s: float | None
    queue_s: float | None
    output_tokens_per_s: float
    preempts: bool

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rate_per_s": self.rate_per_s,
            "max_rate_per_s": self.max_rate_per_s,
            "stable": self.stable,
            "running": self.running,
            "limit": self.limit,
            "limited_by": self.limited_by,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "itl_longest_s": self.itl_longest_s,
            "queue_s": self.queue_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "preempts": self.preempts,
        }


def steady_state(
    replica: Replica,
    requests: Requests,
    *,
    rate_per_s: float | None = None,
    concurrency: int | None = None,
    replicas: int = 1,
    kv_capacity_tokens: int | None = None,
    max_sequences: int | None = None,
    budget: int | None = None,
) -> Serving:
    """What an arrival rate, or a fixed concurrency of clients, settles at; exactly one of the two.

    ``kv_capacity_tokens`` (of one replica) holds N sequences of mean length; from the number of full-length
    ones on, some are preempted. Raises InputError for a rate or concurrency that is not positive.
    """
    if (rate_per_s is None) == (concurrency is None):
        raise InputError(
            "either a request rate or a concurrency is needed", allowed="one of rate, concurrency"
        )
    for name, value in (("rate", rate_per_s), ("concurrency", concurrency)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive", value=value)
    limit, limited_by, full = running_limit(requests, kv_capacity_tokens, max_sequences)
    prefill_s = float(replica.prefill_s(requests, budget))

    def carried(sequences: float) -> float:
        decode_s = float(replica.decode_s(sequences, requests))
        return float(rate_of(sequences, decode_s=decode_s, prefill_s=prefill_s, output=requests.output))

    most = carried(limit)
    if concurrency is not None:
        running = min(concurrency / replicas, limit)
        rate = carried(running)
    else:
        assert rate_per_s is not None
        rate = rate_per_s / replicas
        if rate >= most:
            return _saturated(
                rate_per_s, most * replicas, limit * replicas, limited_by, requests, limit > full
            )
        running = _settled(carried, rate, limit)
    shared_s = calibration().table["general"]["mix"] * prefill_s
    decode_s = float(replica.decode_s(max(running, 1.0), requests))
    tpot_s = float(token_s(running=running, decode_s=decode_s, shared_s=shared_s, output=requests.output))
    wait_s = decode_s / 2 + (
        _client_wait_s(concurrency / replicas, limit, prefill_s, rate)
        if concurrency is not None
        else float(
            arrival_wait_s(
                rate=rate, running=running, limit=limit, shared_s=shared_s, tpot_s=tpot_s, requests=requests
            )
        )
    )
    chunk_s = prefill_s if budget is None else prefill_s * min(1.0, budget / requests.computed)
    return Serving(
        rate_per_s=rate * replicas,
        max_rate_per_s=most * replicas,
        stable=True,
        running=running * replicas,
        limit=limit * replicas,
        limited_by=limited_by,
        ttft_s=replica.setting.engine.request_s + prefill_s + wait_s,
        tpot_s=tpot_s,
        itl_longest_s=decode_s + chunk_s,
        queue_s=wait_s,
        output_tokens_per_s=rate * requests.output * replicas,
        preempts=running > full,
    )


def running_limit(
    requests: Requests, kv_capacity_tokens: int | None, max_sequences: int | None
) -> tuple[int, str, float]:
    """(sequences that run at once, what limits them, how many of full length fit)."""
    by_engine = max_sequences or _MOST
    if kv_capacity_tokens is None:
        return by_engine, "engine", float(by_engine)
    by_memory = int(kv_capacity_tokens // requests.mean_context)
    full = kv_capacity_tokens / (requests.prompt + requests.output)
    if full < 1:
        raise InputError(
            f"the cache holds {kv_capacity_tokens} tokens, less than one request",
            value=requests.prompt + requests.output,
            next="shorten the requests, or use more or larger devices",
        )
    return (by_memory, "memory", full) if by_memory < by_engine else (by_engine, "engine", full)


def _settled(carried: Any, rate: float, limit: int) -> float:
    """The number of sequences whose rate is the arriving one (below 1: idle now and then)."""
    low, high = 0.0, float(limit)
    for _ in range(40):
        middle = (low + high) / 2
        # Below one sequence the replica idles in between: its rate is in proportion.
        given = carried(middle) if middle >= 1 else carried(1.0) * middle
        low, high = (middle, high) if given < rate else (low, middle)
    return high


def arrival_wait_s(
    *,
    rate: Quantity,
    running: Quantity,
    limit: Quantity,
    shared_s: Quantity,
    tpot_s: Quantity,
    requests: Requests,
) -> Quantity:
    """Wait for prompts that came before (one server, fixed service) and for a place among the running."""
    prompts_s = queue_s(busy=minimum(rate * shared_s, _FULL), service_s=shared_s, servers=1, variation=0.5)
    places_s = queue_s(
        busy=minimum(running / limit, _FULL),
        service_s=requests.output * tpot_s,
        servers=limit,
        variation=(1 + requests.output_cv**2) / 2,
    )
    return prompts_s + places_s


def token_s(*, running: Quantity, decode_s: Quantity, shared_s: Quantity, output: int) -> Quantity:
    """TPOT: a step, and the share of the other sequences' prompts that run in between."""
    return decode_s + maximum(running - 1, 0.0) * shared_s / output


def _client_wait_s(clients: float, limit: int, prefill_s: float, rate: float) -> float:
    """Closed loop: finished requests come back together, and those over the limit wait for a place."""
    together_s = calibration().table["general"]["queue"] * (min(clients, limit) - 1) / 2 * prefill_s
    return float(max(0.0, together_s) + max(0.0, clients - limit) / rate)


def _saturated(
    rate: float, most: float, limit: int, limited_by: str, requests: Requests, preempts: bool
) -> Serving:
    return Serving(
        rate_per_s=rate,
        max_rate_per_s=most,
        stable=False,
        running=float(limit),
        limit=limit,
        limited_by=limited_by,
        ttft_s=None,
        tpot_s=None,
        itl_longest_s=None,
        queue_s=None,
        output_tokens_per_s=most * requests.output,
        preempts=preempts,
    )
