"""What stands before every request: size and time of its body, the host that it names, and the headers
that keep a browser from loading or sending anything elsewhere.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rooflens.errors import RooflensError
from rooflens.units import format_bytes
from rooflens.web.errors import ForeignHostError, TooLargeError, TooSlowError, error_response, from_fault
from rooflens.web.loopback import asks_for_loopback
from rooflens.web.settings import WebSettings

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Guard:
    """ASGI middleware: refuse what is too large, too slow or meant for another host; add the headers."""

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            self._check_host(Headers(scope=scope))
            body = await self._read(Headers(scope=scope), receive)
        except RooflensError as error:
            await error_response(error)(scope, receive, send_guarded)
            return
        if body is None:  # the visitor is gone
            return
        try:
            await self._app(scope, _replay(body, receive), send_guarded)
        except Exception as error:
            if started:
                raise
            await error_response(from_fault(error))(scope, receive, send_guarded)

    def _check_host(self, headers: Headers) -> None:
        """On loopback, only loopback names: another name that leads here is a page elsewhere asking."""
        host = headers.get("host", "")
        if self._settings.on_loopback and not asks_for_loopback(host):
            raise ForeignHostError(
                "this server answers on the loopback address only", value=host[:200], next="open localhost"
            )

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body, or None if the visitor left; raises past the limits of size and time."""
        limit = self._settings.most_body_bytes
        too_large = TooLargeError(
            "the request is too large", allowed=f"at most {format_bytes(limit, binary=True)}"
        )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > limit:
            raise too_large
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise TooSlowError(
                "the request did not arrive in time", allowed=f"within {self._settings.body_timeout_s:g} s"
            ) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever else comes (a disconnect)."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
