"""Which block of the KV cache belongs to whom: reference counts, and a cache of prefixes by their hash.

A block is in one of three states. *Used*: some sequence refers to it. *Cached*: nobody does, but its
content is known by a hash and can be taken up again; the one unused longest is evicted first. *Free*:
its content means nothing. No torch here: contents live in ``PagedKVCache``.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from rooflens.errors import InputError

_HASH_BYTES = 16


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block's content: its own tokens and, through ``parent``, all before them.

    ``parent`` is the hash of the block before, ``b""`` for the first. 128 bits of BLAKE2: equal hashes are
    taken for equal content.
    """
    return blake2b(array("q", tokens).tobytes(), key=parent, digest_size=_HASH_BYTES).digest()


class BlockPool:
    """The blocks of one cache. Ids are 0 to ``total`` - 1."""

    def __init__(self, total: int, *, block_tokens: int, prefix_caching: bool = True) -> None:
        """Raises InputError for a pool without blocks or blocks without tokens."""
        if total < 1 or block_tokens < 1:
            raise InputError(
                "a block pool needs blocks of at least one token", value=f"{total} x {block_tokens}"
            )
        self.total = total
        self.block_tokens = block_tokens
        self.prefix_caching = prefix_caching
        self._references = [0] * total
        self._hash_of: list[bytes | None] = [None] * total
        self._block_of: dict[bytes, int] = {}
        self._free: dict[int, None] = dict.fromkeys(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()  # longest unused first

    @property
    def free(self) -> int:
        """Blocks whose content means nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody refers to, kept for a later hit."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that some sequence refers to."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can give: free ones, and cached ones after eviction."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_tokens)

    def allocate(self, count: int, *, after: int | None = None) -> list[int] | None:
        """``count`` blocks with one reference each, or None, and nothing changed, if there are too few.

        Free blocks go first; then those cached ones that were unused longest, whose content is lost. The
        neighbour of block ``after`` is preferred: kernels read neighbours without gathering them first.
        """
        if count > self.available:
            return None
        blocks = []
        for _ in range(count):
            wanted = None if after is None else after + 1
            if wanted is not None and wanted in self._free:
                after = wanted
            elif self._free:
                after = next(iter(self._free))
            else:
                break
            del self._free[after]
            blocks.append(after)
        blocks += sorted(self._evict() for _ in range(count - len(blocks)))
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        name = self._hash_of[block]
        assert name is not None
        del self._block_of[name]
        self._hash_of[block] = None
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """One reference more to each of ``blocks``, which are used or cached."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each of ``blocks``, a sequence's blocks in order.

        The last go first, so that of a cached prefix the end is evicted before the beginning.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise AssertionError(f"block {block} is released more often than it was taken")
            self._references[block] -= 1
            if self._references[block] == 0:
                (self._free if self._hash_of[block] is None else self._cached)[block] = None

    def writable(self, block: int) -> bool:
        """Whether its one owner may write into it: not shared, and not promised to later requests."""
        return self._references[block] == 1 and self._hash_of[block] is None

    def register(self, block: int, name: bytes) -> None:
        """Say what a full block in use holds, so that others can find it. The first of equal ones stays."""
        if self.prefix_caching and self._hash_of[block] is None and name not in self._block_of:
            self._hash_of[block] = name
            self._block_of[name] = block

    def match(self, names: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known beginning of ``names``. Take them with ``share``."""
        blocks = []
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def forget(self) -> None:
        """Forget every prefix: the contents are no longer to be trusted."""
        for block, name in enumerate(self._hash_of):
            if name is not None:
                self._hash_of[block] = None
        self._block_of.clear()
        self._free.update(self._cached)
        self._cached.clear()

    def check(self) -> None:
        """Raise AssertionError unless every block is in exactly one state and the books agree."""
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(self._references) if count > 0}
        assert all(count >= 0 for count in self._references), "a negative reference count"
        assert not free & cached, "a block is both free and cached"
        assert not used & (free | cached), "a block in use is to be given out"
        assert len(free) + len(cached) + len(used) == self.total, "a block is lost"
        assert len(used) == self.used
        assert all(self._hash_of[block] is None for block in free), "a free block has a name"
        assert all(self._hash_of[block] is not None for block in cached), "a cached block has no name"
        named = {block: name for block, name in enumerate(self._hash_of) if name is not None}
        assert self._block_of == {name: block for block, name in named.items()}, "names and blocks disagree"
