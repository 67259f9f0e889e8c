"""What a search is asked and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.analysis.serving import Requests
from rooflens.units import MEGA

_HOUR_S = 3600


@dataclass(frozen=True)
class Goal:
    """What is asked: likely latencies at most, requests a second at least; None where it does not matter."""

    requests: Requests
    rate_per_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    max_devices: int = 8


@dataclass(frozen=True)
class Option:
    """One feasible configuration, its likely figures and what keeps it from being better."""

    device: str
    weights: str
    kv_dtype: str
    tp: int
    replicas: int
    max_sequences: int
    budget: int
    ttft_s: float
    tpot_s: float
    max_rate_per_s: float
    running: float
    price_per_hour: float | None
    watts: float | None
    command: str
    why: str
    pareto: bool = False

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.tp * self.replicas

    def price_per_million_tokens(self, goal: Goal) -> float | None:
        """Price of a million output tokens at the asked rate."""
        if self.price_per_hour is None:
            return None
        tokens_per_hour = goal.rate_per_s * goal.requests.output * _HOUR_S
        return self.price_per_hour / tokens_per_hour * MEGA

    def to_dict(self, goal: Goal) -> dict[str, Any]:
        """As JSON."""
        joules = None if self.watts is None else self.watts / (goal.rate_per_s * goal.requests.output)
        return {
            "device": self.device,
            "devices": self.devices,
            "tp": self.tp,
            "replicas": self.replicas,
            "weights": self.weights,
            "kv_dtype": self.kv_dtype,
            "max_sequences": self.max_sequences,
            "max_batched_tokens": self.budget,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "max_rate_per_s": self.max_rate_per_s,
            "running": self.running,
            "price_per_hour": self.price_per_hour,
            "price_per_million_output_tokens": self.price_per_million_tokens(goal),
            "tdp_w": self.watts,
            "tdp_joules_per_output_token": joules,
            "pareto": self.pareto,
            "why": self.why,
            "command": self.command,
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

    device: str
    devices: int
    weights: str
    tp: int
    over: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: ``over`` is figure over limit, above 1 where the limit is missed."""
        return {
            "device": self.device,
            "devices": self.devices,
            "weights": self.weights,
            "tp": self.tp,
            "over": dict(self.over),
        }


@dataclass(frozen=True)
class SearchResult:
    """Feasible options, the cheapest first; ``refused`` says which combinations cannot be, and why."""

    model: str
    engine: str
    goal: Goal
    tried: int
    feasible: int
    options: tuple[Option, ...]
    constraints: tuple[Constraint, ...]
    nearest: Nearest | None
    refused: tuple[tuple[str, int], ...]
    prices: tuple[tuple[str, float], ...]
    price_source: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        goal = self.goal
        return {
            "schema": "rooflens.search/1",
            "model": self.model,
            "engine": self.engine,
            "goal": {
                "rate_per_s": goal.rate_per_s,
                "ttft_s": goal.ttft_s,
                "tpot_s": goal.tpot_s,
                "prompt": goal.requests.prompt,
                "output": goal.requests.output,
                "max_devices": goal.max_devices,
            },
            "tried": self.tried,
            "feasible": self.feasible,
            "ranked_by": "price" if self.prices else "devices, then power",
            "prices": dict(self.prices),
            "price_source": self.price_source,
            "options": [option.to_dict(goal) for option in self.options],
            "constraints": [one.to_dict() for one in self.constraints],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
            "refused": [{"why": why, "combinations": count} for why, count in self.refused],
        }
