"""How the engine is set up, and what it says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rooflens.analysis.engines.native import CPU_BATCHED_TOKENS, DEFAULT_BATCHED_TOKENS


@dataclass(frozen=True)
class EngineSettings:
    """How the engine shares out the model.

    max_sequences: answers that run at once. max_batched_tokens: tokens of a step, and so the longest chunk
    of a prompt (default: by device, see ``batched_tokens``). prefix_caching: keep blocks for later prompts
    with the same beginning. synchronize: wait for the device between model and sampler, so that their times
    are told apart (for profiling).
    """

    max_sequences: int = 64
    max_batched_tokens: int | None = None
    prefix_caching: bool = True
    synchronize: bool = False

    def batched_tokens(self, device_type: str) -> int:
        """Tokens of a step on this kind of device (``cpu``, ``cuda``): as set, or the default there."""
        if self.max_batched_tokens is not None:
            return self.max_batched_tokens
        usual = CPU_BATCHED_TOKENS if device_type == "cpu" else DEFAULT_BATCHED_TOKENS
        return max(usual, self.max_sequences)


@dataclass(frozen=True)
class EngineStatus:
    """A glance at the engine. Blocks are of the KV cache; the rest counts from the engine's start."""

    waiting: int
    running: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_block_tokens: int
    steps: int = 0
    requests: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)
