"""The engine's thread: every accepted request is answered, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

torch = pytest.importorskip("torch")

from engine_fakes import FakeBackend, outputs  # noqa: E402

from rooflens.errors import CapacityError, InputError  # noqa: E402
from rooflens.runtime.engine.async_engine import AsyncEngine, EngineStopped  # noqa: E402
from rooflens.runtime.engine.engine import Engine  # noqa: E402
from rooflens.runtime.engine.request import Delta  # noqa: E402
from rooflens.runtime.engine.settings import EngineSettings  # noqa: E402
from rooflens.runtime.sampling import SamplingParams  # noqa: E402

GREEDY = SamplingParams(max_tokens=8, temperature=0)
LONG = SamplingParams(max_tokens=100, temperature=0)
TIGHT = EngineSettings(max_sequences=4, max_batched_tokens=16)
LIMIT_S = 30


def play(scene: Callable[[AsyncEngine], Awaitable[None]], backend: FakeBackend | None = None) -> AsyncEngine:
    """Run ``scene`` with a started engine, and shut it down after."""
    engine = AsyncEngine(Engine(backend or FakeBackend(), TIGHT)).start()

    async def whole() -> None:
        try:
            await scene(engine)
        finally:
            await engine.shutdown(drain=False)

    asyncio.run(asyncio.wait_for(whole(), LIMIT_S))
    assert not engine.accepting
    assert engine.status.kv_blocks_used == 0
    return engine


def test_many_at_once_get_what_they_would_get_alone() -> None:
    prompts = [f"question {i % 9}" for i in range(60)]
    expected = outputs(Engine(FakeBackend()), prompts, GREEDY)

    async def scene(engine: AsyncEngine) -> None:
        answers = await asyncio.gather(*(engine.complete(prompt, GREEDY) for prompt in prompts))
        assert [answer[0].token_ids for answer in answers] == expected

    play(scene, FakeBackend(blocks=20))


def test_deltas_come_as_they_are_made() -> None:
    async def scene(engine: AsyncEngine) -> None:
        deltas: list[Delta] = []
        params = SamplingParams(max_tokens=20, temperature=0, n=2)
        async with engine.submit("x", params, request_id="mine") as stream:
            async for delta in stream:
                deltas.append(delta)
        for index in (0, 1):
            own = [delta for delta in deltas if delta.index == index]
            assert "".join(delta.text for delta in own) == "żółw"
            assert own[-1].finish_reason == "stop"
            assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
        assert {delta.request_id for delta in deltas} == {"mine"}

    play(scene, FakeBackend(script={"x": "żółw"}))


def test_leaving_cancels_and_frees() -> None:
    async def scene(engine: AsyncEngine) -> None:
        async with engine.submit("x", LONG) as stream:
            async for _ in stream:
                break
        await engine.complete("y", GREEDY)
        assert engine.status.running == 0
        assert engine.status.kv_blocks_used == 0

    play(scene)


def test_a_cancelled_request_still_gets_its_last_delta() -> None:
    async def scene(engine: AsyncEngine) -> None:
        stream = engine.submit("x", LONG)
        first = await anext(stream)
        stream.cancel()
        rest = [delta async for delta in stream]
        assert rest[-1].finish_reason == "cancelled"
        assert rest[-1].usage is not None
        assert rest[-1].usage.output_tokens == len(first.tokens) + sum(len(d.tokens) for d in rest)
        stream.cancel()

    play(scene)


def test_a_cancelled_task_cancels_its_request() -> None:
    async def scene(engine: AsyncEngine) -> None:
        task = asyncio.create_task(engine.complete("x", LONG))
        while not engine.status.steps:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.complete("y", SamplingParams(max_tokens=1))
        assert engine.status.running == 0

    play(scene)


def test_an_error_of_the_model_answers_everyone_and_the_engine_goes_on() -> None:
    backend = FakeBackend()

    async def scene(engine: AsyncEngine) -> None:
        backend.error = CapacityError("a step does not fit in memory")
        streams = [engine.submit("x" * i, GREEDY) for i in range(1, 10)]
        for stream in streams:
            deltas = [delta async for delta in stream]
            assert deltas[-1].finish_reason == "error"
            assert isinstance(deltas[-1].error, CapacityError)
        with pytest.raises(CapacityError, match="does not fit"):
            await engine.complete("x", GREEDY)
        assert engine.last_error is backend.error
        assert engine.accepting
        backend.error = None
        (answer,) = await engine.complete("x", GREEDY)
        assert len(answer.token_ids) == 8

    play(scene, backend)


def test_the_death_of_the_thread_answers_everyone() -> None:
    backend = FakeBackend()

    async def scene(engine: AsyncEngine) -> None:
        streams = [engine.submit("x", LONG) for _ in range(6)]
        backend.error = SystemExit("gone")
        for stream in streams:
            deltas = [delta async for delta in stream]
            assert deltas[-1].finish_reason == "error"
        with pytest.raises(EngineStopped, match="gone"):
            engine.submit("x", GREEDY)

    engine = AsyncEngine(Engine(backend, TIGHT)).start()
    asyncio.run(asyncio.wait_for(scene(engine), LIMIT_S))
    assert isinstance(engine.last_error, SystemExit)


def test_shutting_down_finishes_what_was_accepted() -> None:
    async def scene(engine: AsyncEngine) -> None:
        streams = [engine.submit(f"{i}", GREEDY) for i in range(12)]
        await engine.shutdown()
        with pytest.raises(EngineStopped):
            engine.submit("late", GREEDY)
        for stream in streams:
            deltas = [delta async for delta in stream]
            assert deltas[-1].finish_reason == "length"
        await engine.shutdown()

    play(scene)


@pytest.mark.parametrize("timeout_s", [None, 0.0])
def test_shutting_down_at_once_cancels_and_keeps_the_text(timeout_s: float | None) -> None:
    async def scene(engine: AsyncEngine) -> None:
        streams = [engine.submit(f"{i}", LONG) for i in range(8)]
        await anext(streams[0])
        await engine.shutdown(drain=timeout_s is not None, timeout_s=timeout_s)
        reasons = [[delta async for delta in stream][-1].finish_reason for stream in streams]
        assert set(reasons) <= {"cancelled", "length"}
        assert "cancelled" in reasons

    play(scene)


def test_bad_requests_are_refused_before_they_are_accepted() -> None:
    async def scene(engine: AsyncEngine) -> None:
        with pytest.raises(CapacityError):
            engine.submit("x" * 300, GREEDY)
        with pytest.raises(InputError):
            engine.submit("", GREEDY)
        stream = engine.submit("x", LONG, request_id="mine")
        with pytest.raises(InputError, match="in use"):
            engine.submit("x", LONG, request_id="mine")
        stream.cancel()

    engine = play(scene)
    assert engine.status.requests <= 1


def test_a_closed_event_loop_cancels_its_requests() -> None:
    engine = AsyncEngine(Engine(FakeBackend(blocks=200), TIGHT)).start()

    async def leave() -> None:
        stream = engine.submit("x", LONG)
        await anext(stream)

    asyncio.run(leave())

    async def after() -> None:
        await engine.complete("y", LONG)
        while engine.status.running:
            await asyncio.sleep(0.001)
        await engine.shutdown()

    asyncio.run(asyncio.wait_for(after(), LIMIT_S))
    assert engine.status.kv_blocks_used == 0


def test_an_engine_that_never_started() -> None:
    engine = AsyncEngine(Engine(FakeBackend()))

    async def scene() -> None:
        with pytest.raises(EngineStopped):
            engine.submit("x", GREEDY)
        await engine.shutdown()

    asyncio.run(scene())
