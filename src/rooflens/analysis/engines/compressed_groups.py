"""vLLM's block pool for compressed attention (DeepSeek-V4): caches of unlike pages packed side by side.

Every layer has a window of plain entries; layers with a ratio also have compressed entries, the state of
their compressor, and (fine ratio) the same two for their indexer. Layers are dealt to groups of equally
many *slots*; a block has the slots of all page sizes. Source: vLLM's KV-cache planning since 0.22. An
error message of 0.22 for DeepSeek-V4-Flash (43 layers) at 30,000 tokens names 6.66 GiB, as this does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rooflens.analysis.engines.block_groups import BlockGroup, BlockLayout
from rooflens.analysis.engines.layer_caches import LayerCache, indexer_bytes
from rooflens.analysis.engines.vllm_versions import VllmRules
from rooflens.errors import UnsupportedError
from rooflens.models.formats.kv import kv_element_bytes
from rooflens.models.spec import CompressedAttention, ModelSpec

FIRST_VERSION = (0, 22)
# The version whose rules are taken where none is named: the one that was read for this.
ASSUMED_VERSION = "0.24.0"
BLOCK_TOKENS = 256
WINDOW_BLOCK_TOKENS = 64
# Tokens per block of the compressors' states, by ratio.
STATE_BLOCK_TOKENS = {4: 4, 128: 8}
FP32_BYTES = 4
# fp8 entries: 448 features in fp8, the 64 rotary ones in bf16, 8 scales; pages are multiples of 576 bytes.
FP8_ENTRY_BYTES = 448 + 2 * 64 + 8
PAGE_ALIGNMENT = 576


_Key = tuple[str, int, int]


@dataclass(frozen=True)
class _Piece:
    """One tensor of a layer: its table of blocks is shared with pieces of the same ``key``."""

    key: _Key  # kind, block tokens, window
    page_bytes: int


def is_compressed(spec: ModelSpec) -> bool:
    """Whether any layer compresses its cache."""
    return any(isinstance(mixer, CompressedAttention) for layer in spec.layers for mixer in layer.mixers)


def _aligned(size: int) -> int:
    return -(-size // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def _pieces(mixer: CompressedAttention, *, kv_dtype: str) -> Iterator[_Piece]:
    packed = kv_dtype == "fp8"
    entry = FP8_ENTRY_BYTES if packed else int(mixer.head_dim * kv_element_bytes(kv_dtype))

    def page(size: int) -> int:
        return _aligned(size) if packed else size

    yield _Piece(("sliding", WINDOW_BLOCK_TOKENS, mixer.window), page(WINDOW_BLOCK_TOKENS * entry))
    ratio = mixer.ratio
    if not ratio:
        return
    entries = BLOCK_TOKENS // ratio
    yield _Piece(("compressed", BLOCK_TOKENS, 0), page(entries * entry))
    # Overlapping entries keep two runs of tokens and twice the width; values and gates are both kept.
    overlap = 2 if mixer.indexer_key_dim else 1
    tokens = STATE_BLOCK_TOKENS[ratio]
    state = ("compressor", tokens, overlap * ratio)
    yield _Piece(state, page(tokens * 2 * overlap * mixer.head_dim * FP32_BYTES))
    if mixer.indexer_key_dim:
        yield _Piece(
            ("compressed", BLOCK_TOKENS, 0), _aligned(entries * indexer_bytes(mixer.indexer_key_dim))
        )
        yield _Piece(state, page(tokens * 2 * overlap * mixer.indexer_key_dim * FP32_BYTES))


def _slots(counts: list[int]) -> int:
    """Slots a group: from the first group's on, the number that pads all least; the larger of equals."""
    choices = range(counts[0], max(counts) + 1)
    return min(choices, key=lambda size: (sum(-count % size for count in counts), -size))


def _collect(stages: tuple[ModelSpec, ...], *, kv_dtype: str) -> dict[_Key, list[tuple[int, int]]]:
    """(page bytes, stage number) of every piece, by the table of blocks that it uses."""
    found: dict[_Key, list[tuple[int, int]]] = {}
    for number, stage in enumerate(stages):
        for mixer in (mixer for layer in stage.layers for mixer in layer.mixers):
            if not isinstance(mixer, CompressedAttention):
                raise UnsupportedError(
                    "layers beside compressed attention are not covered", value=mixer.kind.value
                )
            if mixer.ratio and mixer.ratio not in STATE_BLOCK_TOKENS:
                raise UnsupportedError("the compression ratio is not covered", value=mixer.ratio)
            for piece in _pieces(mixer, kv_dtype=kv_dtype):
                found.setdefault(piece.key, []).append((piece.page_bytes, number))
    return found


def plan_compressed(
    stages: tuple[ModelSpec, ...], *, rules: VllmRules, kv_dtype: str, batched_tokens: int
) -> BlockLayout:
    """Group the caches of all stages' layers.

    Raises UnsupportedError for a version before the layout, or a ratio whose state block is not known.
    """
    if rules.release < FIRST_VERSION:
        raise UnsupportedError(
            "this vLLM has no compressed attention",
            value=rules.version,
            next=f"name an engine version from {'.'.join(map(str, FIRST_VERSION))} on",
        )
    found = _collect(stages, kv_dtype=kv_dtype)
    keys = sorted(found, key=lambda key: key[0] != "compressed")
    counts = [Counter(page for page, _ in found[key]).most_common(1)[0][1] for key in keys]
    size = _slots(counts)
    pages = sorted({page for page, _ in found[keys[0]]})
    groups: list[BlockGroup] = []
    # Per stage and page size: the most slots that any group has of it.
    buckets: list[dict[int, int]] = [{} for _ in stages]
    largest = 0
    for key, count in zip(keys, counts, strict=True):
        # Pages grow to the next size of the first group, whose slots all groups share.
        by_page: dict[int, list[tuple[int, int]]] = {}
        for page, number in found[key]:
            fitted = min((wide for wide in pages if wide >= page), default=page)
            by_page.setdefault(fitted, []).append((fitted, number))
        parts = 1 if key[0] == "compressed" else -(-count // size)
        for part in range(parts):
            held = [item for items in by_page.values() for item in items[part::parts]]
            for (page, number), amount in Counter(held).items():
                buckets[number][page] = max(buckets[number].get(page, 0), amount)
            slots = max(Counter(page for page, _ in held).values())
            largest = max(largest, slots)
            groups.append(
                BlockGroup(
                    cache=LayerCache(key[0], max(page for page, _ in held) // key[1], key[2] or None),
                    block_tokens=key[1],
                    page_bytes=sum(page for page, _ in held),
                    per_stage=tuple(sum(number == at for _, at in held) for number in range(len(stages))),
                    padding=0 if key[0] == "compressed" else size - slots,
                )
            )
    return BlockLayout(
        groups=tuple(groups),
        stage_block_bytes=tuple(sum(page * n for page, n in bucket.items()) for bucket in buckets),
        in_flight_tokens=batched_tokens * rules.batches_in_flight,
        state_blocks="one",
        # What start-up asks for: every group is charged as if it had all page sizes in every slot.
        need_block_bytes=largest * sum(pages),
    )
