"""Techniques within the step: formats, batches, guesses, chunks, graphs, fused kernels."""

from __future__ import annotations

from dataclasses import replace

from rooflens.analysis import techniques as what_if
from rooflens.analysis.advice_case import LEAST_GAIN, MOST_SEQUENCES, Advice, Case
from rooflens.analysis.techniques import Draft, verifying_step_s
from rooflens.errors import RooflensError
from rooflens.models.formats.base import DTYPE_BITS
from rooflens.units import format_bytes, format_seconds

FORMATS: dict[str, tuple[str, ...]] = {
    "llama.cpp": ("q8_0", "q4_k_m"),
    "ollama": ("q8_0", "q4_k_m"),
    "rooflens": ("q8_0", "q4_k_m"),
}
SERVED_FORMATS = ("fp8", "awq")
_CACHES: dict[str, str] = {"llama.cpp": "q8_0", "ollama": "q8_0", "rooflens": "int8"}
_SERVED_CACHE = "fp8"
_CHUNK = 2048
_SHARED = 0.5
_SLOWER = 2.0  # a larger batch is advised while a token takes no more than twice as long
# Guesses of a drafting model a tenth of the size, and of n-gram look-up in text that repeats its prompt.
_MODEL, _LOOK_UP = (0.7, 0.1), (0.4, 0.0)
_GUESSES = (1, 2, 4, 6)
_LARGEST = 4096  # sequences: up to which batch it is asked whether guesses still pay


def weights(case: Case) -> Advice | None:
    """The fastest of the engine's smaller formats."""
    best: Advice | None = None
    current = case.plan.ledger.row("weights")
    for name in FORMATS.get(case.work.engine, SERVED_FORMATS):
        try:
            after = case.priced(what_if.weights_as(name)(case.base))
        except RooflensError:
            continue
        if after.memory_bytes >= case.now.memory_bytes:
            continue
        made = case.made(
            "weight_quantisation",
            f"weights {name}",
            after,
            "weights",
            format=name,
            before=format_bytes(current),
            after=format_bytes(current - case.now.memory_bytes + after.memory_bytes),
            ridge=_number(case.plan.ridge_batch),
        )
        if best is None or made.rank > best.rank:
            best = made
    return best or case.none("weight_quantisation", "weights.none")


def cache(case: Case) -> Advice | None:
    kv_dtype = _CACHES.get(case.work.engine, _SERVED_CACHE)
    if DTYPE_BITS.get(case.work.kv_dtype, 8) <= 8:
        return case.none("kv_quantisation", "cache.small", dtype=case.work.kv_dtype)
    after = case.priced(what_if.cache_as(kv_dtype)(case.base))
    times = case.plan.decode.times
    share = float(times.kv_s) / max(float(times.memory_s), 1e-30)
    key = "cache" if share > 0.05 else "cache.little"
    return case.made(
        "kv_quantisation", f"kv_dtype {kv_dtype}", after, key, share=f"{share:.0%}", dtype=kv_dtype
    )


def batching(case: Case) -> Advice | None:
    """The largest power of two that fits and keeps a token under twice its time."""
    ledger, dp = case.plan.ledger, case.work.layout.dp
    most = min(MOST_SEQUENCES, (ledger.max_sequences or MOST_SEQUENCES) * dp)
    batch, after = case.work.batch, None
    while batch * 2 <= most:
        tried = case.priced(what_if.batch_of(batch * 2)(case.base))
        if tried.fits is False or tried.tpot_s > _SLOWER * case.now.tpot_s:
            break
        if after is not None and tried.tokens_per_s < 1.05 * after.tokens_per_s:
            break
        batch, after = batch * 2, tried
    if after is None:
        return case.none("continuous_batching", "batch.none", most=f"{most:,}")
    made = case.made(
        "continuous_batching",
        f"batch {batch}",
        after,
        "batch",
        batch=f"{batch:,}",
        tpot=format_seconds(after.tpot_s),
        ridge=_number(case.plan.ridge_batch),
    )
    return replace(made, prefill_gain=1.0)  # each prompt takes as long as before


def speculation(case: Case) -> Advice | None:
    """A drafting model with the number of guesses that suits the batch."""
    return _guessing(case, "speculative_decoding", "speculation", *_MODEL)


def look_up(case: Case) -> Advice | None:
    """Guesses looked up in the text so far, which cost nothing and are right less often."""
    return _guessing(case, "ngram_decoding", "look_up", *_LOOK_UP)


def _guessing(case: Case, technique: str, why: str, acceptance: float, cost_share: float) -> Advice:
    batch = case.work.replica_batch
    plain_s = verifying_step_s(case.plan, batch, 1)
    verify_s = {guesses: verifying_step_s(case.plan, batch, guesses + 1) for guesses in _GUESSES}
    drafts = [Draft(guesses, acceptance, cost_share) for guesses in _GUESSES]

    def per_token_s(draft: Draft) -> float:
        return draft.step_s(plain_s=plain_s, verify_s=verify_s[draft.tokens]) / draft.expected_tokens

    draft = min(drafts, key=per_token_s)
    after = case.priced(what_if.speculating(draft)(case.base))
    if case.now.tpot_s / after.tpot_s < LEAST_GAIN:
        return case.none(technique, "speculation.none", batch=f"{case.work.batch:,}")
    made = case.made(
        technique,
        f"{draft.tokens} guesses" + (f", a draft of {cost_share:.0%}" if cost_share else ""),
        after,
        why,
        tokens=f"{draft.expected_tokens:.1f}",
        acceptance=f"{draft.acceptance:.0%}",
        verify=format_seconds(verify_s[draft.tokens]),
        plain=format_seconds(plain_s),
        draft=format_seconds(draft.tokens * draft.cost_share * plain_s),
        until=_pays_until(case, draft),
    )
    return replace(made, memory_saved_bytes=0, prefill_gain=1.0, assumed=True)


def _pays_until(case: Case, draft: Draft) -> str:
    """About the first batch (within a tenth) at which the draft no longer pays."""
    own, dp = case.work.replica_batch, case.work.layout.dp

    def pays(batch: int) -> bool:
        plain_s = verifying_step_s(case.plan, batch, 1)
        verify_s = verifying_step_s(case.plan, batch, draft.tokens + 1)
        return draft.gain(plain_s=plain_s, verify_s=verify_s) > 1

    low, high = own, 2 * own
    while pays(high):
        if high >= _LARGEST:
            return f"{high * dp:,}+"
        low, high = high, 2 * high
    while high > 1.1 * low + 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return f"{high * dp:,}"


def chunking(case: Case) -> Advice | None:
    budget, prompt = case.work.max_batched_tokens, case.work.prompt
    tokens = prompt * case.work.replica_batch
    if case.work.engine in ("llama.cpp", "ollama") or (budget or tokens) <= _CHUNK:
        return case.none("chunked_prefill", "chunks.none")
    after = case.priced(what_if.chunks_of(_CHUNK)(case.base))
    change = f"max_batched_tokens {_CHUNK}"
    if prompt <= _CHUNK:
        return case.made("chunked_prefill", change, after, "chunks.short")
    alone_s = case.now.ttft_s / case.work.replica_batch
    return case.made(
        "chunked_prefill",
        change,
        after,
        "chunks",
        before=format_seconds(alone_s),
        after=format_seconds(after.ttft_s / case.work.replica_batch * _CHUNK / prompt),
    )


def prefix(case: Case) -> Advice | None:
    after = case.priced(what_if.prefix_cached(_SHARED)(case.base))
    return replace(
        case.made(
            "prefix_caching",
            f"{_SHARED:.0%} of the prompt shared",
            after,
            "prefix",
            share=f"{_SHARED:.0%}",
        ),
        memory_saved_bytes=0,
        assumed=True,
    )


def graphs(case: Case) -> Advice | None:
    without = case.priced(what_if.without_graphs(case.base))
    return case.none("cuda_graphs", "graphs", loss=f"{without.tpot_s / case.now.tpot_s:.2f}")


def fused_attention(case: Case) -> Advice | None:
    without = case.priced(what_if.without_fused_attention(case.base))
    return case.none("fused_attention", "fused", loss=f"{without.ttft_s / case.now.ttft_s:.2f}")


def _number(value: float | None) -> str:
    return "no" if value is None else f"{value:,.0f}"
