"""The steady state of serving: what ``serving`` answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflens.analysis.goodput import Goodput, Latencies
from rooflens.analysis.requests import Requests
from rooflens.display import Displayed

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Serving(Displayed):
    """The steady state of all replicas. Per-second figures are totals, latencies those of one request.

    ``running`` sequences decode at once over all replicas; ``limit`` is the most that memory and engine
    allow, ``limited_by`` which of the two. ``kv_use`` is the mean share of the cache that is held,
    ``overflow_share`` the share of the time in which more is wanted than there is, so an engine preempts.
    Where the asked rate is over ``max_rate_per_s`` nothing settles: latencies are None.
    """

    rate_per_s: float
    max_rate_per_s: float
    stable: bool
    running: float
    limit: int
    limited_by: str
    output_tokens_per_s: float
    kv_use: float | None
    overflow_share: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_longest_s: float | None = None
    queue_s: float | None = None
    end_to_end_s: float | None = None
    ttft_quantiles_s: tuple[float, ...] | None = None
    tpot_quantiles_s: tuple[float, ...] | None = None
    goodput: Goodput | None = None
    requests: Requests | None = None

    @property
    def preempts(self) -> bool:
        """Whether sequences are preempted more than now and then (a hundredth of the time)."""
        return self.overflow_share > 0.01

    def saturated(self) -> Serving:
        """The state where more arrives than is served."""
        return replace(self, stable=False)

    def settled(
        self,
        *,
        ttft_s: float,
        queue_s: float,
        itl_longest_s: float,
        latencies: Latencies,
        goodput: Goodput | None,
        requests: Requests,
    ) -> Serving:
        """The state with its latencies."""
        return replace(
            self,
            ttft_s=ttft_s,
            tpot_s=latencies.tpot_s,
            itl_longest_s=itl_longest_s,
            queue_s=queue_s,
            end_to_end_s=ttft_s + (requests.output - 1) * latencies.tpot_s,
            ttft_quantiles_s=tuple(latencies.ttft_quantile_s(share) for share in QUANTILES),
            tpot_quantiles_s=tuple(latencies.tpot_quantile_s(share) for share in QUANTILES),
            goodput=goodput,
            requests=requests,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        asked = self.requests
        return {
            "rate_per_s": self.rate_per_s,
            "max_rate_per_s": self.max_rate_per_s,
            "stable": self.stable,
            "running": self.running,
            "limit": self.limit,
            "limited_by": self.limited_by,
            "ttft_s": self.ttft_s,
            "ttft_quantiles_s": _named(self.ttft_quantiles_s),
            "tpot_s": self.tpot_s,
            "tpot_quantiles_s": _named(self.tpot_quantiles_s),
            "itl_longest_s": self.itl_longest_s,
            "end_to_end_s": self.end_to_end_s,
            "queue_s": self.queue_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "goodput": None if self.goodput is None else self.goodput.to_dict(),
            "kv_use": self.kv_use,
            "overflow_share": self.overflow_share,
            "preempts": self.preempts,
            "requests": None
            if asked is None
            else {
                "prompt": asked.prompt,
                "prompt_std": asked.prompt * asked.prompt_cv,
                "output": asked.output,
                "output_std": asked.output * asked.output_cv,
                "longest": asked.full_context,
                "shared_prefix": asked.shared_prefix,
            },
        }


def _named(values: tuple[float, ...] | None) -> dict[str, float] | None:
    return None if values is None else {f"p{q * 100:.0f}": v for q, v in zip(QUANTILES, values, strict=True)}
