"""What a search is asked and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.analysis.goodput import Goodput
from rooflens.analysis.launch import Launch, command_lines
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.prices import Price
from rooflens.analysis.requests import Requests
from rooflens.analysis.search_text import Reason, in_english
from rooflens.display import Displayed
from rooflens.units import KILO, MEGA

_HOUR_S = 3600


@dataclass(frozen=True)
class Goal:
    """What is asked: likely latencies at most, requests a second at least; None where it does not matter."""

    requests: Requests
    rate_per_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    max_devices: int = 8

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second at the asked rate."""
        return self.rate_per_s * self.requests.output


@dataclass(frozen=True)
class PoolChoice:
    """So many instances of a layout on a device; ``role`` is serve, prefill or decode."""

    role: str
    device: str
    instances: int
    layout: Layout

    @property
    def devices(self) -> int:
        """Devices of the pool."""
        return self.instances * self.layout.devices

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        layout = self.layout
        return {
            "role": self.role,
            "device": self.device,
            "devices": self.devices,
            "instances": self.instances,
            "tp": layout.tp,
            "pp": layout.pp,
            "ep": layout.ep,
            "dp": layout.dp,
        }


@dataclass(frozen=True)
class Option:
    """One feasible configuration, its likely figures and what keeps it from being better.

    ``pools`` is one of instances that do both, or a prefill and a decode pool.
    """

    pools: tuple[PoolChoice, ...]
    weights: str
    kv_dtype: str
    max_sequences: int
    budget: int
    ttft_s: float
    tpot_s: float
    max_rate_per_s: float
    running: float
    price_per_hour: float | None
    watts: float | None
    transfer_s: float | None
    launches: tuple[Launch, ...]
    reasons: tuple[Reason, ...] = ()
    goodput: Goodput | None = None
    pareto: bool = False

    @property
    def devices(self) -> int:
        """Devices in all."""
        return sum(pool.devices for pool in self.pools)

    @property
    def decodes(self) -> PoolChoice:
        """The pool that decodes."""
        return self.pools[-1]

    @property
    def device(self) -> str:
        """The device that decodes."""
        return self.decodes.device

    @property
    def tp(self) -> int:
        """Tensor parallel degree of the decoding instances."""
        return self.decodes.layout.tp

    @property
    def replicas(self) -> int:
        """Decoding instances."""
        return self.decodes.instances

    @property
    def why(self) -> str:
        """The reasons in English."""
        return in_english(self.reasons)

    @property
    def commands(self) -> tuple[str, ...]:
        """The lines that start it."""
        return command_lines(self.launches)

    def price_per_million_tokens(self, goal: Goal) -> float | None:
        """Price of a million output tokens at the asked rate."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour / (goal.tokens_per_s * _HOUR_S) * MEGA

    def kwh_per_million_tokens(self, goal: Goal) -> float | None:
        """Energy of a million output tokens at the asked rate with every device at its TDP: at most that."""
        if self.watts is None:
            return None
        return self.watts / goal.tokens_per_s * MEGA / (_HOUR_S * KILO)

    def to_dict(self, goal: Goal) -> dict[str, Any]:
        """As JSON."""
        return {
            "device": self.device,
            "devices": self.devices,
            "pools": [pool.to_dict() for pool in self.pools],
            "tp": self.tp,
            "replicas": self.replicas,
            "weights": self.weights,
            "kv_dtype": self.kv_dtype,
            "max_sequences": self.max_sequences,
            "max_batched_tokens": self.budget,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "transfer_s": self.transfer_s,
            "max_rate_per_s": self.max_rate_per_s,
            "running": self.running,
            "goodput": None if self.goodput is None else self.goodput.to_dict(),
            "price_per_hour": self.price_per_hour,
            "price_per_million_output_tokens": self.price_per_million_tokens(goal),
            "tdp_w": self.watts,
            "tdp_joules_per_output_token": None if self.watts is None else self.watts / goal.tokens_per_s,
            "tdp_kwh_per_million_output_tokens": self.kwh_per_million_tokens(goal),
            "pareto": self.pareto,
            "why": self.why,
            "command": "\n".join(self.commands),
            "commands": list(self.commands),
        }


@dataclass(frozen=True)
class Constraint:
    """What a limit does: how many configurations fail it, how many fail nothing else, the best that was
    reached, and how many would pass all limits if it were 10 % looser (memory: only counted where nothing
    passes)."""

    name: str
    limit: float | None
    fails: int
    fails_alone: int
    best: float | None
    passes_relaxed: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "limit": self.limit,
            "fails": self.fails,
            "fails_alone": self.fails_alone,
            "best": self.best,
            "passes_relaxed": self.passes_relaxed,
        }


@dataclass(frozen=True)
class Nearest:
    """Where nothing is feasible: the configuration that misses by the least, and by how much each limit."""

    pools: tuple[PoolChoice, ...]
    weights: str
    over: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: ``over`` is figure over limit, above 1 where the limit is missed."""
        return {
            "device": self.pools[-1].device,
            "devices": sum(pool.devices for pool in self.pools),
            "pools": [pool.to_dict() for pool in self.pools],
            "weights": self.weights,
            "tp": self.pools[-1].layout.tp,
            "over": dict(self.over),
        }


@dataclass(frozen=True)
class SearchResult(Displayed):
    """Feasible options, the cheapest first; ``refused`` says which combinations cannot be, and why;
    ``verdict`` which limit kills a search that finds none, and what loosening each would do."""

    model: str
    engine: str
    goal: Goal
    tried: int
    feasible: int
    options: tuple[Option, ...]
    constraints: tuple[Constraint, ...]
    nearest: Nearest | None
    verdict: tuple[Reason, ...]
    refused: tuple[tuple[str, int], ...]
    prices: tuple[tuple[str, Price], ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        goal = self.goal
        asked = goal.requests
        return {
            "schema": "rooflens.search/1",
            "model": self.model,
            "engine": self.engine,
            "goal": {
                "rate_per_s": goal.rate_per_s,
                "ttft_s": goal.ttft_s,
                "tpot_s": goal.tpot_s,
                "prompt": asked.prompt,
                "prompt_std": asked.prompt * asked.prompt_cv,
                "output": asked.output,
                "output_std": asked.output * asked.output_cv,
                "shared_prefix": asked.shared_prefix,
                "max_devices": goal.max_devices,
            },
            "tried": self.tried,
            "feasible": self.feasible,
            "ranked_by": "price" if self.prices else "devices, then power",
            "prices": {name: price.to_dict() for name, price in self.prices},
            "options": [option.to_dict(goal) for option in self.options],
            "constraints": [one.to_dict() for one in self.constraints],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
            "verdict": [one.english() for one in self.verdict],
            "refused": [{"why": why, "combinations": count} for why, count in self.refused],
            "notes": list(self.notes),
        }
