"""What differs between versions of vLLM, as far as memory is concerned: one frozen table per version.

Read from the releases on PyPI, each change bisected between two of them; a constant that is measured
names its source. Versions before 0.8 run the older engine (V0) unless the version text says "V1".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from rooflens.errors import InputError
from rooflens.units import GIB, MIB

# The newest release whose whole ledger was compared with start-up logs; others follow from their code.
DEFAULT_VERSION = "0.19.0"
NEWEST_READ = (0, 33)

# Bytes per logit while the sampler is profiled: bf16 logits 2, fp32 logits 4, probabilities 4, noise 4.
# With sorting it is 38, inferred from two logs of 0.11.0; the tensors that would make it up are the logits 6,
# sorted values and indices 12, the sort's copies of both 12 and its index buffer 8.
FUSED_SAMPLER_LOGIT_BYTES = 14
SORTING_SAMPLER_LOGIT_BYTES = 38
# fp32 rows that the masking kernel keeps, one per streaming multiprocessor (H100: 132).
SAMPLER_ROWS = 132
# cuBLAS's workspace on Hopper.
WORKSPACE_BYTES = 32 * MIB


@dataclass(frozen=True)
class Constant:
    """A figure that only measuring gives: its likely value, its range, and where it is from."""

    low_bytes: int
    mid_bytes: int
    high_bytes: int
    source: str


def _gib(low: float, mid: float, high: float, source: str) -> Constant:
    return Constant(int(low * GIB), int(mid * GIB), int(high * GIB), source)


@dataclass(frozen=True)
class VllmRules:
    """How one version sizes its cache.

    ``hybrid`` groups layers by kind; ``group_slack``: how much larger than the smallest kind the largest
    may be and still set the group size; ``prints_concurrency``: the printed size in tokens is maximum
    concurrency x max_model_len, else blocks over groups; ``batches_in_flight`` hold a window's blocks;
    ``checkpoint_schemes``: quantisation methods whose KV scheme the engine follows by itself;
    ``counts_reserved``: activations are measured as what torch reserved, not as what it allocated.
    """

    version: str
    release: tuple[int, int]
    v1: bool
    utilization: float
    hybrid: bool
    group_slack: float
    pads_pages: bool
    prints_concurrency: bool
    counts_graphs: bool
    sampler_logit_bytes: int
    sampler_buffer: bool
    keeps_expert_workspace: bool
    batches_in_flight: int
    caches_state_prefixes: bool
    every_state_cached: bool
    checkpoint_schemes: tuple[str, ...]
    latent_cache: bool
    largest_tier: bool
    chunk_tokens: int
    counts_reserved: bool
    residual_vectors: int


_NUMBER = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def parse_version(text: str) -> tuple[tuple[int, int, int], bool | None]:
    """(numbers, whether V1 was named, None if neither); raises InputError for what is not a release."""
    match = _NUMBER.match(text.strip())
    if match is None or "0.1.dev" in text:
        raise InputError(
            "engine_version is not a vLLM release",
            value=text,
            allowed=f"a release such as {DEFAULT_VERSION}, with V0 or V1 where both engines exist",
            next="name the release that the build was made from",
        )
    engine = None
    if re.search(r"\bV[01]\b", text):
        engine = "V1" in text
    return (int(match[1]), int(match[2]), int(match[3] or 0)), engine


@lru_cache(maxsize=32)
def vllm_rules(text: str | None) -> VllmRules:
    """The rules of a version; of DEFAULT_VERSION where none is named.

    An unnamed version reports its size in tokens as every release since 0.20.1 prints it.
    """
    numbers, engine = parse_version(text or DEFAULT_VERSION)
    minor = (numbers[0], numbers[1])
    v1 = minor >= (0, 8) if engine is None else engine
    return VllmRules(
        version=text or DEFAULT_VERSION,
        release=minor,
        v1=v1,
        utilization=0.92 if minor >= (0, 20) else 0.9,
        hybrid=v1 and minor >= (0, 10),
        group_slack=1.5 if minor >= (0, 18) else 1.25 if minor >= (0, 12) else 1.0,
        pads_pages=minor >= (0, 24),
        prints_concurrency=text is None or numbers >= (0, 20, 1),
        counts_graphs=minor >= (0, 20),
        sampler_logit_bytes=FUSED_SAMPLER_LOGIT_BYTES if minor >= (0, 17) else SORTING_SAMPLER_LOGIT_BYTES,
        sampler_buffer=(0, 17) <= minor < (0, 22),
        keeps_expert_workspace=minor >= (0, 13),
        batches_in_flight=2 if minor >= (0, 26) else 1,
        caches_state_prefixes=minor >= (0, 26),
        every_state_cached=minor < (0, 29),
        checkpoint_schemes=("modelopt", "compressed-tensors") if minor >= (0, 15) else (),
        latent_cache=numbers >= (0, 7, 1),
        largest_tier=minor >= (0, 28),
        chunk_tokens=2048 if numbers >= (0, 6, 5) else 512,
        counts_reserved=numbers < (0, 6, 4),
        residual_vectors=4 if v1 else 3,
    )


_LOGS_019 = "start-up logs of 0.19.0 on H100 (llm-d-planner, 2026-04)"


def non_torch(rules: VllmRules, *, tp: int, pp: int) -> Constant:
    """Device memory outside torch's allocator that the engine counts: libraries, NCCL, custom all-reduce."""
    if tp == 1:
        # A pipeline's NCCL is set up before the engine takes its baseline, so little is left to count.
        if pp > 1:
            return _gib(0.05, 0.07, 0.3, _LOGS_019)
        if rules.release >= (0, 12):
            return _gib(0.1, 0.25, 0.4, _LOGS_019)
        if rules.v1:
            return _gib(0.1, 0.13, 0.4, "log of 0.11.0 on H100")
        return _gib(0.1, 0.35, 1.8, "logs of 0.6.4 on RTX 3090 and of 0.6.5 on H100")
    if rules.release >= (0, 12):
        return _gib(0.5, 2.1, 2.3, _LOGS_019)
    if rules.v1:
        return _gib(0.3, 0.55, 2.3, "logs of 0.11.0, tp 2")
    return _gib(0.2, 0.3, 3.6, "logs of 0.6.5 to 0.8 (V0), tp 2 to 16")


def context(*, distributed: bool) -> Constant:
    """Memory gone before the engine looks: the CUDA context, with NCCL where there are several ranks."""
    if distributed:
        return _gib(0.5, 1.45, 1.6, _LOGS_019)
    return _gib(0.3, 0.51, 0.6, _LOGS_019)


# CUDA graphs, for the 51 batch sizes up to 512, piecewise and full: a start and a part per layer.
GRAPH_BASE = 0.38
GRAPH_PER_LAYER = 0.0167
GRAPH_SIZES = 51


def graphs(*, layers: int, sizes: int) -> Constant:
    """Memory of the captured CUDA graphs of ``layers`` layers at ``sizes`` batch sizes."""
    mid = (GRAPH_BASE + GRAPH_PER_LAYER * layers) * sizes / GRAPH_SIZES
    return _gib(0.6 * mid, mid, 2.2 * mid, _LOGS_019 + "; experts and latent attention lie high")


def capture_sizes(max_sequences: int) -> int:
    """How many batch sizes are captured: 1, 2, 4, by eights to 256, by sixteens to 512."""
    largest = min(2 * max_sequences, 512)
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + min(largest, 256) // 8 + max(0, largest - 256) // 16


# From this size a device counts as large; the largest tier is that of B200 and up.
LARGE_DEVICE_BYTES = 70 * GIB
LARGEST_DEVICE_BYTES = 160 * GIB


def token_budget(rules: VllmRules, *, total_bytes: int, device: str, max_model_len: int) -> int:
    """Default max_num_batched_tokens of the OpenAI server."""
    if not rules.v1:
        # Without chunked prefill, which long contexts turn on, a prompt must fit one batch.
        return rules.chunk_tokens if max_model_len > 32768 else max(max_model_len, 2048)
    if rules.largest_tier and total_bytes >= LARGEST_DEVICE_BYTES:
        return 16384
    return 8192 if is_large(rules, total_bytes=total_bytes, device=device) else 2048


def sequence_limit(rules: VllmRules, *, total_bytes: int, device: str) -> int:
    """Default max_num_seqs of the OpenAI server."""
    return 1024 if rules.v1 and is_large(rules, total_bytes=total_bytes, device=device) else 256


def is_large(rules: VllmRules, *, total_bytes: int, device: str) -> bool:
    """Whether vLLM gives this device its larger defaults: 70 GiB and more, but no A100 (nor GB10)."""
    name = device.lower()
    small = "a100" in name or (rules.largest_tier and "gb10" in name)
    return total_bytes >= LARGE_DEVICE_BYTES and not small
