"""What an account means: the one thing in the way, and what to do next. Rules, each with its threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rooflens.explain import UNEXPLAINED_LIMIT, Account
from rooflens.measure.lab import KNEE_SLOWDOWN
from rooflens.units import format_count, format_seconds, format_share

AT_THE_ROOF = 0.70
"""Real kernels reach about 70 to 85 % of the bandwidth: from here on the roofline itself is in the way."""
HEALTHY_PREFILL_MFU = 0.50
IDLE_DECODE_MFU = 0.10
"""A prefill over the first with a decode under the second is healthy: each is at its own roof."""


@dataclass(frozen=True)
class Reading:
    """One sentence on what is in the way (``key`` names it for translations), and one on what to do.

    ``figures`` are the numbers that the sentence quotes.
    """

    key: str
    sentence: str
    next: str
    figures: dict[str, float | str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


#: By row of the account: what is in the way, and what to do about it.
_IN_THE_WAY = {
    "weights": ("reading the weights", "read them for more sequences at once, or store them in fewer bits"),
    "kv": ("reading the KV cache", "keep the cache in fewer bits, or shorten the context"),
    "compute": ("arithmetic at the device's peak", "use a type with a higher peak, or another device"),
    "forward": (
        "the forward pass, beyond its roofline",
        "time its modules: profile eager steps",
    ),
    "attention": (
        "attention, beyond the cache that it must read",
        "use a fused attention kernel over the paged cache",
    ),
    "matmuls": (
        "matrix multiplies that miss their roofline",
        "use packed or quantised kernels, and check that nothing else runs on the device",
    ),
    "small_operators": ("norms and activations", "fuse them into the multiplies beside them"),
    "launch": (
        "launching operators and threads",
        "capture the step in a graph, compile it, or fuse operators; a larger batch spreads the cost",
    ),
    "sampling": ("choosing tokens", "sample greedily or on the device, for many sequences at once"),
    "scheduling": ("the scheduler", "run more sequences in a step"),
    "detokenisation": ("turning tokens into text", "detokenise on another thread"),
    "drafting": ("guessing tokens", "guess fewer tokens, or only where guesses turn out right"),
    "queues": ("waiting between steps", "keep other work off the engine's thread"),
    "profiler": ("the profiler itself", "measure whole steps"),
    "unexplained": ("time that nothing accounts for", "measure again on a quiet machine"),
}


def read_account(account: Account) -> Reading:
    """What is in the way of one kind of step: the roofline if it is near, else the largest gap."""
    roofline = account.share("weights", "kv", "compute")
    rows = [row for row in account.rows if (row.group == "roofline") == (roofline >= AT_THE_ROOF)]
    worst = max(rows, key=lambda row: row.seconds)
    what, then = _IN_THE_WAY[worst.name]
    if worst.name == "launch" and account.dispatches:
        what = f"launching {format_count(account.dispatches)} operators"
    sentence = (
        f"A {account.phase} step takes {format_seconds(account.clock_s)}, {account.times_bound:.1f} times its"
        f" bound of {format_seconds(account.bound_s)}. In the way: {what}, {format_share(worst.share)} of it."
    )
    if abs(account.unexplained_share) > UNEXPLAINED_LIMIT and worst.name != "unexplained":
        sentence += f" Not explained: {format_share(account.unexplained_share)}."
    figures: dict[str, float | str] = {
        "phase": account.phase,
        "clock_s": account.clock_s,
        "bound_s": account.bound_s,
        "share": worst.share,
        "unexplained_share": account.unexplained_share,
    }
    return Reading(worst.name, sentence, then, figures)


def read_phases(prefill: Account | None, decode: Account | None) -> Reading | None:
    """Both phases together; None where one is missing.

    Prefill over half of the peak with a decode far under it is as it should be. Both low: the batch is too
    small, or launches dominate.
    """
    if prefill is None or decode is None:
        return None
    figures: dict[str, float | str] = {
        "prefill_mfu": prefill.mfu,
        "decode_mfu": decode.mfu,
        "decode_mbu": decode.mbu,
        "launch_share": decode.share("launch"),
    }
    shown = (
        f"Prefill uses {format_share(prefill.mfu)} of the peak, decode {format_share(decode.mfu)} of it and"
        f" {format_share(decode.mbu)} of the bandwidth"
    )
    if prefill.mfu > HEALTHY_PREFILL_MFU and decode.mfu < IDLE_DECODE_MFU:
        return Reading(
            "healthy",
            f"{shown}: a healthy pair, prefill at the peak and decode at the bandwidth.",
            "for more tokens per second work on batching and on bytes",
            figures,
        )
    if prefill.mfu <= HEALTHY_PREFILL_MFU and decode.mfu < IDLE_DECODE_MFU and decode.mbu < AT_THE_ROOF:
        launch = decode.share("launch", "small_operators")
        if launch > decode.share("matmuls", "attention", "forward"):
            return Reading(
                "launch_bound",
                f"{shown}: both are low, and launches take {format_share(launch)} of a decode step.",
                "capture steps in graphs, compile, or fuse operators",
                figures,
            )
        return Reading(
            "both_low",
            f"{shown}: both are low: the batch is too small for the device, or its kernels miss their roof.",
            f"run more sequences at once, then: {read_account(decode).next}",
            figures,
        )
    worse = max((prefill, decode), key=lambda account: account.times_bound)
    return Reading("mixed", f"{shown}. {read_account(worse).sentence}", read_account(worse).next, figures)


@dataclass(frozen=True)
class BatchPoint:
    """One batch of a sweep: how long its decode step takes, and its account."""

    batch: int
    account: Account


#: What can bring the knee before the ridge: the rows that grow with it, and what it is called.
_KNEE_CAUSES = {
    "kv_reads": (("kv", "attention"), "KV reads, which grow with batch x context"),
    "reachable_peak": (
        ("compute", "matmuls", "forward"),
        "multiplies that reach less than the data sheet's peak",
    ),
    "overhead": (
        ("launch", "small_operators", "sampling", "scheduling", "detokenisation", "queues", "unexplained"),
        "overhead that each step and each sequence costs",
    ),
}


def read_knee(points: Sequence[BatchPoint], *, ridge_batch: float | None) -> Reading | None:
    """Where a batch sweep leaves its floor, against the ridge, and what brought it there.

    The knee is the first batch whose step takes ``KNEE_SLOWDOWN`` times as long as the smallest's. None for
    fewer than two points.
    """
    ordered = sorted(points, key=lambda point: point.batch)
    if len(ordered) < 2:
        return None
    first, last = ordered[0], ordered[-1]
    knee = next((p for p in ordered if p.account.clock_s > KNEE_SLOWDOWN * first.account.clock_s), None)
    ridge = "unknown" if ridge_batch is None else format_count(ridge_batch)
    if knee is None:
        return Reading(
            "no_knee",
            f"Up to batch {last.batch} a step takes less than {KNEE_SLOWDOWN:g} times as long as at batch"
            f" {first.batch}; the ridge is at batch {ridge}.",
            "larger batches still come almost for free",
            {
                "batch": last.batch,
                "first_batch": first.batch,
                "slowdown": f"{KNEE_SLOWDOWN:g}",
                "ridge_batch": "unknown" if ridge_batch is None else ridge_batch,
            },
        )
    figures: dict[str, float | str] = {"batch": knee.batch}
    figures["ridge_batch"] = "unknown" if ridge_batch is None else ridge_batch
    start = f"The knee is at batch {knee.batch}"
    if ridge_batch is None or knee.batch >= ridge_batch:
        return Reading(
            "at_the_ridge",
            f"{start}; the ridge is at batch {ridge}: arithmetic takes over from weight reads as predicted.",
            "more sequences now cost time in proportion",
            figures,
        )
    growth = {
        key: knee.account.seconds(*rows) - first.account.seconds(*rows)
        for key, (rows, _) in _KNEE_CAUSES.items()
    }
    cause = max(growth, key=lambda key: growth[key])
    whole = knee.account.clock_s - first.account.clock_s
    figures |= {"first_batch": first.batch, "cause_share": growth[cause] / whole}
    return Reading(
        cause,
        f"{start}, well before the ridge at batch {ridge}: {format_share(growth[cause] / whole)} of the time"
        f" added since batch {first.batch} is {_KNEE_CAUSES[cause][1]}.",
        {
            "kv_reads": "keep the cache in fewer bits, or shorten the context",
            "reachable_peak": "take the measured peak for the ridge: probe the device",
            "overhead": "capture steps in graphs, and move host work off the step",
        }[cause],
        figures,
    )
