"""Several prompts as one reply, whole or streamed, until the caller goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rooflens.runtime.engine.async_engine import AsyncEngine, EngineStopped, RequestStream
from rooflens.runtime.engine.engine import Prompt
from rooflens.runtime.engine.request import Delta
from rooflens.runtime.sampling import SamplingParams
from rooflens.server.answers import Reply
from rooflens.server.errors import error_body

T = TypeVar("T")
#: What nginx writes down for a caller who left; nobody receives it.
CALLER_GONE = 499


class Submitted:
    """The requests of one reply; leaving it (``async with``) cancels what has not ended."""

    def __init__(self, engine: AsyncEngine, prompts: Sequence[Prompt], params: SamplingParams) -> None:
        """Raises as ``AsyncEngine.submit``; then nothing stays queued."""
        self.streams: list[RequestStream] = []
        try:
            for prompt in prompts:
                self.streams.append(engine.submit(prompt, params))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel all of them."""
        for stream in self.streams:
            stream.cancel()

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(prompt's index, delta) of all prompts as they come. Raises what ended an answer badly."""
        async with AsyncExitStack() as stack:
            for stream in self.streams:
                await stack.enter_async_context(stream)
            queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue()

            async def forward(index: int, stream: RequestStream) -> None:
                async for delta in stream:
                    queue.put_nowait((index, delta))
                queue.put_nowait(None)

            tasks = [asyncio.create_task(forward(i, stream)) for i, stream in enumerate(self.streams)]
            for task in tasks:
                stack.callback(task.cancel)
            left = len(tasks)
            while left:
                item = await queue.get()
                if item is None:
                    left -= 1
                    continue
                if item[1].error is not None:
                    raise item[1].error
                if item[1].finish_reason == "cancelled":
                    raise EngineStopped("the server is shutting down")
                yield item


async def whole_reply(request: Request, submitted: Submitted, reply: Reply) -> dict[str, Any] | None:
    """The whole reply, None if the caller has gone; then its blocks are free within a step."""

    async def gather() -> dict[str, Any]:
        return reply.whole([item async for item in submitted.deltas()])

    try:
        return await _unless_gone(request, gather())
    finally:
        submitted.cancel()


class EventResponse(StreamingResponse):
    """The reply as it comes; a caller who leaves before the first event ends its requests too."""

    def __init__(self, submitted: Submitted, reply: Reply, *, usage: bool) -> None:
        super().__init__(
            event_stream(submitted, reply, usage=usage),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )
        self._submitted = submitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ``StreamingResponse``. A generator that was never begun has no ``finally`` to run."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._submitted.cancel()


async def event_stream(submitted: Submitted, reply: Reply, *, usage: bool) -> AsyncIterator[bytes]:
    """The reply as server-sent events. An error in the middle is an event too: the headers are long sent."""
    try:
        async for prompt, delta in submitted.deltas():
            chunk = reply.chunk(prompt, delta)
            if chunk is not None:
                yield _event(chunk | {"usage": None} if usage else chunk)
        if usage:
            yield _event(reply.usage_chunk())
    except Exception as error:
        yield _event(error_body(error)[1])
    finally:
        submitted.cancel()
    yield b"data: [DONE]\n\n"


def gone() -> Response:
    """The answer to nobody."""
    return Response(status_code=CALLER_GONE)


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document, allow_nan=False, separators=(',', ':'))}\n\n".encode()


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``; None, and ``work`` cancelled, as soon as the connection is closed."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
