"""The engine on a thread of its own, for asyncio programs: post a request, receive its deltas.

Only the engine's thread touches the scheduler and the cache. Whatever happens, every accepted request gets
a last delta for each of its answers: also when the model raises, the program shuts down or the thread dies.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from rooflens.errors import InputError, RooflensError
from rooflens.runtime.engine.engine import Engine, Prompt
from rooflens.runtime.engine.request import Completion, Delta, Request, Usage, collect
from rooflens.runtime.engine.sequence import FinishReason
from rooflens.runtime.engine.settings import EngineStatus
from rooflens.runtime.sampling import SamplingParams


class EngineStopped(RooflensError):
    """The engine takes no more requests."""

    exit_code = 1
    http_status = 503


class RequestStream:
    """The deltas of one request, as they come: ``async for delta in stream``.

    Ends after the last delta of every answer. Leaving it early (``async with``, or ``cancel``) frees the
    request's blocks before the next step.
    """

    def __init__(self, owner: AsyncEngine, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.loop = loop
        #: Indices of answers that have not ended; the engine's thread keeps count.
        self.unfinished = set(range(request.params.n))
        self._owner = owner
        self._queue: asyncio.Queue[Delta] = asyncio.Queue()
        self._left = request.params.n

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.id

    def cancel(self) -> None:
        """End the request; its last deltas still come. Does nothing if it has ended."""
        self._owner.cancel(self.request_id)

    def put(self, delta: Delta) -> None:
        """Called in the event loop."""
        self._queue.put_nowait(delta)

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if not self._left:
            raise StopAsyncIteration
        delta = await self._queue.get()
        self._left -= delta.finish_reason is not None
        return delta

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._left:
            self.cancel()


@dataclass(frozen=True)
class _Accept:
    stream: RequestStream


@dataclass(frozen=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True)
class _Stop:
    drain: bool


class AsyncEngine:
    """One engine, one thread. ``start`` it, ``submit`` from any event loop, ``shutdown`` at the end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: SimpleQueue[_Accept | _Cancel | _Stop] = SimpleQueue()
        self._lock = threading.Lock()  # around _streams and _accepting
        self._streams: dict[str, RequestStream] = {}
        self._accepting = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rooflens-engine", daemon=True)
        #: The last error of a step; the requests of that step have been told.
        self.last_error: BaseException | None = None

    def start(self) -> AsyncEngine:
        """Start the thread."""
        self._accepting = True
        self._thread.start()
        return self

    @property
    def accepting(self) -> bool:
        """Whether requests are taken: started, and neither shut down nor dead."""
        return self._accepting

    @property
    def status(self) -> EngineStatus:
        """Where the engine stands, as of its last step."""
        return self._engine.status

    def submit(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None
    ) -> RequestStream:
        """Post a request from a running event loop, which will receive its deltas.

        Raises at once, before any work: as ``Engine.prepare``, InputError for an id that is in use, and
        EngineStopped.
        """
        request = self._engine.prepare(prompt, params, request_id=request_id)
        stream = RequestStream(self, request, asyncio.get_running_loop())
        with self._lock:
            if not self._accepting:
                raise EngineStopped("the engine is not running", value=self.last_error)
            if request.id in self._streams:
                raise InputError("request_id is in use", value=request.id)
            self._streams[request.id] = stream
            self._inbox.put(_Accept(stream))
        return stream

    async def complete(self, prompt: Prompt, params: SamplingParams) -> list[Completion]:
        """Answer a prompt as a whole, ``n`` answers. Raises as ``submit``, and what the model raised.

        Cancelling the task cancels the request.
        """
        deltas = []
        async with self.submit(prompt, params) as stream:
            async for delta in stream:
                deltas.append(delta)
                if delta.error is not None:
                    raise delta.error
        return collect(deltas, stream.request_id)

    def cancel(self, request_id: str) -> None:
        """End a request before the next step, from any thread."""
        self._inbox.put(_Cancel(request_id))

    async def shutdown(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Take no more requests and end: after the accepted ones (``drain``), or cancelling them.

        After ``timeout_s`` those still unfinished are cancelled; their text so far is delivered.
        """
        with self._lock:
            started, self._accepting = self._thread.ident is not None, False
        if not started:
            return
        self._inbox.put(_Stop(drain))
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            self._inbox.put(_Stop(False))
            await asyncio.to_thread(self._thread.join)

    # -- the engine's thread

    def _run(self) -> None:
        engine = self._engine
        try:
            while not (self._stopping and not engine.has_work):
                self._read_inbox(wait=not engine.has_work)
                if engine.has_work:
                    self._step()
        except BaseException as error:  # told to everyone who waits, and to whoever comes
            self.last_error = error
        finally:
            self._leave()

    def _step(self) -> None:
        try:
            deltas = self._engine.step()
        except Exception as error:
            self.last_error = error
            deltas = self._engine.fail(error)
        self._send(deltas)

    def _read_inbox(self, *, wait: bool) -> None:
        """Do what was posted; ``wait`` for something if there is nothing else to do."""
        try:
            while True:
                self._obey(self._inbox.get(block=wait))
                wait = False
        except Empty:
            pass

    def _obey(self, command: _Accept | _Cancel | _Stop) -> None:
        if isinstance(command, _Accept):
            try:
                self._engine.accept(command.stream.request)
            except Exception as error:
                self._send(_last_deltas(command.stream, "error", error))
        elif isinstance(command, _Cancel):
            self._send(self._engine.cancel(command.request_id))
        else:
            self._stopping = True
            if not command.drain:
                for request_id in list(self._streams):
                    self._send(self._engine.cancel(request_id))

    def _send(self, deltas: Iterable[Delta]) -> None:
        """Hand deltas over to the event loops that wait for them, one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[RequestStream, Delta]]] = defaultdict(list)
        for delta in deltas:
            stream = self._streams[delta.request_id]
            by_loop[stream.loop].append((stream, delta))
            if delta.finish_reason is not None:
                stream.unfinished.discard(delta.index)
                if not stream.unfinished:
                    with self._lock:
                        del self._streams[delta.request_id]
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, batch)
            except RuntimeError:  # the loop is closed: nobody is there to receive anything
                for stream, _ in batch:
                    if stream.unfinished:
                        self.cancel(stream.request_id)

    def _leave(self) -> None:
        """Answer whoever is left, when the thread ends for whatever reason."""
        with self._lock:
            self._accepting = False
            left = list(self._streams.values())
        reason: FinishReason = "cancelled" if self.last_error is None else "error"
        for stream in left:
            self._send(_last_deltas(stream, reason, self.last_error))


def _put_all(batch: Iterable[tuple[RequestStream, Delta]]) -> None:
    for stream, delta in batch:
        stream.put(delta)


def _last_deltas(stream: RequestStream, reason: FinishReason, error: BaseException | None) -> list[Delta]:
    usage = Usage(len(stream.request.prompt), 0, 0)
    return [
        Delta(stream.request_id, index, "", (), reason, usage, error) for index in sorted(stream.unfinished)
    ]
