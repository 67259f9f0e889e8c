"""Ranked advice: every technique tried on the case at hand, with its predicted gain, or that it has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rooflens.analysis import techniques as what_if
from rooflens.analysis.advice_text import ACTS_ON, WHY
from rooflens.analysis.plan import Plan
from rooflens.analysis.techniques import Draft, Outcome, Scenario, evaluate, scenario_of, verifying_step_s
from rooflens.errors import RooflensError
from rooflens.hardware.catalogue import devices
from rooflens.models.formats.base import DTYPE_BITS
from rooflens.models.spec import MixtureOfExperts
from rooflens.units import format_bytes, format_seconds

LEAST_GAIN = 1.02
"""A technique that gains less than 2 % in everything has no gain here."""

FORMATS: dict[str, tuple[str, ...]] = {
    "llama.cpp": ("q8_0", "q4_k_m"),
    "ollama": ("q8_0", "q4_k_m"),
    "rooflens": ("q8_0", "q4_k_m"),
}
_SERVED_FORMATS = ("fp8", "awq")
_CACHES: dict[str, str] = {"llama.cpp": "q8_0", "ollama": "q8_0", "rooflens": "int8"}
_SERVED_CACHE = "fp8"
_CHUNK = 2048
_SHARED = 0.5
_MOST_SEQUENCES = 1024
_SLOWER = 2.0  # a larger batch is advised while a token takes no more than twice as long
# Guesses of a drafting model a tenth of the size, and of n-gram look-up in text that repeats its prompt.
_DRAFTS = ((0.7, 0.1), (0.4, 0.0))
_GUESSES = (1, 2, 4, 6)


@dataclass(frozen=True)
class Advice:
    """One technique for one case. Gains are ratios: 1.5 is one and a half times as fast, 1 no change.

    ``decode_gain`` is of tokens a second over all sequences, ``tpot_gain`` of one sequence's,
    ``prefill_gain`` of the time to the first token. None where the case could not run before.
    """

    technique: str
    change: str | None
    decode_gain: float | None
    tpot_gain: float | None
    prefill_gain: float | None
    memory_saved_bytes: int | None
    why: str
    facts: dict[str, str] = field(default_factory=dict)
    fits: bool | None = None
    assumed: bool = False  # it rests on a share that only the user's requests tell

    @property
    def acts_on(self) -> str:
        """What the technique changes in the roofline picture."""
        return ACTS_ON[self.technique]

    @property
    def gains(self) -> bool:
        """Whether it is worth anything here."""
        best = max(self.decode_gain or 0, self.tpot_gain or 0, self.prefill_gain or 0)
        return best >= LEAST_GAIN or (self.memory_saved_bytes or 0) > 0

    @property
    def rank(self) -> float:
        """The larger the better: the best of its gains, less what it costs elsewhere;
        assumed ones count half (of the logarithm)."""
        gains = [gain for gain in (self.decode_gain, self.prefill_gain) if gain is not None]
        if not gains:
            return 0.0
        gain = float(max(gains) * min(1.0, *gains) ** 0.5)
        return float(gain**0.5) if self.assumed else gain

    def to_dict(self) -> dict[str, Any]:
        """As JSON, ``why`` in English."""
        return {
            "technique": self.technique,
            "acts_on": self.acts_on,
            "change": self.change,
            "decode_gain": self.decode_gain,
            "tpot_gain": self.tpot_gain,
            "prefill_gain": self.prefill_gain,
            "memory_saved_bytes": self.memory_saved_bytes,
            "fits": self.fits,
            "why": WHY[self.why].format(**self.facts),
        }


def advise(plan: Plan) -> tuple[Advice, ...]:
    """Every technique on the plan's case: those that gain first, the largest gain first; where
    the plan does not fit, those that make it fit before the others.

    A technique that the model, the device or the engine cannot have is left out.
    """
    if plan.spec.free_form is not None:
        return ()
    case = _Case(plan)
    found = [one for one in case.all() if one is not None]
    runs_not = plan.fits is False

    def order(one: Advice) -> tuple[bool, bool, float]:
        return not one.gains, runs_not and one.fits is not True, -one.rank

    return tuple(sorted(found, key=order))


class _Case:
    """The plan's case and its price, which all techniques are compared with."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.base = scenario_of(plan)
        self.now = evaluate(self.base, plan)
        self.work = plan.workload
        self.runs = plan.fits is not False

    def all(self) -> Iterator[Advice | None]:
        for technique in (
            self.weights, self.cache, self.batching, self.speculation, self.chunking, self.prefix,
            self.graphs, self.fused_attention, self.experts, self.offload, self.device, self.layout,
            self.split,
        ):  # fmt: skip
            try:
                yield technique()
            except RooflensError:
                continue  # not possible here: the shapes, formats or figures refuse it

    def priced(self, scenario: Scenario) -> Outcome:
        return evaluate(scenario, self.plan)

    def made(self, technique: str, change: str | None, outcome: Outcome, why: str, /, **facts: str) -> Advice:
        """Advice from a changed outcome."""
        now = self.now
        return Advice(
            technique=technique,
            change=change,
            decode_gain=outcome.tokens_per_s / now.tokens_per_s,
            tpot_gain=now.tpot_s / outcome.tpot_s,
            prefill_gain=now.ttft_s / outcome.ttft_s,
            memory_saved_bytes=now.memory_bytes - outcome.memory_bytes,
            why=why,
            facts=facts,
            fits=outcome.fits,
        )

    def none(self, technique: str, why: str, /, **facts: str) -> Advice:
        """Advice that says there is nothing to gain."""
        return Advice(technique, None, 1.0, 1.0, 1.0, 0, why, facts, self.plan.fits)

    def weights(self) -> Advice | None:
        """The fastest of the engine's smaller formats."""
        best: Advice | None = None
        current = self.plan.ledger.row("weights")
        for name in FORMATS.get(self.work.engine, _SERVED_FORMATS):
            try:
                after = self.priced(what_if.weights_as(name)(self.base))
            except RooflensError:
                continue
            if after.memory_bytes >= self.now.memory_bytes:
                continue
            made = self.made(
                "weight_quantisation",
                f"weights {name}",
                after,
                "weights",
                format=name,
                before=format_bytes(current),
                after=format_bytes(current - self.now.memory_bytes + after.memory_bytes),
                ridge=_number(self.plan.ridge_batch),
            )
            if best is None or made.rank > best.rank:
                best = made
        return best or self.none("weight_quantisation", "weights.none")

    def cache(self) -> Advice | None:
        kv_dtype = _CACHES.get(self.work.engine, _SERVED_CACHE)
        if DTYPE_BITS.get(self.work.kv_dtype, 8) <= 8:
            return self.none("kv_quantisation", "cache.small", dtype=self.work.kv_dtype)
        after = self.priced(what_if.cache_as(kv_dtype)(self.base))
        times = self.plan.decode.times
        share = float(times.kv_s) / max(float(times.memory_s), 1e-30)
        key = "cache" if share > 0.05 else "cache.little"
        return self.made(
            "kv_quantisation", f"kv_dtype {kv_dtype}", after, key, share=f"{share:.0%}", dtype=kv_dtype
        )

    def batching(self) -> Advice | None:
        """The largest power of two that fits and keeps a token under twice its time."""
        ledger, dp = self.plan.ledger, self.work.layout.dp
        most = min(_MOST_SEQUENCES, (ledger.max_sequences or _MOST_SEQUENCES) * dp)
        batch, after = self.work.batch, None
        while batch * 2 <= most:
            tried = self.priced(what_if.batch_of(batch * 2)(self.base))
            if tried.fits is False or tried.tpot_s > _SLOWER * self.now.tpot_s:
                break
            if after is not None and tried.tokens_per_s < 1.05 * after.tokens_per_s:
                break
            batch, after = batch * 2, tried
        if after is None:
            return self.none("continuous_batching", "batch.none", most=f"{most:,}")
        made = self.made(
            "continuous_batching",
            f"batch {batch}",
            after,
            "batch",
            batch=f"{batch:,}",
            tpot=format_seconds(after.tpot_s),
            ridge=_number(self.plan.ridge_batch),
        )
        return replace(made, prefill_gain=1.0)  # each prompt takes as long as before

    def speculation(self) -> Advice | None:
        """The best of a drafting model and n-gram look-up, and of a few numbers of guesses."""
        batch = self.work.replica_batch
        plain_s = float(self.plan.decode.estimate.mid)
        verify_s = {guesses: verifying_step_s(self.plan, batch, guesses + 1) for guesses in _GUESSES}
        drafts = [Draft(guesses, acceptance, cost) for acceptance, cost in _DRAFTS for guesses in _GUESSES]

        def per_token_s(draft: Draft) -> float:
            return (
                verify_s[draft.tokens] + draft.tokens * draft.cost_share * plain_s
            ) / draft.expected_tokens

        draft = min(drafts, key=per_token_s)
        after = self.priced(what_if.speculating(draft)(self.base))
        if self.now.tpot_s / after.tpot_s < LEAST_GAIN:
            return self.none("speculative_decoding", "speculation.none", batch=f"{self.work.batch:,}")
        made = self.made(
            "speculative_decoding",
            _drafted(draft),
            after,
            "speculation",
            tokens=f"{draft.expected_tokens:.1f}",
            acceptance=f"{draft.acceptance:.0%}",
            until=self._pays_until(draft),
        )
        return replace(made, memory_saved_bytes=0, prefill_gain=1.0, assumed=True)

    def _pays_until(self, draft: Draft) -> str:
        """The first batch, in steps of four times, at which the draft no longer pays."""
        batch = self.work.replica_batch
        while batch < _MOST_SEQUENCES:
            batch *= 4
            plain_s = verifying_step_s(self.plan, batch, 1)
            verify_s = verifying_step_s(self.plan, batch, draft.tokens + 1)
            if (verify_s + draft.tokens * draft.cost_share * plain_s) / draft.expected_tokens >= plain_s:
                return f"{batch * self.work.layout.dp:,}"
        return f"{batch * self.work.layout.dp:,}+"

    def chunking(self) -> Advice | None:
        budget, prompt = self.work.max_batched_tokens, self.work.prompt
        tokens = prompt * self.work.replica_batch
        if self.work.engine in ("llama.cpp", "ollama") or (budget or tokens) <= _CHUNK:
            return self.none("chunked_prefill", "chunks.none")
        after = self.priced(what_if.chunks_of(_CHUNK)(self.base))
        change = f"max_batched_tokens {_CHUNK}"
        if prompt <= _CHUNK:
            return self.made("chunked_prefill", change, after, "chunks.short")
        alone_s = self.now.ttft_s / self.work.replica_batch
        return self.made(
            "chunked_prefill",
            change,
            after,
            "chunks",
            before=format_seconds(alone_s),
            after=format_seconds(after.ttft_s / self.work.replica_batch * _CHUNK / prompt),
        )

    def prefix(self) -> Advice | None:
        after = self.priced(what_if.prefix_cached(_SHARED)(self.base))
        return replace(
            self.made(
                "prefix_caching",
                f"{_SHARED:.0%} of the prompt shared",
                after,
                "prefix",
                share=f"{_SHARED:.0%}",
            ),
            memory_saved_bytes=0,
            assumed=True,
        )

    def graphs(self) -> Advice | None:
        without = self.priced(what_if.without_graphs(self.base))
        return self.none("cuda_graphs", "graphs", loss=f"{without.tpot_s / self.now.tpot_s:.2f}")

    def fused_attention(self) -> Advice | None:
        without = self.priced(what_if.without_fused_attention(self.base))
        return self.none("fused_attention", "fused", loss=f"{without.ttft_s / self.now.ttft_s:.2f}")

    def experts(self) -> Advice | None:
        layout = self.work.layout
        sparse = any(isinstance(group.layer.mlp, MixtureOfExperts) for group in self.plan.spec.groups)
        if not sparse or layout.devices == 1 or layout.ep > 1:
            return None
        after = self.priced(what_if.layout_of(replace(layout, ep=layout.tp * layout.dp))(self.base))
        made = self.made("expert_parallel", f"ep {layout.tp * layout.dp}", after, "experts")
        return made if made.gains else replace(made, why="experts.none")

    def offload(self) -> Advice | None:
        missing = self.plan.ledger.deficit_bytes * self.work.layout.devices
        if not missing:
            return self.none("offload", "offload.none")
        scenario = what_if.offloading(self.base, missing)
        after = self.priced(scenario)
        if after.fits is False:
            return None
        made = self.made(
            "offload",
            f"{format_bytes(missing)} of weights to the host",
            after,
            "offload",
            tpot=format_seconds(after.tpot_s),
            bytes=format_bytes(missing),
        )
        return replace(made, decode_gain=None, tpot_gain=None, prefill_gain=None)

    def device(self) -> Advice | None:
        """The nearest device of the same vendor and kind with more bandwidth and no less of anything else."""
        own = self.plan.device
        if own.bandwidth_bytes_per_s is None or own.vendor is None:
            return None
        dtype = self.plan.rates.compute_dtype
        faster = sorted(
            (
                one
                for one in devices()
                if one.vendor == own.vendor
                and one.kind == own.kind
                and (one.bandwidth_bytes_per_s or 0) > 1.15 * own.bandwidth_bytes_per_s
                and (one.memory_bytes or 0) >= (own.memory_bytes or 0)
                and (one.year or 0) >= (own.year or 0)
                and one.peaks_flops_per_s.get(dtype, 0.0) >= own.peaks_flops_per_s.get(dtype, 0.0)
            ),
            key=lambda one: (one.bandwidth_bytes_per_s or 0, -(one.year or 0)),
        )
        for one in faster[:8]:
            try:
                after = self.priced(what_if.device_of(one)(self.base))
            except RooflensError:
                continue
            return self.made(
                "faster_device",
                f"device {one.id}",
                after,
                "device",
                device=one.name,
                bandwidth=f"{one.bandwidth() / own.bandwidth():.2f}",
            )
        return self.none("faster_device", "device.none", device=own.name)

    def layout(self) -> Advice | None:
        layout = self.work.layout
        doubled = replace(layout, tp=layout.tp * 2)
        after = self.priced(what_if.layout_of(doubled)(self.base))
        per_device = after.tokens_per_s / self.now.tokens_per_s / 2
        return self.made(
            "tensor_parallel", f"tp {doubled.tp}", after, "layout", per_device=f"{per_device:.2f}"
        )

    def split(self) -> Advice | None:
        if self.work.batch == 1:
            return self.none("phase_split", "split.none")
        after = self.priced(what_if.split_phases(self.base))
        share = 1 - after.tpot_s / self.now.tpot_s
        transfer = format_seconds(max(0.0, after.ttft_s - self.now.ttft_s))
        made = self.made(
            "phase_split",
            "a second pool for prefills",
            after,
            "split",
            share=f"{share:.0%}",
            transfer=transfer,
        )
        return replace(made, memory_saved_bytes=0, assumed=True)


def _drafted(draft: Draft) -> str:
    what = (
        "n-gram look-up" if draft.cost_share == 0 else f"a draft model of {draft.cost_share:.0%} of the size"
    )
    return f"{draft.tokens} guesses by {what}"


def _number(value: float | None) -> str:
    return "no" if value is None else f"{value:,.0f}"
