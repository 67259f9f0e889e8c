"""The engine over a scripted backend: text, ends, errors, records; outputs do not depend on the load."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from engine_fakes import BLOCK_TOKENS, EOS, FakeBackend, byte_tokenizer, outputs  # noqa: E402

from rooflens.errors import CapacityError, InputError, RooflensError, UnsupportedError  # noqa: E402
from rooflens.runtime.engine.engine import Engine  # noqa: E402
from rooflens.runtime.engine.records import RequestRecord, StepRecord  # noqa: E402
from rooflens.runtime.engine.request import Delta  # noqa: E402
from rooflens.runtime.engine.settings import EngineSettings  # noqa: E402
from rooflens.runtime.engine.speculative import DraftModel, PromptLookup  # noqa: E402
from rooflens.runtime.sampling import SamplingParams  # noqa: E402

GREEDY = SamplingParams(max_tokens=8, temperature=0)
SMALL = EngineSettings(max_sequences=4, max_batched_tokens=8)


class Notes:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.requests: list[RequestRecord] = []

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def on_request(self, record: RequestRecord) -> None:
        self.requests.append(record)


def run(engine: Engine) -> list[Delta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
        engine.scheduler.pool.check()
    return deltas


def test_a_scripted_answer() -> None:
    engine = Engine(FakeBackend(script={"Say it: ": "żółw 🐢!"}))
    (answer,) = engine.generate(["Say it: "], SamplingParams(max_tokens=40, temperature=0))
    assert answer.text == "żółw 🐢!"
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] == EOS
    # Bytes: ż, ó and ł are two each, the turtle four; w, the space and ! one each; and the end.
    assert answer.usage.output_tokens == 3 * 2 + 4 + 3 + 1
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (8, 0)


def test_a_character_comes_whole() -> None:
    engine = Engine(FakeBackend(script={"x": "a🐢b"}))
    pieces = [delta.text for delta in engine.stream("x", SamplingParams(max_tokens=9, temperature=0))]
    assert pieces == ["a", "", "", "", "🐢", "b", ""]


@pytest.mark.parametrize("stop", ["CD", "BCD", "D", "DE", "🐢"])
def test_stop_strings_across_tokens(stop: str) -> None:
    engine = Engine(FakeBackend(script={"x": "ABCDE🐢F"}))
    params = SamplingParams(max_tokens=30, temperature=0, stop=(stop,))
    (answer,) = engine.generate(["x"], params)
    assert answer.text == "ABCDE🐢F".split(stop)[0]
    assert answer.finish_reason == "stop"
    assert not engine.has_work
    assert engine.status.kv_blocks_used == 0


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    engine = Engine(FakeBackend(script={"x": "ABC"}))
    params = SamplingParams(max_tokens=3, temperature=0, stop=("CX",))
    deltas = list(engine.stream("x", params))
    assert [delta.text for delta in deltas] == ["A", "B", "C"]
    assert deltas[-1].finish_reason == "length"


def test_stop_tokens_and_ignored_ends() -> None:
    backend = FakeBackend(script={"x": "AB"})
    (answer,) = Engine(backend).generate(
        ["x"], SamplingParams(max_tokens=5, temperature=0, stop_token_ids=(backend.tokenizer.encode("B")[0],))
    )
    assert (answer.text, answer.finish_reason) == ("A", "stop")
    (answer,) = Engine(backend).generate(["x"], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
    assert answer.token_ids[2] == EOS
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 5


PROMPTS = [f"prompt {i % 7} {'and more ' * (i % 5)}" for i in range(40)]
PARAMS = [
    SamplingParams(max_tokens=4 + i % 9, temperature=0 if i % 2 else 0.9, seed=i, top_p=0.9, n=1 + i % 3 // 2)
    for i in range(40)
]


@pytest.mark.parametrize("proposer", [None, "lookup", "draft"])
def test_outputs_do_not_depend_on_the_load(proposer: str | None) -> None:
    alone = [
        outputs(Engine(FakeBackend(), EngineSettings(prefix_caching=False)), [prompt], params)
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    expected = [output for answers in alone for output in answers]
    backend = FakeBackend(blocks=24, context=90)
    engine = Engine(backend, EngineSettings(max_sequences=6, max_batched_tokens=16))
    if proposer == "lookup":
        engine.proposer = PromptLookup(shortest=1)
    elif proposer == "draft":
        engine.proposer = DraftModel(FakeBackend(blocks=20, context=80), target=backend, tokens=3)
    assert outputs(engine, PROMPTS, PARAMS) == expected
    status = engine.status
    assert status.preemptions > 0
    assert status.prefix_hit_tokens > 0
    assert status.kv_blocks_used == 0
    if proposer == "draft":
        # The draft is the model itself: under greedy every guess is right, but for those after an end.
        assert status.accepted_tokens > 0.4 * status.drafted_tokens > 0
    elif proposer == "lookup":
        assert status.drafted_tokens > 0


def test_512_requests_through_a_pool_for_two() -> None:
    prompts = [[i % 256, i // 256, 7, *range(i % 11)] for i in range(512)]
    params = SamplingParams(max_tokens=14, temperature=0)
    roomy = Engine(FakeBackend(blocks=4000), EngineSettings(prefix_caching=False))
    # Prompts of 3 to 13 tokens and 14 new ones: up to 7 blocks each.
    tight = Engine(FakeBackend(blocks=14), EngineSettings(max_sequences=16, max_batched_tokens=32))
    assert outputs(tight, prompts, params) == outputs(roomy, prompts, params)
    assert tight.status.preemptions > 50
    tight.scheduler.pool.check()


def test_answers_to_one_prompt_differ_and_are_repeatable() -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=3, n=4)
    first, second = (outputs(Engine(FakeBackend()), ["tell me"], params) for _ in range(2))
    assert first == second
    assert len(set(first)) == 4


def test_a_repeating_answer_takes_fewer_steps_with_guesses() -> None:
    text = "one two three. " * 6
    script = {"Repeat: ": text}
    params = SamplingParams(max_tokens=150, temperature=0)
    plain = Engine(FakeBackend(script=script))
    guessing = Engine(FakeBackend(script=script), proposer=PromptLookup())
    assert [a.text for a in guessing.generate(["Repeat: "], params)] == [text]
    assert [a.text for a in plain.generate(["Repeat: "], params)] == [text]
    assert guessing.status.steps < plain.status.steps / 2
    # Each step makes one token, and one more for each right guess.
    assert guessing.status.output_tokens == guessing.status.steps + guessing.status.accepted_tokens


def test_logprobs_come_with_every_token() -> None:
    params = SamplingParams(max_tokens=3, temperature=0.5, seed=1, logprobs=2)
    (answer,) = Engine(FakeBackend()).generate(["x"], params)
    for token in answer.tokens:
        assert token.logprob is not None
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2


@pytest.mark.parametrize("after", [0, 1, 2, 6])
def test_cancelling_keeps_the_text_and_frees_the_blocks(after: int) -> None:
    engine = Engine(FakeBackend(script={"p" * 20: "ABCDEFGH"}), SMALL)
    request_id = engine.submit("p" * 20, SamplingParams(max_tokens=20, temperature=0, n=2))
    deltas = [delta for _ in range(after) for delta in engine.step()]
    deltas += engine.cancel(request_id)
    assert engine.cancel(request_id) == []
    assert not engine.has_work
    assert engine.status.kv_blocks_used == 0
    engine.scheduler.pool.check()
    for index in (0, 1):
        own = [delta for delta in deltas if delta.index == index]
        assert own[-1].finish_reason == "cancelled"
        assert "ABCDEFGH".startswith("".join(delta.text for delta in own))
        assert own[-1].usage is not None
        assert own[-1].usage.output_tokens == sum(len(delta.tokens) for delta in own)


def test_ctrl_c_keeps_the_text_so_far() -> None:
    backend = FakeBackend(script={"x": "ABCDEF"})
    plain_step = backend.step

    def interrupted(batch):  # type: ignore[no-untyped-def]
        if len(backend.batches) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return plain_step(batch)

    backend.step = interrupted  # type: ignore[method-assign]
    engine = Engine(backend)
    (answer,) = engine.generate(["x"], SamplingParams(max_tokens=30, temperature=0))
    # The step during which it came was finished.
    assert (answer.text, answer.finish_reason) == ("ABCD", "cancelled")
    assert not engine.has_work
    backend.batches.clear()
    deltas = list(engine.stream("x", SamplingParams(max_tokens=30, temperature=0)))
    assert "".join(delta.text for delta in deltas) == "ABCD"
    assert deltas[-1].finish_reason == "cancelled"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_leaving_a_stream_early_cancels_it() -> None:
    engine = Engine(FakeBackend())
    stream = engine.stream("x", GREEDY)
    next(stream)
    assert engine.has_work
    stream.close()  # type: ignore[attr-defined]
    assert not engine.has_work


def test_an_error_of_the_model_is_everyone_s_answer_and_not_the_end() -> None:
    backend = FakeBackend()
    engine = Engine(backend, SMALL)
    expected = outputs(engine, ["a long prompt"], GREEDY)
    for _ in range(3):
        engine.submit("a long prompt", GREEDY)
    engine.step()
    backend.error = CapacityError("a step does not fit in memory")
    with pytest.raises(CapacityError):
        engine.step()
    deltas = engine.fail(backend.error)
    assert [delta.finish_reason for delta in deltas] == ["error"] * 3
    assert all(delta.error is backend.error for delta in deltas)
    assert not engine.has_work
    # What the cache held is not trusted any more, and its memory is free again.
    assert (engine.status.kv_blocks_used, engine.status.kv_blocks_cached) == (0, 0)
    with pytest.raises(CapacityError):
        engine.generate(["x"], GREEDY)
    backend.error = None
    assert outputs(engine, ["a long prompt"], GREEDY) == expected


def test_a_step_that_raised_can_be_tried_again() -> None:
    backend = FakeBackend()
    engine = Engine(backend, SMALL)
    expected = outputs(engine, ["12345678"], GREEDY)
    request_id = engine.submit("12345678", GREEDY)
    backend.error = RuntimeError("for once")
    with pytest.raises(RuntimeError):
        engine.step()
    backend.error = None
    ids = [t.token_id for d in run(engine) if d.request_id == request_id for t in d.tokens]
    assert tuple(ids) == expected[0]


def test_bad_requests_are_refused_before_any_work() -> None:
    engine = Engine(FakeBackend(blocks=4, context=100))  # a pool of 16 tokens
    narrow = Engine(FakeBackend(context=100))
    cases: list[tuple[object, dict[str, object], str]] = [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ([999], {}, "vocabulary"),
        ([-1], {}, "vocabulary"),
        ("x" * 50, {}, "50 tokens leaves no room in the KV cache of 16"),
        ("x" * 10, {"max_tokens": 20}, "exceed the KV cache of 16"),
        ("bad \udcff text", {}, "Unicode"),
    ]
    for prompt, params, words in cases:
        with pytest.raises(RooflensError, match=words):
            engine.submit(prompt, SamplingParams(**params))  # type: ignore[arg-type]
    for prompt, words in (("x" * 120, "120 tokens leaves"), ("x" * 10, "15,821 exceed")):
        with pytest.raises(CapacityError, match=f"{words}.*the context of 100"):
            narrow.submit(prompt, SamplingParams(max_tokens=15_821))
    for params in ({"max_tokens": 0}, {"max_tokens": -1}, {"stop": ("",)}):
        with pytest.raises(InputError):
            SamplingParams(**params)
    bare = Engine(FakeBackend(tokenizer=False))
    with pytest.raises(InputError, match="tokenizer"):
        bare.submit("text", GREEDY)
    with pytest.raises(InputError, match="stop strings"):
        bare.submit([1], SamplingParams(stop=("x",)))
    assert len(bare.generate([[1, 2]], GREEDY)[0].token_ids) == 8
    assert not engine.has_work
    engine.submit("x", SamplingParams(max_tokens=1), request_id="mine")
    with pytest.raises(InputError, match="in use"):
        engine.submit("x", SamplingParams(max_tokens=1), request_id="mine")


def test_a_model_over_several_processes_is_refused() -> None:
    backend = FakeBackend()
    backend.parallel = SimpleNamespace(size=2)  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="one process"):
        Engine(backend)


def test_one_bad_prompt_stops_none_of_the_others_from_being_tried_again() -> None:
    engine = Engine(FakeBackend())
    with pytest.raises(InputError):
        engine.generate(["fine", ""], GREEDY)
    assert not engine.has_work


@pytest.mark.parametrize("full_blocks", [1, 2])
def test_a_fully_cached_prompt(full_blocks: int) -> None:
    prompt = "p" * (full_blocks * BLOCK_TOKENS)
    notes = Notes()
    engine = Engine(FakeBackend(), observers=[notes])
    first, second = outputs(engine, [prompt], GREEDY), outputs(engine, [prompt], GREEDY)
    assert first == second
    prefills = [step.prefill_tokens for step in notes.steps if step.prefill_tokens]
    assert prefills == [len(prompt), 1]
    assert [record.cached_tokens for record in notes.requests] == [0, len(prompt) - 1]


def test_records_of_steps_and_requests() -> None:
    notes = Notes()
    times = iter(range(10_000))
    engine = Engine(FakeBackend(), SMALL, observers=[notes], clock=lambda: float(next(times)))
    engine.submit("twelve bytes", SamplingParams(max_tokens=3, temperature=0), request_id="one")
    run(engine)
    assert [step.phase for step in notes.steps] == ["prefill", "prefill", "decode", "decode"]
    assert [step.prefill_tokens for step in notes.steps] == [8, 4, 0, 0]
    assert [step.decode_tokens for step in notes.steps] == [0, 0, 1, 1]
    assert [step.output_tokens for step in notes.steps] == [0, 1, 1, 1]
    assert [step.admitted for step in notes.steps] == [1, 0, 0, 0]
    assert [step.budget_share for step in notes.steps] == [1.0, 0.5, 0.125, 0.125]
    assert [step.kv_blocks_used for step in notes.steps] == [3, 3, 4, 0]
    assert [step.gap_s is None for step in notes.steps] == [True, False, False, False]
    # Every reading of this clock is one second after the one before: each phase lasts that long.
    assert notes.steps[0].model_s == 1.0
    assert notes.steps[0].total_s == 7.0
    (record,) = notes.requests
    assert (record.output_tokens, record.prompt_tokens) == (3, 12)
    assert record.queue_s == 1.0  # read when it came, and at the start of the step
    assert record.ttft_s is not None
    assert record.ttft_s > record.queue_s
    assert len(record.itl_s) == 2
    assert record.tpot_s == sum(record.itl_s) / 2
    assert record.total_s >= record.ttft_s + sum(record.itl_s)


def test_several_tokens_of_one_step_count_as_several() -> None:
    record = RequestRecord("r", 0, 5, 0, 0, 0.0, 1.0, 9.0, ((2.0, 1), (5.0, 3), (6.0, 1)), "length")
    assert record.output_tokens == 5
    # Three tokens in the three seconds from 2 to 5, one in the second after.
    assert record.itl_s == (1.0, 1.0, 1.0, 1.0)
    assert record.tpot_s == (6.0 - 2.0) / 4
    assert sum(record.itl_s) == 4.0
    assert RequestRecord("r", 0, 5, 0, 0, 0.0, None, 1.0, (), "cancelled").ttft_s is None


def test_tables_padded_to_another_length_are_one_vocabulary() -> None:
    target, draft = FakeBackend(), FakeBackend()
    target.spec.vocab_size += 7
    engine = Engine(target, proposer=DraftModel(draft, target=target, tokens=3))
    params = SamplingParams(max_tokens=12, temperature=0)
    assert outputs(engine, ["padded"], params) == outputs(Engine(FakeBackend()), ["padded"], params)
    assert engine.status.accepted_tokens == engine.status.drafted_tokens > 0


def test_a_loop_is_guessed_beyond_its_period() -> None:
    text = "abc" * 30
    engine = Engine(FakeBackend(script={"abcabc": text}), proposer=PromptLookup(tokens=9))
    (answer,) = engine.generate(["abcabc"], SamplingParams(max_tokens=60, temperature=0))
    assert answer.text == text[:60]
    # Ten tokens a step after the prompt's own, though the latest match is three tokens back.
    assert engine.status.steps <= 8


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    other = FakeBackend()
    other.spec.vocab_size = 99
    with pytest.raises(InputError, match="vocabulary"):
        DraftModel(other, target=FakeBackend())
    # As many tokens, of which one is spelt otherwise.
    other = FakeBackend()
    other.tokenizer = byte_tokenizer(end="<stop>")
    with pytest.raises(InputError, match="vocabulary"):
        DraftModel(other, target=FakeBackend())
    with pytest.raises(InputError):
        PromptLookup(tokens=0)
    with pytest.raises(InputError):
        PromptLookup(longest=1, shortest=2)
