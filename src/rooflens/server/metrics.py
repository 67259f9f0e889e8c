"""``/metrics``: the engine's own records as Prometheus reads them.

Names and meanings are vLLM's with another prefix, so that its dashboards need one change: TTFT and queue
time count from arrival, time per output token leaves the first token out, cache usage is a share of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rooflens.runtime.engine.records import RequestRecord, StepRecord
from rooflens.runtime.engine.settings import EngineStatus

_PREFIX = "rooflens:"
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)
_REQUEST_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)

# Name and description of each counter and gauge, by the field of EngineStatus that it shows.
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of accepted requests."),
    "output_tokens": ("generation_tokens", "Tokens generated."),
    "preemptions": ("num_preemptions", "Sequences that gave their blocks back and were computed again."),
    "prefix_queried_tokens": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hit_tokens": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "drafted_tokens": ("spec_decode_num_draft_tokens", "Guessed tokens that were checked."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens", "Guessed tokens that were right."),
}
_GAUGES = {
    "running": ("num_requests_running", "Answers in execution."),
    "waiting": ("num_requests_waiting", "Answers waiting to be scheduled."),
}


class ServerMetrics:
    """An observer of the engine, and a registry of its own for the page."""

    def __init__(self, *, model: str, status: Callable[[], EngineStatus]) -> None:
        self._status = status
        self._model = model
        self._finished: dict[str, int] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        seconds = {
            "time_to_first_token": (_REQUEST_S, "From arrival to the first token."),
            "inter_token_latency": (_TOKEN_S, "Between one token and the next."),
            "request_time_per_output_token": (_TOKEN_S, "Mean time per token after the first, by answer."),
            "request_queue_time": (_REQUEST_S, "From arrival to the first step that ran a part of it."),
            "request_prefill_time": (_REQUEST_S, "From the first step to the first token."),
            "request_decode_time": (_REQUEST_S, "From the first token to the last."),
            "e2e_request_latency": (_REQUEST_S, "From arrival to the end."),
            "iteration_time": (_TOKEN_S, "One step of the engine."),
        }
        self._seconds = {
            name: self._histogram(f"{name}_seconds", help_, buckets)
            for name, (buckets, help_) in seconds.items()
        }
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of an answer.", _TOKENS)
        self._output = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._step_tokens = self._histogram("iteration_tokens", "Tokens of a step.", _TOKENS)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(_PREFIX + name, help_, ["model_name"], buckets=buckets, registry=self.registry)
        return made.labels(model_name=self._model)

    def on_step(self, record: StepRecord) -> None:
        """See ``Observer``."""
        self._seconds["iteration_time"].observe(record.total_s)
        self._step_tokens.observe(record.prefill_tokens + record.decode_tokens)

    def on_request(self, record: RequestRecord) -> None:
        """See ``Observer``."""
        self._finished[record.finish_reason] = self._finished.get(record.finish_reason, 0) + 1
        self._prompt.observe(record.prompt_tokens)
        self._output.observe(record.output_tokens)
        ttft_s, queue_s = record.ttft_s, record.queue_s
        known = {
            "time_to_first_token": ttft_s,
            "request_time_per_output_token": record.tpot_s,
            "request_queue_time": queue_s,
            "request_prefill_time": None if ttft_s is None or queue_s is None else ttft_s - queue_s,
            "request_decode_time": sum(record.itl_s) if ttft_s is not None else None,
            "e2e_request_latency": record.total_s,
        }
        for name, value in known.items():
            if value is not None:
                self._seconds[name].observe(value)
        for value in record.itl_s:
            self._seconds["inter_token_latency"].observe(value)

    def collect(self) -> Iterator[Metric]:
        """What is read off the engine when the page is asked for (prometheus_client's collector)."""
        status, labels = self._status(), [self._model]
        for field, (name, help_) in _COUNTERS.items():
            counter = CounterMetricFamily(_PREFIX + name, help_, labels=["model_name"])
            counter.add_metric(labels, getattr(status, field))
            yield counter
        for field, (name, help_) in _GAUGES.items():
            gauge = GaugeMetricFamily(_PREFIX + name, help_, labels=["model_name"])
            gauge.add_metric(labels, getattr(status, field))
            yield gauge
        usage = GaugeMetricFamily(
            f"{_PREFIX}kv_cache_usage_perc",
            "KV blocks of running sequences over all blocks; 1 is full.",
            labels=["model_name"],
        )
        usage.add_metric(labels, status.kv_blocks_used / status.kv_blocks_total)
        yield usage
        ended = CounterMetricFamily(
            f"{_PREFIX}request_success", "Answers that ended.", labels=["model_name", "finished_reason"]
        )
        for reason, count in sorted(self._finished.items()):
            ended.add_metric([self._model, reason], count)
        yield ended

    def page(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
