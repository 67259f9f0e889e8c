"""A file behind HTTP, read in ranges: a header costs a few requests, the weights are never fetched."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rooflens.errors import InputError, RooflensError
from rooflens.models.checkpoint.hub_errors import explain, is_transient, refused
from rooflens.units import KIB

#: Seconds without a byte, and seconds on top of what a slow line needs, before a request is given up.
SILENCE_S = 10.0
SLACK_S = 20.0
SLOWEST_BYTES_PER_S = 64 * KIB
ATTEMPTS = 3
PAUSE_S = 0.5

_CHUNK_BYTES = 64 * KIB
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)
_WHOLE, _PARTIAL, _BEYOND_END, _TOO_MANY, _SERVER_ERROR = 200, 206, 416, 429, 500


class _Interrupted(Exception):
    """The answer stopped early; worth another attempt."""


class RangeSource:
    """A `ByteSource` over HTTP range requests, sent through huggingface_hub's session.

    So proxies, certificates, the offline switch and the dropping of the token on a redirect to another host
    are the library's. ``size`` (bytes) is asked from the server where the caller does not know it.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        repo: str,
        headers: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self._repo = repo
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}
        self._size = size

    @property
    def size(self) -> int:
        """The file's size in bytes. Raises RooflensError if the server does not tell."""
        if self._size is None:
            self.read(0, 1)
        if self._size is None:
            raise InputError(f"the server does not tell the size of {self.name}", value=self.url)
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """See `ByteSource.read`. Raises RooflensError if the server refuses, stalls, or ignores the range."""
        if length <= 0 or (self._size is not None and offset >= self._size):
            return b""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._request(offset, length)
            except _Interrupted as error:
                if attempt == ATTEMPTS:
                    raise InputError(
                        f"reading {self.name} was given up after {ATTEMPTS} attempts: {error}",
                        next="check the network, or use a local copy",
                    ) from None
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("the loop returns or raises")

    def _request(self, offset: int, length: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            with _stream(self.url, headers) as (response, chunks):
                if response.status_code == _BEYOND_END:
                    return b""
                if response.status_code == _TOO_MANY or response.status_code >= _SERVER_ERROR:
                    raise _Interrupted(f"the server answered with status {response.status_code}")
                if response.status_code not in (_WHOLE, _PARTIAL):
                    code = response.headers.get("X-Error-Code")
                    raise refused(response.status_code, code, repo=self._repo, file=self.name)
                expected = self._expected(response, offset, length)
                return _collect(chunks, length if expected is None else expected, exact=expected is not None)
        except (RooflensError, _Interrupted):
            raise
        except Exception as error:  # the transport's own: requests, httpx or httpx2, by the hub's version
            if is_transient(error):
                raise _Interrupted(f"{type(error).__name__} {error}".strip()) from None
            raise explain(error, repo=self._repo, file=self.name) from None

    def _expected(self, response: Any, offset: int, length: int) -> int | None:
        """How many bytes the answer has to bring, from its status and headers; None if it does not say."""
        if response.status_code == _PARTIAL:
            given = response.headers.get("Content-Range", "")
            found = _CONTENT_RANGE.fullmatch(given)
            if found is None or int(found[1]) != offset:
                what = f"the server answered another range of {self.name} than was asked for"
                raise InputError(what, value=given)
            size = int(found[3])
            if self._size not in (None, size):
                raise InputError(
                    f"{self.name} has {size:,} bytes on the server, but {self._size:,} were announced",
                    next="try again: it may have just been replaced",
                )
            self._size = size
            return min(length, size - offset)
        if offset:
            raise InputError(
                f"the server sends {self.name} only as a whole, not in ranges",
                next="download the file and give its path",
            )
        total = response.headers.get("Content-Length", "")
        if not _DIGITS.fullmatch(total):
            return None
        if self._size is None:
            self._size = int(total)
        return min(length, int(total))


@contextmanager
def _stream(url: str, headers: dict[str, str]) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """A GET whose body is not fetched before it is iterated over, with either of the hub's HTTP clients."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):  # httpx, from huggingface_hub 1.0 on
        with session.stream("GET", url, headers=headers, timeout=SILENCE_S) as response:
            yield response, response.iter_raw(_CHUNK_BYTES)
    else:  # requests
        with session.get(url, headers=headers, timeout=SILENCE_S, stream=True) as response:
            yield response, response.iter_content(_CHUNK_BYTES)


def _collect(chunks: Iterator[bytes], length: int, *, exact: bool) -> bytes:
    """The first ``length`` bytes; fewer are an interruption if ``exact``."""
    give_up_at = time.monotonic() + SLACK_S + length / SLOWEST_BYTES_PER_S
    parts: list[bytes] = []
    have = 0
    while have < length:
        part = next(chunks, None)
        if part is None:
            break
        parts.append(part)
        have += len(part)
        if time.monotonic() > give_up_at:
            raise _Interrupted(f"only {have:,} of {length:,} bytes came in time")
    if exact and have < length:
        raise _Interrupted(f"the connection ended after {have:,} of {length:,} bytes")
    return b"".join(parts)[:length]
