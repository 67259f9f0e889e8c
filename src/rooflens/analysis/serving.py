"""Continuous batching in the long run: what rates, latencies and concurrencies settle at.

Definitions, as benchmark clients measure them: TTFT is from sending a request to its first token; ITL is
the gap between two tokens of a request; TPOT is the mean of its gaps after the first token; goodput is the
requests a second that meet every limit. All seconds are likely (mid) figures.

Model of one replica: N sequences decode in steps of t(N). Every request also brings a prefill, of which
``mix`` parts of its time alone are added to the steps it shares. With arrivals of rate r and O tokens a
request, Little's law gives N = r O TPOT with TPOT = t(N) + N c / O, c = mix x prefill time. The rate that a
concurrency N carries is therefore N / (O t(N) + N c). Requests that arrive at random meet N others in the
mean, so their steps are those of N + 1; of a fixed number of clients each is one of the N. The formulas are
checked against an engine simulated step by step (tests).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist

from rooflens.analysis.calibration import calibration
from rooflens.analysis.communication import DEFAULT_NETWORK, Network
from rooflens.analysis.estimate import Setting
from rooflens.analysis.goodput import Latencies, Wait, goodput
from rooflens.analysis.likely import likely_step_s
from rooflens.analysis.numeric import Quantity, maximum, minimum
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.requests import Requests
from rooflens.analysis.roofline import Roof
from rooflens.analysis.serving_result import Serving
from rooflens.analysis.step import Step, decode_step, prefill_step
from rooflens.errors import InputError
from rooflens.models.spec import ModelSpec

_FULL = 0.999  # formulas of queues have no answer at full load
_RESTS = 4  # points that stand for the rest of a running step
_MOST = 4096
"""Sequences at once where neither memory nor the engine sets a limit."""


@dataclass(frozen=True)
class Replica:
    """One model instance under an engine: everything that prices its steps.

    Where data-parallel ranks share experts, ``layout`` says so and the figures are those of one rank.
    """

    spec: ModelSpec
    layout: Layout
    roof: Roof
    setting: Setting
    kv_dtype: str
    network: Network = DEFAULT_NETWORK

    def decode_s(self, sequences: Quantity, requests: Requests) -> Quantity:
        """t(N): a decode step of N sequences at their mean context.

        Pipeline stages each run a share of the sequences at a time, and a token passes all of them.
        """
        at_once = maximum(sequences / self.layout.pp, 1.0) if self.layout.pp > 1 else sequences
        step = decode_step(sequences=at_once, context=requests.mean_context)
        return self._step_s(step, eager=False)

    def prompt_s(self, computed: Quantity, cached: Quantity, budget: Quantity | None) -> Quantity:
        """A prompt alone, in chunks of at most ``budget`` tokens."""
        step = prefill_step(sequences=1, prompt=computed, context=cached)
        return self._step_s(step, eager=True, chunks=1 if budget is None else maximum(1.0, computed / budget))

    def prompts_s(self, requests: Requests, budget: Quantity | None = None) -> list[Quantity]:
        """Equally likely prompts alone."""
        return [self.prompt_s(computed, cached, budget) for computed, cached in requests.prompt_points()]

    def prefill_s(self, requests: Requests, budget: Quantity | None = None) -> Quantity:
        """A request's prompt alone, in the mean."""
        times = self.prompts_s(requests, budget)
        return sum(times) / len(times)

    def shared_s(self, prefill_s: Quantity) -> Quantity:
        """What a prompt adds to the steps of others: ``mix`` of its time, on one of the stages at a time."""
        return calibration().table["general"]["mix"] * prefill_s / self.layout.pp

    def _step_s(self, step: Step, *, eager: bool, chunks: Quantity = 1) -> Quantity:
        return likely_step_s(
            self.spec,
            self.layout,
            self.roof,
            self.setting,
            step,
            kv_dtype=self.kv_dtype,
            eager=eager,
            chunks=chunks,
            network=self.network,
        )


def rate_of(sequences: Quantity, *, decode_s: Quantity, shared_s: Quantity, output: int) -> Quantity:
    """Requests a second that N decoding sequences carry: N / (O t(N) + N c)."""
    return sequences / (output * decode_s + sequences * shared_s)


def waiting_share(*, busy: Quantity, servers: Quantity) -> Quantity:
    """Share of arrivals that find all servers busy: busy^(sqrt(2 (servers + 1)) - 1)."""
    return busy ** ((2 * (servers + 1)) ** 0.5 - 1)


def queue_s(*, busy: Quantity, service_s: Quantity, servers: Quantity, variation: float = 1.0) -> Quantity:
    """Mean wait for one of several servers that are ``busy`` (a share below 1) of the time.

    service / servers x busy^(sqrt(2 (servers + 1)) - 1) / (1 - busy) x variation, the mean of the squared
    coefficients of variation of arrivals and service. Source: H. Sakasegawa, "An approximation formula",
    1977; exact for one server.
    """
    return service_s / servers * waiting_share(busy=busy, servers=servers) / (1 - busy) * variation


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
    limits_s: tuple[float | None, float | None] = (None, None),
) -> Serving:
    """What an arrival rate, or a fixed concurrency of clients, settles at; exactly one of the two.

    ``kv_capacity_tokens`` (of one replica) holds N sequences of mean length; where the running ones want
    more, some are preempted and computed again. ``limits_s`` of TTFT and TPOT decide the goodput. Raises
    InputError for a rate or concurrency that is not positive.
    """
    if (rate_per_s is None) == (concurrency is None):
        raise InputError(
            "either a request rate or a concurrency is needed", allowed="one of rate, concurrency"
        )
    for name, value in (("rate", rate_per_s), ("concurrency", concurrency)):
        if value is not None and not value > 0:
            raise InputError(f"{name} must be positive", value=value)
    limit, limited_by, _ = running_limit(requests, kv_capacity_tokens, max_sequences)
    prompts_s = [float(value) for value in replica.prompts_s(requests, budget)]
    prefill_s = sum(prompts_s) / len(prompts_s)
    output = requests.output

    def shared_s(sequences: float) -> float:
        # Short of cache, about as many tokens are computed again as a request grows by.
        again = overflow_share(requests, sequences, kv_capacity_tokens) * output / requests.computed
        return float(replica.shared_s(prefill_s)) * (1 + again)

    arrivals = concurrency is None

    def carried(sequences: float) -> float:
        beside = met_by_arrivals(sequences, limit) if arrivals else sequences
        decode_s = float(replica.decode_s(beside, requests))
        return float(rate_of(sequences, decode_s=decode_s, shared_s=shared_s(sequences), output=output))

    most = carried(limit)
    if concurrency is not None:
        running = min(concurrency / replicas, limit)
        rate = carried(running)
    else:
        assert rate_per_s is not None
        rate = rate_per_s / replicas
        running = float(limit) if rate >= most else _settled(carried, rate, limit)
    beside = met_by_arrivals(running, limit) if arrivals else running
    decode_s = float(replica.decode_s(max(beside, 1.0), requests))
    mixed_s = shared_s(running)
    tpot_s = float(
        token_s(running=running, decode_s=decode_s, shared_s=mixed_s, output=output, arrivals=arrivals)
    )
    overflow = overflow_share(requests, running, kv_capacity_tokens)
    known = Serving(
        rate_per_s=rate * replicas,
        max_rate_per_s=most * replicas,
        stable=True,
        running=running * replicas,
        limit=limit * replicas,
        limited_by=limited_by,
        output_tokens_per_s=min(rate, most) * output * replicas,
        kv_use=None if kv_capacity_tokens is None else running * requests.mean_context / kv_capacity_tokens,
        overflow_share=overflow,
    )
    if concurrency is None and rate >= most:
        return known.saturated()
    if concurrency is not None:
        prompt_wait = Wait(_together_s(concurrency / replicas, limit, prefill_s), even=True)
        place_wait = Wait(max(0.0, concurrency / replicas - limit) / rate, even=True)
    else:
        prompt_wait = prompt_wait_of(rate, mixed_s, prompts_s, step_s=decode_s)
        place_wait = place_wait_of(running, limit, tpot_s, requests)
    latencies = Latencies(
        prompts_s=first_tokens_s(replica.setting.engine.request_s, prompts_s, decode_s),
        prompt_wait=prompt_wait,
        place_wait=place_wait,
        tpot_s=tpot_s,
        tpot_std_s=tpot_std_s(
            requests,
            running=running,
            tpot_s=tpot_s,
            slope_s=float(replica.decode_s(beside + 1, requests)) - decode_s,
            shared_s=mixed_s,
            arrivals=arrivals,
        ),
    )
    wait_s = decode_s / 2 + prompt_wait.mean_s + place_wait.mean_s
    chunk_s = max(prompts_s) if budget is None else max(prompts_s) * min(1.0, budget / requests.computed)
    return known.settled(
        ttft_s=replica.setting.engine.request_s + prefill_s + wait_s,
        queue_s=wait_s,
        itl_longest_s=decode_s + chunk_s,
        latencies=latencies,
        goodput=None
        if limits_s == (None, None)
        else goodput(latencies, rate * replicas, ttft_s=limits_s[0], tpot_s=limits_s[1]),
        requests=requests,
    )


def running_limit(
    requests: Requests, kv_capacity_tokens: int | None, max_sequences: int | None
) -> tuple[int, str, float]:
    """(sequences that run at once, what limits them, how many of full length fit)."""
    by_engine = max_sequences or _MOST
    if kv_capacity_tokens is None:
        return by_engine, "engine", float(by_engine)
    by_memory = int(kv_capacity_tokens // requests.mean_context)
    full = kv_capacity_tokens / requests.full_context
    if full < 1:
        raise InputError(
            f"the cache holds {kv_capacity_tokens} tokens, less than one request",
            value=requests.full_context,
            next="shorten the requests, or use more or larger devices",
        )
    by_memory = max(1, by_memory)
    return (by_memory, "memory", full) if by_memory < by_engine else (by_engine, "engine", full)


def overflow_share(requests: Requests, running: float, kv_capacity_tokens: int | None) -> float:
    """Share of the time in which the running sequences want more cache than there is.

    Their lengths add up to about a normal spread (many, independent). That is when an engine preempts one
    and computes its tokens again later.
    """
    if kv_capacity_tokens is None or running <= 0:
        return 0.0
    if running * requests.full_context <= kv_capacity_tokens:
        return 0.0
    spread = sqrt(running * requests.context_variance)
    spare = kv_capacity_tokens - running * requests.mean_context
    return 1 - NormalDist().cdf(spare / spread) if spread > 0 else float(spare < 0)


def _settled(carried: Callable[[float], float], rate: float, limit: int) -> float:
    """The number of sequences whose rate is the arriving one (below 1: idle now and then)."""
    low, high = 0.0, float(limit)
    for _ in range(40):
        middle = (low + high) / 2
        # Below one sequence the replica idles in between: its rate is in proportion.
        given = carried(middle) if middle >= 1 else carried(1.0) * middle
        low, high = (middle, high) if given < rate else (low, middle)
    return high


def first_tokens_s(before_s: float, prompts_s: Sequence[float], step_s: float) -> tuple[float, ...]:
    """Equally likely times of a first token without a queue: what comes before, the rest of the step that
    runs (anywhere along it), and the prompt."""
    rests = [(index + 0.5) / _RESTS * step_s for index in range(_RESTS)]
    return tuple(before_s + own + rest for own in prompts_s for rest in rests)


def prompt_wait_of(
    rate: float, shared_s: float, prompts_s: Sequence[float], *, servers: int = 1, step_s: float = 0.0
) -> Wait:
    """Wait for prompts that came before, of a spread as theirs, and for the decode steps (``step_s``) that
    run between two rounds of prompts.

    A gated queue with vacations waits service x busy / (1 - busy) x variation for the one and
    busy x step / (1 - busy) for the other, beside the rest of the running step. Source: H. Takagi, *Queueing
    analysis* 1, 1991, section 2.3.
    """
    mean = sum(prompts_s) / len(prompts_s)
    square = sum(value**2 for value in prompts_s) / len(prompts_s)
    variation = (
        square / mean**2 / 2 if mean > 0 else 0.5
    )  # (1 + (E[s^2] / E[s]^2 - 1)) / 2, arrivals at random
    busy = min(rate * shared_s / servers, _FULL)
    wait_s = queue_s(busy=busy, service_s=shared_s, servers=servers, variation=variation)
    rounds_s = busy * step_s / (1 - busy)
    if servers > 1 or not step_s:
        return Wait(float(wait_s + rounds_s), float(waiting_share(busy=busy, servers=servers)))
    # Who comes while prompts run waits for the rest of theirs and a step, who comes later for those that came
    # in the same step; seldom for more, unless the engine is busy.
    waiting = 1 - (1 - busy) * exp(-rate * step_s / 2)
    alone = mean / sqrt(12) / (mean / 2 + step_s)
    return Wait(float(wait_s + rounds_s), waiting, cv=alone + (1 - alone) * busy)


def place_wait_of(running: float, limit: int, tpot_s: float, requests: Requests) -> Wait:
    """Wait for a place among the running."""
    busy = min(running / limit, _FULL)
    service_s = requests.output * tpot_s
    wait_s = queue_s(busy=busy, service_s=service_s, servers=limit, variation=(1 + requests.output_cv**2) / 2)
    return Wait(float(wait_s), float(waiting_share(busy=busy, servers=limit)))


def arrival_wait_s(
    *,
    rate: Quantity,
    running: Quantity,
    limit: Quantity,
    shared_s: Quantity,
    tpot_s: Quantity,
    step_s: Quantity,
    requests: Requests,
) -> Quantity:
    """Mean wait of arrivals for prompts that came before, for the steps between two rounds of them, and for a
    place among the running, as arrays."""
    variation = (1 + requests.prompt_cv**2) / 2
    busy = minimum(rate * shared_s, _FULL)
    prompts_s = queue_s(busy=busy, service_s=shared_s, servers=1, variation=variation)
    rounds_s = busy * step_s / (1 - busy)
    places_s = queue_s(
        busy=minimum(running / limit, _FULL),
        service_s=requests.output * tpot_s,
        servers=limit,
        variation=(1 + requests.output_cv**2) / 2,
    )
    return prompts_s + rounds_s + places_s


def met_by_arrivals(running: Quantity, limit: Quantity) -> Quantity:
    """Sequences of a step as an arriving request meets them: those that run in the mean, and itself."""
    return minimum(running + 1, limit)


def token_s(
    *, running: Quantity, decode_s: Quantity, shared_s: Quantity, output: int, arrivals: bool
) -> Quantity:
    """TPOT: a step, and the prompts that run in between: as many as arrive while one decodes, or of a fixed
    number of clients those of the others."""
    others = running if arrivals else maximum(running - 1, 0.0)
    return decode_s + others * shared_s / output


def tpot_std_s(
    requests: Requests,
    *,
    running: float,
    tpot_s: float,
    slope_s: float,
    shared_s: float,
    arrivals: bool,
) -> float:
    """How TPOT differs between requests, by how many others run and arrive beside each.

    ``slope_s`` is what one sequence more adds to a step. With a fixed number of clients only the prompts in
    between differ. Where requests arrive at random, N spreads by N / (1 - e), e the elasticity of TPOT (a
    slower engine holds more), and lasts about a request's time over 1 - e; over a request the mean of such a
    process keeps 2 (x - 1 + exp(-x)) / x^2 of its variance, x = 1 - e. Source: linearised birth and death,
    an Ornstein-Uhlenbeck process.
    """
    prompt_s = shared_s / requests.output * sqrt(1 + requests.prompt_cv**2)
    if not arrivals:
        return sqrt(max(0.0, running - 1)) * prompt_s
    each_s = slope_s + shared_s / requests.output
    slack = max(0.05, 1 - running * each_s / tpot_s)
    kept = 2 * (slack - 1 + exp(-slack)) / slack**2
    return sqrt(running / slack * kept) * (slope_s + prompt_s)


def _together_s(clients: float, limit: int, prefill_s: float) -> float:
    """Closed loop: finished requests come back together."""
    share = float(calibration().table["general"]["queue"])
    return max(0.0, share * (min(clients, limit) - 1) / 2 * prefill_s)
