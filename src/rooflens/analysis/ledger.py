"""The memory ledger: what device memory goes to, whether it fits, and how many requests fit.

Each engine has its own rules (``engines``); this module holds the hand-offs and the bare arithmetic
(``engine="none"``), with no engine's rounding or reserve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rooflens.analysis.parallelism import Layout
from rooflens.models.accounting import (
    kv_growth_elements,
    kv_sequence_bytes,
    state_sequence_bytes,
    weights_bytes,
)
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.formats.kv import kv_element_bytes
from rooflens.models.spec import Attention, DenseMlp, LatentAttention, Layer, MixtureOfExperts, ModelSpec
from rooflens.units import GIGA

# Context of the CUDA runtime, its libraries and the framework: 1 to 2 GB, see docs/derivations.
FRAMEWORK_OVERHEAD_BYTES = 3 * GIGA // 2
FRAMEWORK_OVERHEAD_RANGE_BYTES = (GIGA, 2 * GIGA)


@dataclass(frozen=True)
class LedgerInput:
    """Everything an engine's memory rules may look at. Sizes are per replica unless said otherwise.

    ``stages`` are the shares of one device for each pipeline stage; ``batch`` counts the sequences of
    one data-parallel replica; ``capacity_bytes`` is what the device is sold with and
    ``reported_bytes`` what its driver reports. ``kv_dtype_auto`` says that nobody asked for ``kv_dtype``,
    so an engine may take the checkpoint's own scheme. ``kv_pool_bytes`` is a pool that is known (from
    a log, or set by hand) instead of predicted. ``device_name`` picks defaults that engines tie to it.
    """

    spec: ModelSpec
    stages: tuple[ModelSpec, ...]
    layout: Layout
    batch: int
    prompt: int
    context: int
    kv_dtype: str
    capacity_bytes: int | None
    reported_bytes: int | None = None
    max_model_len: int | None = None
    max_batched_tokens: int | None = None
    max_sequences: int | None = None
    memory_utilization: float | None = None
    engine_version: str | None = None
    kv_dtype_auto: bool = False
    kv_pool_bytes: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    graphs: bool = True
    swa_full: bool = False
    device_name: str = ""


@dataclass(frozen=True)
class LedgerRow:
    """One line of the ledger on the fullest device, with its range where it is not exact.

    ``evidence``: exact, spec, measured or assumed; ``source`` says where an assumed figure is from.
    """

    name: str
    bytes: int
    evidence: str = "exact"
    low_bytes: int | None = None
    high_bytes: int | None = None
    source: str = ""


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one table of blocks, on the fullest device.

    ``padding`` layers hold nothing: they make the groups equally large. ``blocks`` are those that one
    sequence takes at the asked context; ``tokens_kept`` what it still needs of that context.
    """

    kind: str
    layers: int
    padding: int
    block_tokens: int
    page_bytes: int
    blocks: int
    tokens_kept: int | None = None


@dataclass(frozen=True)
class CacheReport:
    """The cache of one sequence, twice: as the model needs it and as the engine lays it out.

    A sequence of L tokens needs ``fixed_bytes`` (windows once full, and state) + L x
    ``growth_bytes_per_token``; ``logical_bytes`` and ``allocated_bytes`` are at the asked context,
    ``minimum_bytes`` is what one request of max_model_len must find. ``alternatives`` are the same
    allocation under another switch, by name. All per device.
    """

    layout: str
    dtype: str
    fixed_bytes: int
    growth_bytes_per_token: float
    logical_bytes: int
    allocated_bytes: int
    minimum_bytes: int
    groups: tuple[CacheGroup, ...] = ()
    blocks: int | None = None
    bytes_per_block: int | None = None
    alternatives: tuple[tuple[str, int], ...] = ()

    @property
    def waste_bytes(self) -> int:
        """Bytes allocated beyond what the model needs, at the asked context."""
        return max(0, self.allocated_bytes - self.logical_bytes)


@dataclass(frozen=True)
class Ledger:
    """Memory of the fullest device in bytes; None where the capacity is not known.

    ``kv_capacity_bytes`` is what is left for the cache, ``kv_capacity_tokens`` the tokens it holds,
    ``max_sequences`` how many sequences of the asked context fit, ``max_concurrency`` how many of
    ``max_model_len``.
    """

    rows: tuple[LedgerRow, ...]
    capacity_bytes: int | None
    kv_capacity_bytes: int | None
    kv_capacity_tokens: int | None
    max_sequences: int | None
    max_concurrency: float | None
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  # why it does not start, in the engine's own terms
    outside: tuple[LedgerRow, ...] = ()  # taken beside ``capacity_bytes``: context, unbudgeted graphs
    cache: CacheReport | None = None
    longest_context: int | None = None  # of one request that the pool holds
    minimum_utilization: float | None = None  # the smallest share of the device that starts

    def row(self, name: str) -> int:
        """Bytes of the rows of that name."""
        return sum(row.bytes for row in self.rows if row.name == name)

    @property
    def total_bytes(self) -> int:
        """Sum of all rows."""
        return sum(row.bytes for row in self.rows)

    @property
    def deficit_bytes(self) -> int:
        """How much is missing; 0 where it fits or the capacity is not known."""
        return 0 if self.capacity_bytes is None else max(0, self.total_bytes - self.capacity_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether everything fits; None where the capacity is not known."""
        return None if self.capacity_bytes is None else not self.deficit_bytes and not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """The ledger as in the JSON contract: bytes of one device, null where unknown."""
        cache = self.cache
        named = ("weights", "kv_cache", "activations")
        return {
            "per_device": True,
            "weights_bytes": self.row("weights"),
            "kv_cache_bytes": self.row("kv_cache"),
            "activation_bytes": self.row("activations"),
            "overhead_bytes": sum(row.bytes for row in self.rows if row.name not in named),
            "total_bytes": self.total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "deficit_bytes": self.deficit_bytes,
            "kv_capacity_bytes": self.kv_capacity_bytes,
            "kv_capacity_tokens": self.kv_capacity_tokens,
            "max_sequences": self.max_sequences,
            "max_concurrency": self.max_concurrency,
            "longest_context": self.longest_context,
            "minimum_utilization": self.minimum_utilization,
            "rows": [asdict(row) for row in self.rows],
            "outside": [asdict(row) for row in self.outside],
            "cache": None if cache is None else asdict(cache) | {"waste_bytes": cache.waste_bytes},
            "reasons": list(self.reasons),
        }


LedgerRules = Callable[[LedgerInput], Ledger]


def _mlp_width(layer: Layer) -> int:
    width = 0
    for mlp in (layer.mlp, layer.extra_mlp):
        if isinstance(mlp, DenseMlp):
            width += mlp.intermediate_size
        elif isinstance(mlp, MixtureOfExperts):
            width += mlp.top_k * mlp.expert.intermediate_size
            width += mlp.shared.intermediate_size if mlp.shared else 0
    return width


def widest_activation(spec: ModelSpec) -> int:
    """Elements of one token at the widest point of a layer: the feed-forward, or the heads' outputs.

    The model Llama-2-7B is widest in its feed-forward: 11008 elements, 22 KB in fp16.
    """
    widest = spec.hidden_size
    for group in spec.groups:
        widest = max(widest, _mlp_width(group.layer))
        for mixer in group.layer.mixers:
            if isinstance(mixer, Attention):
                widest = max(widest, mixer.heads * mixer.head_dim)
            elif isinstance(mixer, LatentAttention):
                widest = max(widest, mixer.heads * (mixer.nope_dim + mixer.rope_dim))
    return widest


def bare_ledger(given: LedgerInput) -> Ledger:
    """The ledger by plain arithmetic: weights, KV cache, activations of the prefill, overhead.

    The whole batch's prompts are one prefill unless ``max_batched_tokens`` caps it. A pipeline's
    fullest stage is shown.
    """
    utilization = 1.0 if given.memory_utilization is None else given.memory_utilization
    capacity = None if given.capacity_bytes is None else int(given.capacity_bytes * utilization)
    in_flight = given.batch * given.prompt
    if given.max_batched_tokens is not None:
        in_flight = min(in_flight, given.max_batched_tokens)
    in_flight = max(in_flight, given.batch)
    fullest: Ledger | None = None
    for stage in given.stages:
        ledger = _bare_stage(given, stage, capacity, in_flight)
        if fullest is None or ledger.total_bytes > fullest.total_bytes:
            fullest = ledger
    assert fullest is not None
    return fullest


def _bare_stage(given: LedgerInput, stage: ModelSpec, capacity: int | None, in_flight: int) -> Ledger:
    weights = weights_bytes(stage)
    state = state_sequence_bytes(stage)
    sequence = int(kv_sequence_bytes(stage, context=given.context, kv_dtype=given.kv_dtype)) + state
    activations = int(in_flight * widest_activation(stage) * dtype_bytes(stage.dtype))
    rows = (
        LedgerRow("weights", weights),
        LedgerRow("kv_cache", given.batch * sequence),
        LedgerRow(
            "activations", activations, "assumed", source="tokens in flight at the widest point of a layer"
        ),
        LedgerRow(
            "overhead",
            FRAMEWORK_OVERHEAD_BYTES,
            "assumed",
            *FRAMEWORK_OVERHEAD_RANGE_BYTES,
            source="CUDA context and framework, 1 to 2 GB",
        ),
    )
    room = None if capacity is None else capacity - weights - activations - FRAMEWORK_OVERHEAD_BYTES
    tokens = sequences = concurrency = None
    if room is not None and sequence:
        room_or_none = max(0, room)
        sequences = room_or_none // sequence
        growth = kv_growth_elements(stage) * kv_element_bytes(given.kv_dtype)
        if stage.free_form is not None:
            growth = stage.free_form.kv_bytes_per_token
        # Windowed layers and state make bytes a token depend on the length: take the asked length.
        per_token = growth if sequence == growth * given.context else sequence / given.context
        tokens = int(room_or_none / per_token)
        longest = given.max_model_len or given.spec.max_context or given.context
        at_longest = int(kv_sequence_bytes(stage, context=longest, kv_dtype=given.kv_dtype)) + state
        concurrency = room_or_none / at_longest
    return Ledger(
        rows=rows,
        capacity_bytes=capacity,
        kv_capacity_bytes=None if room is None else max(0, room),
        kv_capacity_tokens=tokens,
        max_sequences=sequences,
        max_concurrency=concurrency,
    )
