"""The formulas, against brute-force loops and with their arithmetic written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.analysis.costs import (
    attended_pairs,
    attention_cost,
    compressed_attention_cost,
    expected_experts,
    latent_attention_cost,
    linear_cost,
    read_context,
    recurrent_cost,
)

lengths = st.integers(0, 40)


def visible(query: int, key: int, *, window: int | None, chunked: bool, causal: bool) -> bool:
    if not causal:
        return window is None or abs(query - key) <= window // 2
    if key > query:
        return False
    if window is None:
        return True
    return query // window == key // window if chunked else query - key < window


def brute_pairs(
    new: int, context: int, window: int | None = None, chunked: bool = False, causal: bool = True
) -> int:
    return sum(
        visible(query, key, window=window, chunked=chunked, causal=causal)
        for query in range(context, context + new)
        for key in range(context + new)
    )


@given(lengths, lengths, st.one_of(st.none(), st.integers(1, 20)), st.booleans(), st.booleans())
@settings(deadline=None)
def test_attended_pairs_equal_the_unmasked_entries(
    new: int, context: int, window: int | None, chunked: bool, causal: bool
) -> None:
    got = attended_pairs(new_tokens=new, context=context, window=window, chunked=chunked, causal=causal)
    assert got == brute_pairs(new, context, window, chunked, causal)


@given(st.integers(1, 40), lengths, st.one_of(st.none(), st.integers(1, 20)), st.booleans())
@settings(deadline=None)
def test_read_context_is_what_the_first_new_token_sees(
    new: int, context: int, window: int | None, chunked: bool
) -> None:
    seen = {
        key for key in range(context) if visible(context, key, window=window, chunked=chunked, causal=True)
    }
    assert read_context(context=context, window=window, chunked=chunked) == len(seen)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.one_of(st.none(), st.integers(1, 12)))
@settings(deadline=None)
def test_a_prefill_in_chunks_computes_what_the_whole_prompt_does(
    chunks: list[int], window: int | None
) -> None:
    def cost(new: int, context: int) -> tuple[int, float]:
        got = attention_cost(
            heads=4, kv_heads=2, head_dim=8, v_head_dim=8, sequences=3, new_tokens=new, context=context,
            kv_bytes_per_token=64, element_bytes=2, window=window,
        )  # fmt: skip
        return got.flops, got.kv_write_bytes

    done, flops, written = 0, 0, 0.0
    for chunk in chunks:
        chunk_flops, chunk_written = cost(chunk, done)
        flops, written, done = flops + chunk_flops, written + chunk_written, done + chunk
    assert (flops, written) == cost(done, 0)


def test_flops_use_query_heads_and_bytes_use_kv_heads() -> None:
    cost = attention_cost(
        heads=8, kv_heads=2, head_dim=16, v_head_dim=16, sequences=5, new_tokens=1, context=100,
        kv_bytes_per_token=2 * 2 * 16 * 2, element_bytes=2,
    )  # fmt: skip
    assert cost.flops == 2 * 8 * (16 + 16) * 101 * 5
    assert cost.kv_read_bytes == 5 * 100 * 128
    assert cost.kv_write_bytes == 5 * 128


def test_a_shared_cache_is_neither_written_nor_counted_in_the_bound() -> None:
    cost = attention_cost(
        heads=8, kv_heads=2, head_dim=16, v_head_dim=16, sequences=1, new_tokens=1, context=100,
        kv_bytes_per_token=128, element_bytes=2, shares_kv=True,
    )  # fmt: skip
    assert cost.kv_read_bytes == cost.kv_write_bytes == 0
    assert cost.activation_bytes >= 100 * 128


def test_reported_causal_case_of_four_queries_and_ten_keys() -> None:
    # The report counts the rectangle above the last query's diagonal: keys 10, queries 4, causal from
    # the bottom right: 7 + 8 + 9 + 10 = 34 pairs; QK^T with 8 features and PV with 16.
    assert attended_pairs(new_tokens=4, context=6) == 34
    cost = attention_cost(
        heads=1, kv_heads=1, head_dim=8, v_head_dim=16, sequences=1, new_tokens=4, context=6,
        kv_bytes_per_token=0, element_bytes=0,
    )  # fmt: skip
    assert cost.flops == 2 * (8 + 16) * 34


def test_the_head_is_not_read_when_nothing_is_sampled() -> None:
    cost = linear_cost(in_features=4, out_features=8, tokens=0, weight_bytes=64, element_bytes=2)
    assert cost.flops == cost.weight_bytes == cost.activation_bytes == 0
    cost = linear_cost(in_features=4, out_features=8, tokens=3, weight_bytes=64, element_bytes=2)
    assert (cost.flops, cost.weight_bytes, cost.activation_bytes) == (2 * 4 * 8 * 3, 64, (4 + 8) * 2 * 3)


def test_latent_attention_absorbs_in_decode_and_expands_in_prefill() -> None:
    sizes = {
        "heads": 128, "kv_lora_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_head_dim": 128,
        "sequences": 1, "kv_bytes_per_token": 576 * 2, "element_bytes": 2,
    }  # fmt: skip
    decode = latent_attention_cost(new_tokens=1, context=4096, **sizes)
    assert decode.flops == 2 * 128 * (2 * 512 + 64) * 4097
    assert decode.kv_read_bytes == 4096 * 1152
    prefill = latent_attention_cost(new_tokens=1000, context=0, **sizes)
    assert prefill.flops == 2 * 128 * (128 + 64 + 128) * (1000 * 1001 // 2)


@given(st.integers(0, 60), st.integers(1, 30), st.integers(1, 8), st.integers(0, 5))
@settings(deadline=None)
def test_compressed_attention_counts_window_and_entries(context: int, new: int, ratio: int, top: int) -> None:
    cost = compressed_attention_cost(
        heads=1, head_dim=1, window=4, ratio=ratio, sequences=1, new_tokens=new, context=context,
        kv_element_bytes=1, element_bytes=0, index_top_k=top,
    )  # fmt: skip
    entries = [position // ratio for position in range(context + 1, context + new + 1)]
    seen = sum(min(count, top) if top else count for count in entries)
    assert cost.flops == 4 * (brute_pairs(new, context, 4) + seen)
    assert cost.kv_write_bytes == new + (context + new) // ratio - context // ratio


def test_a_recurrent_state_is_read_only_when_there_is_a_past() -> None:
    first = recurrent_cost(flops_per_token=10, state_bytes=100, sequences=2, new_tokens=5, context=0)
    later = recurrent_cost(flops_per_token=10, state_bytes=100, sequences=2, new_tokens=5, context=5)
    assert (first.flops, first.kv_read_bytes, first.kv_write_bytes) == (100, 0, 200)
    assert (later.flops, later.kv_read_bytes, later.kv_write_bytes) == (100, 200, 200)


def test_expected_experts_of_a_uniform_router() -> None:
    assert expected_experts(experts=8, top_k=2, tokens=1) == pytest.approx(2)
    # Two tokens: each expert is missed with (6/8)^2 = 0.5625, so 8 x 0.4375 = 3.5 are read.
    assert expected_experts(experts=8, top_k=2, tokens=2) == pytest.approx(3.5)


@given(lengths, st.one_of(st.none(), st.integers(1, 20)), st.booleans())
@settings(deadline=None)
def test_arrays_give_what_numbers_give(new: int, window: int | None, chunked: bool) -> None:
    contexts = np.arange(30)
    swept = attended_pairs(new_tokens=new, context=contexts, window=window, chunked=chunked)
    one_by_one = [
        attended_pairs(new_tokens=new, context=int(c), window=window, chunked=chunked) for c in contexts
    ]
    assert swept.tolist() == one_by_one
