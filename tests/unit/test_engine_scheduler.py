"""The scheduler over a toy model: whatever happens, outputs equal the unloaded run and no block is lost."""

from __future__ import annotations

import pytest
from engine_world import BLOCK_TOKENS, VOCABULARY, World, continuation, next_token
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rooflens.errors import CapacityError, InputError
from rooflens.runtime.engine.sequence import SequenceState, Status
from rooflens.runtime.engine.step import Limits

PROMPT = [1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_one_request() -> None:
    world = World(blocks=8)
    (sequence,) = world.add(PROMPT)
    world.drain()
    assert world.output(sequence) == continuation(PROMPT, len(PROMPT) + 6)
    assert sequence.finish_reason == "length"
    # One prefill of nine tokens, then five single ones.
    assert [step.tokens for step in world.steps] == [9, 1, 1, 1, 1, 1]
    assert [step.entries[0].prefill for step in world.steps] == [True] + 5 * [False]


def test_prompts_go_in_chunks_and_decodes_come_first() -> None:
    world = World(blocks=32, max_batched_tokens=8)
    (first,) = world.add([1] * 3)
    world.step()
    (second,) = world.add([2] * 20)
    world.drain()
    # The first decodes one token in each step; what is left of the budget of 8 goes to the prompt.
    shares = [[len(entry.token_ids) for entry in step.entries] for step in world.steps]
    assert shares[:4] == [[3], [1, 7], [1, 7], [1, 6]]
    assert world.output(second) == continuation([2] * 20, 26)
    assert world.output(first) == continuation([1] * 3, 9)


def test_a_stop_token_ends_a_sequence() -> None:
    token = next_token(PROMPT)
    world = World(blocks=8)
    (sequence,) = world.add(PROMPT, stop_ids=frozenset({token}))
    world.drain()
    assert world.output(sequence) == [token]
    assert sequence.finish_reason == "stop"


@pytest.mark.parametrize("full_blocks", [1, 2])
def test_a_fully_cached_prompt_computes_its_last_token(full_blocks: int) -> None:
    prompt = PROMPT[: full_blocks * BLOCK_TOKENS]
    world = World(blocks=8)
    world.add(prompt)
    world.drain()
    (again,) = world.add(prompt)
    world.step()
    step = world.steps[-1]
    assert (step.entries[0].start, len(step.entries[0].token_ids)) == (len(prompt) - 1, 1)
    assert again.cached_tokens == len(prompt) - 1
    # The cached block is copied, not written.
    assert len(step.copies) == 1
    world.drain()
    assert world.output(again) == continuation(prompt, len(prompt) + 6)
    world.check()


def test_a_fully_cached_prompt_in_the_smallest_pool() -> None:
    prompt = PROMPT[:BLOCK_TOKENS]
    world = World(blocks=2)
    for _ in range(3):
        (sequence,) = world.add(prompt, max_tokens=3)
        world.drain()
        assert world.output(sequence) == continuation(prompt, len(prompt) + 3)
    # The second run hit the first's block, then had to evict it for its own second block.
    assert world.scheduler.prefix_hit_tokens == BLOCK_TOKENS - 1


def test_the_last_to_come_is_preempted_and_resumes_from_the_cache() -> None:
    world = World(blocks=6, max_batched_tokens=32)
    (first,) = world.add([1] * 8, max_tokens=12)
    (second,) = world.add([2] * 8, max_tokens=12)
    world.drain()
    assert (first.preemptions, second.preemptions) == (0, 1)
    for sequence in (first, second):
        assert world.output(sequence) == continuation(sequence.tokens[:8], 20)
    resumed = [step for step in world.steps if second in step.admitted][-1]
    entry = next(entry for entry in resumed.entries if entry.sequence is second)
    # It has output already, and this still is a prefill: of what the cache does not have.
    assert entry.prefill
    assert entry.start > 0
    assert entry.start + len(entry.token_ids) > second.prompt_tokens


def test_512_requests_through_a_pool_for_two() -> None:
    world = World(blocks=8, max_sequences=16, max_batched_tokens=24)
    prompts = [[i % 5, i // 5 % 5, i // 25 % 5, i // 125, *PROMPT[: i % 7]] for i in range(512)]
    sequences = [world.add(prompt, max_tokens=6)[0] for prompt in prompts]
    world.drain()
    assert sum(sequence.preemptions for sequence in sequences) > 10
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert world.output(sequence) == continuation(prompt, len(prompt) + 6)
    world.check()
    assert world.pool.used == 0


def test_answers_to_one_prompt_share_its_blocks() -> None:
    world = World(blocks=16)
    group = world.add(PROMPT, n=3, max_tokens=3)
    world.step()
    assert [entry.sequence for entry in world.steps[-1].entries] == group[:1]
    world.step()
    # Two full blocks are shared by all three, the third has one copy each.
    tables = [sequence.blocks for sequence in group]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    assert world.pool.used == 5
    assert [len(entry.token_ids) for entry in world.steps[-1].entries] == [1, 1, 1]
    world.drain()
    for sequence in group:
        assert world.output(sequence) == continuation(PROMPT, len(PROMPT) + 3)


def test_answers_survive_the_end_of_the_one_they_share_with() -> None:
    world = World(blocks=16, prefix_caching=False)
    group = world.add(PROMPT, n=2, max_tokens=4)
    world.scheduler.finish(group[0], "cancelled")
    world.drain()
    assert world.output(group[1]) == continuation(PROMPT, len(PROMPT) + 4)


@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_cancelling_frees_the_blocks_at_once(steps: int) -> None:
    world = World(blocks=8, max_batched_tokens=8)
    (sequence,) = world.add([1] * 20, max_tokens=4)  # three steps of prefill, then decodes
    for _ in range(steps):
        world.step()
    world.scheduler.finish(sequence, "cancelled")
    world.check()
    assert world.pool.used == 0
    assert world.step() is None
    assert sequence.finish_reason == "cancelled"


def test_a_step_that_failed_can_be_scheduled_again() -> None:
    world = World(blocks=8)
    world.add(PROMPT[:8])
    world.drain()
    (again,) = world.add(PROMPT[:8])
    lost = world.scheduler.schedule()
    assert lost is not None
    assert lost.copies
    world.scheduler.abandon(lost)
    world.check()
    world.drain()
    assert world.output(again) == continuation(PROMPT[:8], 14)


def test_guesses_that_are_right_come_in_one_step() -> None:
    world = World(blocks=8)
    (sequence,) = world.add(PROMPT, max_tokens=8)
    world.step()
    expected = continuation(PROMPT, len(PROMPT) + 8)
    progress = world.step({sequence.id: expected[1:4]})
    assert progress is not None
    assert progress[0].tokens == tuple(expected[1:5])
    wrong = [expected[5], (expected[6] + 1) % VOCABULARY, expected[7]]
    progress = world.step({sequence.id: wrong})
    assert progress is not None
    # Two were asked for beyond the next at most: the limit leaves room for them. The second is wrong.
    assert progress[0].tokens == tuple(expected[5:7])
    world.drain()
    assert world.output(sequence) == expected


def test_guesses_never_cost_anyone_else_its_place() -> None:
    world = World(blocks=5, max_sequences=2, max_batched_tokens=3)
    first, second = world.add([1, 1], max_tokens=8)[0], world.add([2], max_tokens=8)[0]
    world.step()
    world.step({first.id: [0, 0, 0, 0], second.id: [0, 0]})
    assert [len(entry.token_ids) for entry in world.steps[-1].entries] == [2, 1]
    for _ in range(20):
        world.step({sequence.id: [0, 1, 2, 3] for sequence in (first, second)})
    assert world.output(first) == continuation([1, 1], 10)
    assert world.output(second) == continuation([2], 9)


def test_what_can_never_finish_is_refused_with_both_numbers() -> None:
    world = World(blocks=4, context=100)  # a pool of 16 tokens
    wide = World(blocks=100, context=100)
    for where, prompt, max_tokens, words in (
        (world, 16, 1, ("16", "KV cache of 16")),
        (world, 10, 7, ("10", "7", "exceed the KV cache of 16", "at most 6")),
        (wide, 100, 1, ("100", "the context of 100")),
        (wide, 20, 90, ("20", "90", "exceed the context of 100")),
    ):
        with pytest.raises(CapacityError) as refused:
            where.add([1] * prompt, max_tokens=max_tokens)
        assert all(word in str(refused.value) for word in words), str(refused.value)
    with pytest.raises(InputError, match="empty"):
        world.add([])
    assert not world.scheduler.has_work


@pytest.mark.parametrize("limits", [(0, 8, 8), (4, 0, 8), (4, 8, -1), (9, 8, 100), (True, 8, 8)])
def test_limits_are_checked(limits: tuple[int, int, int]) -> None:
    with pytest.raises(InputError):
        Limits(*limits)


tokens = st.integers(0, 2)
prompts = st.lists(tokens, min_size=1, max_size=14)


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(st.tuples(prompts, st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=12),
    blocks=st.integers(6, 12),
    max_sequences=st.integers(1, 6),
    extra=st.integers(0, 10),
    prefix_caching=st.booleans(),
)
def test_outputs_equal_the_unloaded_run(
    requests: list[tuple[list[int], int, int]],
    blocks: int,
    max_sequences: int,
    extra: int,
    prefix_caching: bool,
) -> None:
    world = World(
        blocks=blocks,
        max_sequences=max_sequences,
        max_batched_tokens=max_sequences + extra,
        prefix_caching=prefix_caching,
    )
    for prompt, max_tokens, n in requests:
        world.add(prompt, max_tokens=max_tokens, n=n, stop_ids=frozenset({4}))
    world.drain()
    world.check()
    assert world.pool.used == 0
    for sequence in world.sequences:
        prompt = sequence.tokens[: sequence.prompt_tokens]
        assert world.output(sequence) == continuation(prompt, sequence.limit, frozenset({4}))


class Life(RuleBasedStateMachine):
    """Requests come, are cancelled, guessed for, interrupted, in any order."""

    @initialize(
        blocks=st.integers(6, 10),
        max_sequences=st.integers(1, 5),
        extra=st.integers(0, 8),
        caching=st.booleans(),
    )
    def open(self, blocks: int, max_sequences: int, extra: int, caching: bool) -> None:
        self.world = World(
            blocks=blocks,
            max_sequences=max_sequences,
            max_batched_tokens=max_sequences + extra,
            prefix_caching=caching,
        )

    def unfinished(self) -> list[SequenceState]:
        return [s for s in self.world.sequences if s.status is not Status.FINISHED]

    @rule(prompt=prompts, max_tokens=st.integers(1, 8), n=st.integers(1, 3))
    def add(self, prompt: list[int], max_tokens: int, n: int) -> None:
        self.world.add(prompt, max_tokens=max_tokens, n=n)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.scheduler.finish(data.draw(st.sampled_from(self.unfinished())), "cancelled")

    @rule(guesses=st.lists(st.integers(0, VOCABULARY - 1), max_size=4), right=st.integers(0, 4))
    def step(self, guesses: list[int], right: int) -> None:
        drafts = {}
        for sequence in self.world.scheduler.decoding():
            known = continuation(sequence.tokens, len(sequence.tokens) + right)
            drafts[sequence.id] = [*known, *guesses]
        self.world.step(drafts)

    @rule()
    def lose_a_step(self) -> None:
        step = self.world.scheduler.schedule()
        if step is not None:
            self.world.scheduler.abandon(step)

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.drain()
        self.world.check()
        assert self.world.pool.used == 0
        for sequence in self.world.sequences:
            output = self.world.output(sequence)
            expected = continuation(sequence.tokens[: sequence.prompt_tokens], sequence.limit)
            assert output == expected[: len(output)]
            assert sequence.finish_reason == "cancelled" or output == expected


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
