"""Every way in which a request can fail, as the error object that the command line prints."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rooflens.errors import InputError, RooflensError

_LOG = logging.getLogger("rooflens.web")
_LONGEST_VALUE = 200
_HTTP_WORDS = {
    400: "the body cannot be read as JSON",
    404: "there is nothing at this address",
    405: "this address does not take this method",
}

# Pydantic's limits by the name that its errors give them, as words.
_LIMITS = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


class BusyError(RooflensError):
    """More requests wait than the server takes; the same request may be sent again."""

    http_status = 429


class TooLargeError(RooflensError):
    """The body is larger than the server reads."""

    http_status = 413


class TooSlowError(RooflensError):
    """The body did not arrive, or the answer was not ready, within the time limit."""

    http_status = 408


class ForeignHostError(RooflensError):
    """The request was sent to another name than this server's."""

    http_status = 421


def json_bytes(document: Any) -> bytes:
    """A document as JSON in ASCII, so that no half of a surrogate pair gets in the way; never NaN."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(error: RooflensError, *, status: int | None = None) -> Response:
    """The error object with the status of its kind."""
    return Response(
        json_bytes(error.to_dict()), status_code=status or error.http_status, media_type="application/json"
    )


def install_handlers(app: FastAPI) -> None:
    """Make the app answer its errors with the error object."""

    @app.exception_handler(RooflensError)
    async def ours(request: Request, error: RooflensError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return error_response(from_validation(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        what = InputError(
            _HTTP_WORDS.get(error.status_code, str(error.detail).lower()),
            value=f"{request.method} {request.url.path}"[:_LONGEST_VALUE],
            next="GET /api/openapi.json lists the addresses and what they take",
        )
        response = error_response(what, status=error.status_code)
        response.headers.update(error.headers or {})
        return response


def from_validation(error: RequestValidationError) -> InputError:
    """The first thing that is wrong with a body, by the name of its field."""
    first = dict(error.errors()[0])
    kind, context = str(first["type"]), first.get("ctx") or {}
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if kind == "json_invalid":
        return InputError(
            f"the body is not valid JSON at character {first['loc'][-1]}: {context.get('error')}"
        )
    # A union names the type that it tried last: the field says enough.
    field = ".".join(part for part in place if not _is_union_branch(part)) or "the body"
    if kind == "extra_forbidden":
        return InputError(
            f"there is no field '{field[:_LONGEST_VALUE]}'", next="GET /api/openapi.json lists the fields"
        )
    if kind == "missing" or not place:
        return InputError(f"{field} is missing or not a JSON object", next="send application/json")
    allowed = [text.format(_plain(context[name])) for name, text in _LIMITS.items() if name in context]
    return InputError(
        f"{field} is not usable",
        value=_shown(first.get("input")),
        allowed=", ".join(allowed) or str(first["msg"]).removeprefix("Input should be ").lower(),
    )


def _is_union_branch(part: str) -> bool:
    return part.startswith(("constrained", "function-", "list[", "dict[")) or part in (
        "int", "float", "str", "bool",
    )  # fmt: skip


def _plain(limit: Any) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return str(value) if isinstance(value, int) and abs(value) > 2**53 else value
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def from_fault(error: Exception) -> RooflensError:
    """What a visitor is told of an exception that nobody foresaw: it is logged, the page stays alive.

    Arithmetic that leaves the range of numbers is the input's doing. Anything else is a fault of
    Rooflens; its status says that sending the same input again will not help.
    """
    if isinstance(error, (ArithmeticError, MemoryError, RecursionError)):
        return InputError("these figures lead beyond what can be computed", next="try smaller ones")
    _LOG.error("a request could not be worked out", exc_info=error)
    return InputError(
        "this request could not be worked out: a fault in Rooflens, not in the request",
        value=type(error).__name__,
        next="please report it with the request",
    )
