"""vLLM's settings after its defaults, and what one pipeline stage takes before the cache."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.analysis.engines.compressed_groups import ASSUMED_VERSION, is_compressed
from rooflens.analysis.engines.layer_caches import (
    LayerCache,
    layer_caches,
    longest_length,
    per_head_latent,
)
from rooflens.analysis.engines.vllm_profile import profile_peak, rotary_table_bytes
from rooflens.analysis.engines.vllm_versions import (
    Constant,
    VllmRules,
    capture_sizes,
    context,
    graphs,
    non_torch,
    sequence_limit,
    token_budget,
    vllm_rules,
)
from rooflens.analysis.ledger import LedgerInput, LedgerRow
from rooflens.models.accounting import weights_bytes
from rooflens.models.spec import LatentAttention, ModelSpec

# vLLM before 0.7.1 padded every head of latent attention to the next size its kernels had.
PADDED_LATENT_HEAD = 256
# How far the allocator and the compiler move the peak from its arithmetic, as seen in the logs.
ACTIVATION_RANGE = (0.85, 1.3)


@dataclass(frozen=True)
class Settings:
    """What the engine runs with; ``state_blocks`` as in ``BlockLayout``."""

    rules: VllmRules
    total_bytes: int | None
    utilization: float
    max_model_len: int
    batched_tokens: int
    sequences: int
    kv_dtype: str
    state_blocks: str
    distributed: bool

    @property
    def requested_bytes(self) -> int | None:
        """What the engine may use: utilisation x the device's own figure."""
        return None if self.total_bytes is None else int(self.total_bytes * self.utilization)

    @property
    def context(self) -> Constant:
        """What is gone before the engine looks."""
        return context(distributed=self.distributed)


@dataclass(frozen=True)
class StageMemory:
    """One pipeline stage's memory besides the cache. ``graphs`` is None where none are captured."""

    spec: ModelSpec
    weights: LedgerRow
    activations: LedgerRow
    non_torch: LedgerRow
    graphs: LedgerRow | None

    def budgeted(self, rules: VllmRules) -> tuple[LedgerRow, ...]:
        """What the engine takes off before the cache; graphs only since it estimates them."""
        rows = (self.weights, self.activations, self.non_torch)
        return (*rows, self.graphs) if self.graphs is not None and rules.counts_graphs else rows


def resolve_settings(given: LedgerInput) -> Settings:
    """Fill what was not asked with the defaults of the version and of the device's size."""
    assumed = ASSUMED_VERSION if is_compressed(given.spec) else None
    rules = vllm_rules(given.engine_version or assumed)
    total = given.reported_bytes or given.capacity_bytes
    length = longest_length(given)
    batched = given.max_batched_tokens or token_budget(
        rules, total_bytes=total or 0, device=given.device_name, max_model_len=length
    )
    sequences = given.max_sequences or sequence_limit(rules, total_bytes=total or 0, device=given.device_name)
    return Settings(
        rules=rules,
        total_bytes=total,
        utilization=rules.utilization if given.memory_utilization is None else given.memory_utilization,
        max_model_len=length,
        batched_tokens=batched,
        sequences=min(sequences, batched),
        kv_dtype=_kv_dtype(given, rules),
        state_blocks=_state_blocks(given, rules),
        distributed=given.layout.tp * given.layout.pp > 1,
    )


def _kv_dtype(given: LedgerInput, rules: VllmRules) -> str:
    scheme, method = given.spec.kv_scheme, given.spec.quantization or ""
    follows = any(method.startswith(known) for known in rules.checkpoint_schemes)
    return scheme if given.kv_dtype_auto and scheme and follows else given.kv_dtype


def _state_blocks(given: LedgerInput, rules: VllmRules) -> str:
    """How recurrent state is kept: alone, or in blocks that prefix caching can share."""
    cached = rules.caches_state_prefixes if given.prefix_caching is None else given.prefix_caching
    if not cached:
        return "one"
    variants = {getattr(mixer, "variant", "") for layer in given.spec.layers for mixer in layer.mixers}
    return "every" if rules.every_state_cached and variants & {"mamba", "mamba2"} else "two"


def stage_caches(stage: ModelSpec, settings: Settings) -> tuple[LayerCache, ...]:
    """The caches of a stage's layers, latent attention as the version keeps it."""
    if settings.rules.latent_cache:
        return tuple(layer_caches(stage, kv_dtype=settings.kv_dtype))
    latents = [
        per_head_latent(mixer, kv_dtype=settings.kv_dtype, head_dim=PADDED_LATENT_HEAD)
        for layer in stage.layers
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention)
    ]
    return tuple(latents) or tuple(layer_caches(stage, kv_dtype=settings.kv_dtype))


def measured_row(name: str, figure: Constant) -> LedgerRow:
    """A constant as a row with its range and source."""
    return LedgerRow(name, figure.mid_bytes, "measured", figure.low_bytes, figure.high_bytes, figure.source)


def stage_memory(given: LedgerInput, settings: Settings, number: int) -> StageMemory:
    """Weights (with the rotary tables that the engine builds), peak and constants of stage ``number``."""
    spec, rules = given.stages[number], settings.rules
    peak = profile_peak(
        spec,
        rules=rules,
        tokens=settings.batched_tokens,
        sequences=settings.sequences,
        vocabulary=given.spec.vocab_size,
        first=number == 0,
        last=number == len(given.stages) - 1,
    )
    where = "the sampler" if peak.sampler_bytes > peak.forward_bytes else "a forward pass"
    low, high = (int(peak.bytes * share) for share in ACTIVATION_RANGE)
    source = f"profiled peak in {where}: {settings.batched_tokens} tokens, {settings.sequences} sequences"
    captured = None
    if given.graphs and rules.v1:
        figure = graphs(layers=len(spec.layers), sizes=capture_sizes(settings.sequences))
        captured = measured_row("graphs", figure)
    return StageMemory(
        spec=spec,
        weights=LedgerRow("weights", weights_bytes(spec) + rotary_table_bytes(spec)),
        activations=LedgerRow("activations", peak.bytes, "assumed", low, high, source),
        non_torch=measured_row("non_torch", non_torch(rules, tp=given.layout.tp, pp=given.layout.pp)),
        graphs=captured,
    )
