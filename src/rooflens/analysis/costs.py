"""What an operator costs: one function per operator, FLOPs and bytes from its shapes.

1 FMA = 2 FLOP. FLOPs are counted for matrix multiplies and attention, as PyTorch's flop counter does;
norms, activations and rotary embedding cost bytes only. FLOPs use query heads, bytes use KV heads.
``element_bytes`` is the size of one activation. All token counts may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.analysis.numeric import Quantity, maximum, minimum, where_positive


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes by what they move. Addable; ``cost * n`` is n times the cost.

    ``moved_bytes`` is what must cross the memory bus whatever the implementation does: weights, cache
    reads, cache writes. Activations may stay on chip, so they count only operator by operator.
    """

    flops: Quantity = 0
    weight_bytes: Quantity = 0
    kv_read_bytes: Quantity = 0
    kv_write_bytes: Quantity = 0
    activation_bytes: Quantity = 0
    communication_bytes: Quantity = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.kv_read_bytes + other.kv_read_bytes,
            self.kv_write_bytes + other.kv_write_bytes,
            self.activation_bytes + other.activation_bytes,
            self.communication_bytes + other.communication_bytes,
        )

    def __mul__(self, times: Quantity) -> Cost:
        return Cost(
            self.flops * times,
            self.weight_bytes * times,
            self.kv_read_bytes * times,
            self.kv_write_bytes * times,
            self.activation_bytes * times,
            self.communication_bytes * times,
        )

    @property
    def moved_bytes(self) -> Quantity:
        """Bytes that no implementation can avoid moving."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def operator_bytes(self) -> Quantity:
        """Bytes moved when the operator runs alone, its inputs and outputs in memory."""
        return self.moved_bytes + self.activation_bytes


def linear_cost(
    *,
    in_features: int,
    out_features: int,
    tokens: Quantity,
    weight_bytes: Quantity,
    element_bytes: float,
) -> Cost:
    """y[tokens, out] = x[tokens, in] W^T: 2 x in x out FLOP a token; the weights are read once.

    With no tokens nothing is read (the head of a prefill chunk that samples nothing).
    """
    return Cost(
        flops=2 * in_features * out_features * tokens,
        weight_bytes=where_positive(tokens, weight_bytes),
        activation_bytes=(in_features + out_features) * element_bytes * tokens,
    )


def elementwise_cost(*, features: int, tokens: Quantity, element_bytes: float, inputs: int = 1) -> Cost:
    """A norm, activation or residual over ``features`` of every token: reads inputs, writes one output."""
    return Cost(activation_bytes=(inputs + 1) * features * element_bytes * tokens)


def embedding_cost(*, dim: int, rows: int, tokens: Quantity, row_bytes: float, element_bytes: float) -> Cost:
    """A lookup: one row of the table per token (never more rows than there are), no FLOPs."""
    return Cost(
        weight_bytes=minimum(tokens, rows) * row_bytes,
        activation_bytes=dim * element_bytes * tokens,
    )


def _chunked_pairs_up_to(position: Quantity, chunk: int) -> Quantity:
    """Query-key pairs of the first ``position`` queries when each sees only its aligned chunk."""
    whole, rest = position // chunk, position % chunk
    return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


def _neighbours_before(position: Quantity, reach: int) -> Quantity:
    """Sum over the first ``position`` tokens of the tokens before each, at most ``reach``."""
    growing = minimum(position, reach + 1)
    return growing * (growing - 1) // 2 + maximum(position - reach - 1, 0) * reach


def attended_pairs(
    *,
    new_tokens: Quantity,
    context: Quantity,
    window: int | None = None,
    chunked: bool = False,
    causal: bool = True,
) -> Quantity:
    """Query-key pairs that are computed when ``new_tokens`` follow ``context`` cached ones.

    Causal: the i-th new token (from 1) sees context + i keys, at most ``window`` with a sliding window
    (itself included), or only those of its aligned chunk of ``window`` tokens. Without causality every
    query sees every key, with a window those at most window // 2 away. Source: counting the unmasked
    entries of the attention matrix; checked against a brute-force loop in the tests.
    """
    if not causal:
        if window is None:
            return new_tokens * (context + new_tokens)
        reach = window // 2
        before = _neighbours_before(context + new_tokens, reach) - _neighbours_before(context, reach)
        return new_tokens + before + _neighbours_before(new_tokens, reach)
    if window is None:
        return new_tokens * context + new_tokens * (new_tokens + 1) // 2
    if chunked:
        return _chunked_pairs_up_to(context + new_tokens, window) - _chunked_pairs_up_to(context, window)
    growing = minimum(maximum(window - context, 0), new_tokens)  # queries that still see all keys
    return growing * context + growing * (growing + 1) // 2 + (new_tokens - growing) * window


def read_context(*, context: Quantity, window: int | None = None, chunked: bool = False) -> Quantity:
    """Cached tokens that the first new token needs: all, the window less itself, or its chunk's."""
    if window is None:
        return context
    if chunked:
        return context % window
    return minimum(context, window - 1)


def attention_cost(
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    sequences: Quantity,
    new_tokens: Quantity,
    context: Quantity,
    kv_bytes_per_token: float,
    element_bytes: float,
    window: int | None = None,
    chunked: bool = False,
    causal: bool = True,
    shares_kv: bool = False,
    index_heads: int = 0,
    index_dim: int = 0,
    index_bytes_per_token: float = 0,
    index_top_k: int = 0,
) -> Cost:
    """Softmax attention of ``new_tokens`` per sequence over ``context`` cached ones and themselves.

    FLOPs: 2 x heads x (head_dim + v_head_dim) per query-key pair (QK^T and PV). Cache bytes:
    ``kv_bytes_per_token`` of this layer read for every needed cached token and written for every new
    one; the new tokens' own keys and values are on chip. A layer that shares another's cache adds
    reads only operator by operator, since a fused implementation could read once for both. With an
    indexer a query scores all index keys and attends to at most ``index_top_k`` tokens (0: to all).
    """
    all_pairs = attended_pairs(
        new_tokens=new_tokens, context=context, window=window, chunked=chunked, causal=causal
    )
    pairs = all_pairs
    needed = read_context(context=context, window=window, chunked=chunked)
    read = sequences * needed * kv_bytes_per_token
    if index_top_k:
        pairs = attended_pairs(new_tokens=new_tokens, context=context, window=index_top_k)
        read = sequences * minimum(needed, index_top_k) * kv_bytes_per_token
    read = read + sequences * needed * index_bytes_per_token
    tokens = sequences * new_tokens
    q_and_out = heads * (head_dim + v_head_dim) * element_bytes
    own_kv = kv_heads * (head_dim + v_head_dim) * element_bytes
    activations = tokens * (q_and_out + own_kv)
    return Cost(
        flops=(2 * heads * (head_dim + v_head_dim) * pairs + 2 * index_heads * index_dim * all_pairs)
        * sequences,
        kv_read_bytes=0 * read if shares_kv else read,
        kv_write_bytes=0 * tokens if shares_kv else tokens * (kv_bytes_per_token + index_bytes_per_token),
        activation_bytes=activations + read if shares_kv else activations,
    )


def cross_attention_cost(
    *,
    heads: int,
    head_dim: int,
    v_head_dim: int,
    sequences: Quantity,
    new_tokens: Quantity,
    memory_tokens: int,
    kv_bytes_per_token: float,
    element_bytes: float,
) -> Cost:
    """Attention over ``memory_tokens`` fixed keys (an image, an encoder's output) per sequence."""
    tokens = sequences * new_tokens
    return Cost(
        flops=2 * heads * (head_dim + v_head_dim) * memory_tokens * tokens,
        kv_read_bytes=sequences * (memory_tokens * kv_bytes_per_token),
        activation_bytes=tokens * (heads * (head_dim + v_head_dim) * element_bytes),
    )


def latent_attention_cost(
    *,
    heads: int,
    kv_lora_rank: int,
    rope_dim: int,
    nope_dim: int,
    v_head_dim: int,
    sequences: Quantity,
    new_tokens: Quantity,
    context: Quantity,
    kv_bytes_per_token: float,
    element_bytes: float,
    index_heads: int = 0,
    index_dim: int = 0,
    index_bytes_per_token: float = 0,
    index_top_k: int = 0,
) -> Cost:
    """Multi-head latent attention, in the cheaper of its two exact forms.

    Expanded: keys and values of the cached tokens are rebuilt from the latent
    (2 x rank x heads x (nope + v) each), then 2 x heads x (nope + rope + v) per pair. Absorbed: the
    query is taken into the latent space, 2 x heads x (2 x rank + rope) per pair. Projections of the
    new tokens are separate linears. With an indexer every query scores all keys
    (2 x index_heads x index_dim per pair) and attends to at most ``index_top_k`` of them.
    ``kv_bytes_per_token`` counts the latent alone, ``index_bytes_per_token`` the indexer's key.
    Source: DeepSeek-V2 paper, section 2.1; DeepSeek-V3.2 report for the indexer.
    """
    all_pairs = attended_pairs(new_tokens=new_tokens, context=context)
    pairs = all_pairs
    read = context
    if index_top_k:
        pairs = attended_pairs(new_tokens=new_tokens, context=context, window=index_top_k)
        read = minimum(context, index_top_k)
    expanded = 2 * heads * (nope_dim + rope_dim + v_head_dim) * pairs
    rebuilt = 2 * kv_lora_rank * heads * (nope_dim + v_head_dim) * read
    absorbed = 2 * heads * (2 * kv_lora_rank + rope_dim) * pairs
    flops = minimum(expanded + rebuilt, absorbed) + 2 * index_heads * index_dim * all_pairs
    tokens = sequences * new_tokens
    return Cost(
        flops=flops * sequences,
        kv_read_bytes=sequences * (read * kv_bytes_per_token + context * index_bytes_per_token),
        kv_write_bytes=tokens * (kv_bytes_per_token + index_bytes_per_token),
        activation_bytes=tokens * (heads * (nope_dim + rope_dim + v_head_dim) * element_bytes),
    )


def _entries_up_to(position: Quantity, ratio: int, top_k: int = 0) -> Quantity:
    """Sum over the first ``position`` queries of the compressed entries each sees: position // ratio.

    With ``top_k`` no query reads more than that many.
    """
    if top_k:
        full = top_k * ratio  # from here on a query sees at least top_k entries
        capped = _entries_up_to(minimum(position, full), ratio)
        return capped + maximum(position - full, 0) * top_k
    whole, rest = position // ratio, position % ratio
    return ratio * (whole * (whole - 1) // 2) + whole * (rest + 1)


def compressed_attention_cost(
    *,
    heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    sequences: Quantity,
    new_tokens: Quantity,
    context: Quantity,
    kv_element_bytes: float,
    element_bytes: float,
    index_heads: int = 0,
    index_dim: int = 0,
    index_top_k: int = 0,
) -> Cost:
    """Attention to a window of tokens and to one compressed entry for every ``ratio`` earlier ones.

    FLOPs: 2 x heads x 2 x head_dim per pair of query and key, since one vector is key and value; an
    indexer scores all entries (2 x index_heads x index_dim each) and leaves ``index_top_k`` of them.
    Cache bytes: the window, the entries attended to, all index keys. Pooling tokens into entries is
    not counted. Source: the layer's code in Hugging Face transformers (deepseek_v4).
    """
    pairs = attended_pairs(new_tokens=new_tokens, context=context, window=window)
    read = read_context(context=context, window=window) * head_dim
    written = new_tokens * head_dim
    scored: Quantity = 0
    if ratio:
        end, start = context + new_tokens, context
        pairs = pairs + _entries_up_to(end, ratio, index_top_k) - _entries_up_to(start, ratio, index_top_k)
        entries = context // ratio
        attended = minimum(entries, index_top_k) if index_top_k else entries
        read = read + attended * head_dim + entries * index_dim
        written = written + (end // ratio - entries) * (head_dim + index_dim)
        if index_heads:
            scored = _entries_up_to(end, ratio) - _entries_up_to(start, ratio)
    return Cost(
        flops=(4 * heads * head_dim * pairs + 2 * index_heads * index_dim * scored) * sequences,
        kv_read_bytes=sequences * read * kv_element_bytes,
        kv_write_bytes=sequences * written * kv_element_bytes,
        activation_bytes=sequences * new_tokens * (2 * heads * head_dim * element_bytes),
    )


def recurrent_cost(
    *,
    flops_per_token: int,
    state_bytes: float,
    sequences: Quantity,
    new_tokens: Quantity,
    context: Quantity,
) -> Cost:
    """A recurrence with a fixed state: read once if there is a past, written once, whatever the length."""
    return Cost(
        flops=flops_per_token * sequences * new_tokens,
        kv_read_bytes=where_positive(context, 1) * sequences * state_bytes,
        kv_write_bytes=where_positive(new_tokens, 1) * sequences * state_bytes,
    )


def expected_experts(*, experts: int, top_k: int, tokens: Quantity) -> Quantity:
    """Distinct experts that ``tokens`` visit if routing is uniform and independent per token.

    experts x (1 - (1 - top_k / experts) ** tokens): each expert is missed by one token with
    probability 1 - top_k / experts.
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


def experts_cost(
    *,
    experts: int,
    top_k: int,
    in_features: int,
    out_features: int,
    tokens: Quantity,
    expert_bytes: float,
    element_bytes: float,
) -> tuple[Cost, Quantity]:
    """One matrix of every routed expert: (cost at the fewest experts, expected weight bytes).

    The bound may count only ``top_k`` experts: all tokens could visit the same ones. The expected
    number of distinct experts is given beside it, for the estimate.
    """
    visits = top_k * tokens
    cost = Cost(
        flops=2 * in_features * out_features * visits,
        weight_bytes=where_positive(tokens, 1) * (min(top_k, experts) * expert_bytes),
        activation_bytes=(in_features + out_features) * element_bytes * visits,
    )
    return cost, expected_experts(experts=experts, top_k=top_k, tokens=tokens) * expert_bytes
