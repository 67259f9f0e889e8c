"""What stands before every route: the host that is named, a key if one is set, a limit on bodies."""

from __future__ import annotations

import hmac

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rooflens.units import MIB
from rooflens.web.loopback import asks_for_loopback

LARGEST_BODY_BYTES = 16 * MIB
_OPEN_PATHS = ("/health", "/metrics")


class _TooLargeError(Exception):
    pass


class Guard:
    """ASGI middleware; plain, so that a caller's leaving is seen at once."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None = None,
        largest: int = LARGEST_BODY_BYTES,
        loopback_only: bool = False,
    ) -> None:
        self.app = app
        self.loopback_only = loopback_only
        self.api_key = None if api_key is None else api_key.encode()
        self.largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self.loopback_only and not asks_for_loopback(headers.get(b"host", b"").decode("latin-1")):
            await _refusal(
                421, "this server answers on the loopback address only: ask localhost", "foreign_host"
            )(scope, receive, send)
            return
        if self.api_key is not None and scope["path"] not in _OPEN_PATHS:
            given = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
            if not hmac.compare_digest(given, self.api_key):
                await _refusal(401, "the API key is missing or wrong", "invalid_api_key")(
                    scope, receive, send
                )
                return
        seen, begun, too_large = 0, False, False

        async def counted() -> Message:
            nonlocal seen, too_large
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.largest:
                too_large = True
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            if too_large and not begun:
                return  # the app takes the end of the body for damage, and says so in vain
            begun = True
            await send(message)

        length = headers.get(b"content-length", b"0")
        try:
            if not length.isdigit() or int(length) > self.largest:
                too_large = True
            else:
                await self.app(scope, counted, noted)
        except _TooLargeError:
            pass
        finally:
            if too_large and not begun:
                refusal = _refusal(
                    413, f"the body is larger than {self.largest:,} bytes", "request_too_large"
                )
                await refusal(scope, receive, send)


def _refusal(status: int, message: str, code: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status)
