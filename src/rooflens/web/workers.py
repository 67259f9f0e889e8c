"""Where answers are worked out: a few threads, so that the event loop stays free to say that it is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rooflens.errors import RooflensError
from rooflens.web.errors import BusyError, TooSlowError, from_fault
from rooflens.web.settings import WebSettings

T = TypeVar("T")


class Workers:
    """A bounded pool: ``workers`` threads, at most ``most_waiting`` requests waiting or running.

    Each request's own limits bound its work; a thread that runs past the time limit is left to finish.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="rooflens-web")
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work`` in a thread. Raises BusyError, TooSlowError, or what the work raises.

        An exception that is not a RooflensError becomes one (see `from_fault`).
        """
        if self._waiting >= self._settings.most_waiting:
            raise BusyError("the server is busy", next="send the request again in a moment")
        self._waiting += 1
        future = self._pool.submit(work)
        # Counted until the thread is done, which may be after the visitor was told that it takes too long.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _on_loop(loop, self._done))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._settings.answer_timeout_s)
        except TimeoutError:
            raise TooSlowError(
                "the answer took too long",
                value=f"{self._settings.answer_timeout_s:g} s",
                next="ask for less at once",
            ) from None
        except RooflensError:
            raise
        except Exception as error:
            raise from_fault(error) from error

    def _done(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """Take no more work; what runs is left to finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
