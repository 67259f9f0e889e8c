"""The block pool: states, references, prefixes, eviction."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rooflens.errors import InputError
from rooflens.runtime.engine.blocks import BlockPool, block_hash


def names(*blocks: list[int]) -> list[bytes]:
    result: list[bytes] = []
    for tokens in blocks:
        result.append(block_hash(result[-1] if result else b"", tokens))
    return result


def test_a_name_says_everything_before_the_block() -> None:
    one, other = names([1, 2], [3, 4]), names([9, 9], [3, 4])
    assert one[1] != other[1]
    assert one == names([1, 2], [3, 4])
    assert block_hash(b"", [1, 2]) != block_hash(b"", [1, 2, 0])


def test_blocks_are_given_out_as_neighbours() -> None:
    pool = BlockPool(8, block_tokens=2)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(1) == [3]
    pool.release([1])
    assert pool.allocate(2, after=3) == [4, 5]
    assert pool.allocate(3) == [6, 7, 1]


def test_nothing_changes_when_there_are_too_few() -> None:
    pool = BlockPool(2, block_tokens=2)
    pool.allocate(1)
    assert pool.allocate(2) is None
    assert (pool.used, pool.free) == (1, 1)


def test_a_released_block_is_found_by_its_name_until_it_is_evicted() -> None:
    pool = BlockPool(3, block_tokens=2)
    chain = names([1, 2], [3, 4])
    taken = pool.allocate(2)
    assert taken is not None
    for block, name in zip(taken, chain, strict=True):
        pool.register(block, name)
    pool.release(taken)
    assert (pool.used, pool.cached, pool.free) == (0, 2, 1)
    assert pool.match(chain) == taken
    pool.share(taken)
    assert (pool.used, pool.cached) == (2, 0)
    assert not pool.writable(taken[0])
    pool.release(taken)
    # The free block goes first, then the end of the chain before its beginning.
    assert pool.allocate(2) == [2, taken[1]]
    assert pool.match(chain) == taken[:1]
    pool.check()


def test_the_least_recently_used_prefix_is_evicted() -> None:
    pool = BlockPool(2, block_tokens=1)
    for token in (1, 2):
        (block,) = pool.allocate(1) or []
        pool.register(block, names([token])[0])
        pool.release([block])
    pool.share(pool.match(names([1])))
    pool.release([0])
    assert pool.allocate(1) == [1]
    assert pool.match(names([1])) == [0]
    assert pool.match(names([2])) == []


def test_the_first_of_equal_blocks_keeps_the_name() -> None:
    pool = BlockPool(2, block_tokens=1)
    pool.allocate(2)
    name = names([7])[0]
    pool.register(0, name)
    pool.register(1, name)
    assert pool.match([name]) == [0]
    assert pool.writable(1)
    pool.release([0, 1])
    assert (pool.cached, pool.free) == (1, 1)
    pool.forget()
    assert (pool.cached, pool.free) == (0, 2)
    pool.check()


def test_without_prefix_caching_nothing_is_kept() -> None:
    pool = BlockPool(1, block_tokens=1, prefix_caching=False)
    pool.allocate(1)
    pool.register(0, names([1])[0])
    pool.release([0])
    assert pool.free == 1
    assert pool.match(names([1])) == []


def test_misuse_is_refused() -> None:
    with pytest.raises(InputError):
        BlockPool(0, block_tokens=16)
    pool = BlockPool(1, block_tokens=1)
    with pytest.raises(AssertionError, match="more often"):
        pool.release([0])


class Books(RuleBasedStateMachine):
    """Any order of operations keeps every block in exactly one state."""

    @initialize(total=st.integers(1, 8))
    def open(self, total: int) -> None:
        self.pool = BlockPool(total, block_tokens=1)
        self.holders: list[list[int]] = []
        self.tokens = 0

    @rule(count=st.integers(0, 5), named=st.booleans())
    def take(self, count: int, named: bool) -> None:
        room = self.pool.available
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > room)
        if blocks is not None:
            self.holders.append(blocks)
            if named:
                parent = b""
                for block in blocks:
                    self.tokens += 1
                    parent = block_hash(parent, [self.tokens])
                    self.pool.register(block, parent)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        self.pool.share(blocks)
        self.holders.append(list(blocks))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.pool.release(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @rule()
    def forget(self) -> None:
        self.pool.forget()

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            assert self.pool.used == len({block for blocks in self.holders for block in blocks})
            assert self.pool.free + self.pool.used + self.pool.cached == self.pool.total


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
