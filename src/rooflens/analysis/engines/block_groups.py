"""vLLM's block pool: layers in groups of equal size that draw blocks of equal bytes from one pool.

Every layer kind (same bytes per token, same window) is split into groups of the size of the smallest
kind; a short last group is padded. Layers with smaller pages get larger blocks, and attention blocks
grow until their page holds the recurrent state. Source: vLLM's KV-cache planning, 0.8 to 0.33.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from rooflens.analysis.engines.layer_caches import LayerCache
from rooflens.analysis.engines.vllm_versions import VllmRules
from rooflens.errors import UnsupportedError

BLOCK_TOKENS = 16
# Tokens per chunk of the Mamba-2 kernels, to which cached states are aligned.
STATE_CHUNK_TOKENS = 256


@dataclass(frozen=True)
class BlockGroup:
    """Layers that share one block table. ``per_stage`` counts them on each pipeline stage."""

    cache: LayerCache
    block_tokens: int
    page_bytes: int
    per_stage: tuple[int, ...]
    padding: int = 0

    @property
    def layers(self) -> int:
        """Real layers of the group on all stages."""
        return sum(self.per_stage)


@dataclass(frozen=True)
class BlockLayout:
    """The pool's plan: groups, and what one block costs on each pipeline stage."""

    groups: tuple[BlockGroup, ...]
    stage_block_bytes: tuple[int, ...]
    in_flight_tokens: int
    state_blocks: str  # one: a single state per sequence; two: with a copy to share; every: one a block
    need_block_bytes: int | None = None  # bytes that start-up charges a block, where not those it takes

    def need_bytes(self, tokens: int, *, stage: int) -> int:
        """Bytes of cache that one request of ``tokens`` must find on a stage."""
        return self.blocks(tokens) * (self.need_block_bytes or self.stage_block_bytes[stage])

    def group_blocks(self, group: BlockGroup, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` may hold in this group."""
        cache, block = group.cache, group.block_tokens
        if cache.kind == "state":
            return {"one": 1, "two": 2}.get(self.state_blocks, _ceil(tokens, block))
        if cache.kind == "cross":
            return _ceil(cache.window or 0, block)
        if cache.kind in ("sliding", "compressor"):
            # A window may begin inside a block: one more than its tokens fill.
            return _ceil(min((cache.window or 0) - 1 + self.in_flight_tokens, tokens), block) + 1
        if cache.kind == "chunked":
            return _ceil(min((cache.window or 0) + self.in_flight_tokens, tokens), block)
        return _ceil(tokens, block)

    def blocks(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` may hold in all groups together."""
        return sum(self.group_blocks(group, tokens) for group in self.groups)


def _ceil(tokens: int, block: int) -> int:
    return -(-tokens // block)


def _state_block_tokens(caches: list[LayerCache], block: int, rules: VllmRules, every_state: bool) -> int:
    """The attention block that is as large as the largest state."""
    state = max(cache.state_bytes for cache in caches if cache.kind == "state")
    attention = next((cache.token_bytes for cache in caches if cache.token_bytes), 0)
    if not attention:
        return block
    step = lcm(STATE_CHUNK_TOKENS, block) if every_state else block
    return max(block, step * _ceil(state, step * attention))


def plan_blocks(
    stages: tuple[tuple[LayerCache, ...], ...],
    *,
    rules: VllmRules,
    block_tokens: int | None,
    batched_tokens: int,
    state_blocks: str = "one",
) -> BlockLayout | None:
    """Group the layers of all stages; None where no layer keeps anything.

    Raises UnsupportedError where vLLM itself refuses: page sizes that cannot be made equal.
    """
    caches = [cache for stage in stages for cache in stage]
    if not caches:
        return None
    in_flight = batched_tokens * rules.batches_in_flight
    block = block_tokens or BLOCK_TOKENS
    if any(cache.kind == "state" for cache in caches):
        block = _state_block_tokens(caches, block, rules, state_blocks == "every")
    kinds = {(cache.kind, cache.window) for cache in caches}
    if not rules.hybrid and len(kinds) > 1:
        # No groups yet: windowed layers keep every token like the others.
        stages = tuple(
            tuple(LayerCache("full", cache.token_bytes, None, cache.state_bytes) for cache in stage)
            for stage in stages
        )
        kinds = {("full", None)}
    if len(kinds) == 1 or kinds <= {("full", None), ("mla", None)}:
        groups = [_one_group(stages, block)]
        stage_bytes = tuple(sum(_page(cache, block) for cache in stage) for stage in stages)
        return BlockLayout(tuple(groups), stage_bytes, in_flight, state_blocks)
    groups = _equal_groups(stages, block, rules)
    page = groups[0].page_bytes
    counts = tuple(max(group.per_stage[stage] for group in groups) for stage in range(len(stages)))
    return BlockLayout(tuple(groups), tuple(page * n for n in counts), in_flight, state_blocks)


def _page(cache: LayerCache, block: int) -> int:
    return cache.state_bytes if cache.kind == "state" else block * cache.token_bytes


def _one_group(stages: tuple[tuple[LayerCache, ...], ...], block: int) -> BlockGroup:
    """All layers in one group: they need the same slots, whatever each costs."""
    first = next(cache for stage in stages for cache in stage)
    return BlockGroup(first, block, _page(first, block), tuple(len(stage) for stage in stages))


def _equal_groups(
    stages: tuple[tuple[LayerCache, ...], ...], block: int, rules: VllmRules
) -> list[BlockGroup]:
    where: dict[LayerCache, list[int]] = {}
    for number, stage in enumerate(stages):
        for cache in stage:
            where.setdefault(cache, []).append(number)
    page = max(_page(cache, block) for cache in where)
    smallest, largest = min(map(len, where.values())), max(map(len, where.values()))
    size = largest if largest < smallest * rules.group_slack else smallest
    groups = []
    for cache, layer_stages in where.items():
        tokens = _block_for_page(cache, block, page, rules)
        count = _ceil(len(layer_stages), size)
        for first in range(count):
            held = layer_stages[first::count]
            per_stage = tuple(held.count(number) for number in range(len(stages)))
            groups.append(BlockGroup(cache, tokens, page, per_stage, size - len(held)))
    return groups


def _block_for_page(cache: LayerCache, block: int, page: int, rules: VllmRules) -> int:
    """The block size with which this layer's page has ``page`` bytes; a state's page is padded."""
    if cache.kind == "state":
        return block
    own = block * cache.token_bytes
    if page % own == 0:
        return block * (page // own)
    if rules.pads_pages:
        return block
    raise UnsupportedError(
        f"vLLM {rules.version} cannot make the layers' cache pages equal",
        value=f"{own} and {page} bytes",
        next="use a version from 0.24 on, which pads the smaller page",
    )
