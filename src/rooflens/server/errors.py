"""Errors in the shape that OpenAI's clients read, with Rooflens's one sentence as the message."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rooflens.errors import CapacityError, NotFoundError, RooflensError

_LOG = logging.getLogger("rooflens.server")
_INVALID, _SERVER = "invalid_request_error", "server_error"


class ModelNotFoundError(NotFoundError):
    """The request names another model than the one that is served."""


def error_body(error: BaseException) -> tuple[int, dict[str, Any]]:
    """(status, body) for an exception. Bad input is 400, as OpenAI has it; a fault's words stay here."""
    if isinstance(error, RooflensError):
        status = 400 if error.http_status in (400, 422) else error.http_status
        code = "model_not_found" if isinstance(error, ModelNotFoundError) else None
        if isinstance(error, CapacityError):
            code = "context_length_exceeded"
        kind = _SERVER if status >= 500 else _INVALID
        return status, _body(error.sentence(), kind, code=code)
    _LOG.error("a request failed", exc_info=error)
    return 500, _body(f"the model could not answer: {type(error).__name__}", _SERVER)


def error_response(error: BaseException) -> JSONResponse:
    """The same as a response."""
    status, body = error_body(error)
    return JSONResponse(body, status_code=status)


def install_handlers(app: FastAPI) -> None:
    """Make the app answer all its errors in this shape."""

    @app.exception_handler(RooflensError)
    async def ours(request: Request, error: RooflensError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(_from_validation(error), status_code=400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        body = _body(f"{str(error.detail).lower()}: {request.method} {request.url.path}", _INVALID)
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)


def _body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _from_validation(error: RequestValidationError) -> dict[str, Any]:
    first = dict(error.errors()[0])
    field = ".".join(str(part) for part in first["loc"] if part != "body") or None
    if first["type"] == "json_invalid":
        return _body("the body is not valid JSON", _INVALID)
    if first["type"] == "extra_forbidden":
        return _body(f"there is no parameter '{field}' here", _INVALID, param=field, code="unknown_parameter")
    message = str(first["msg"]).removeprefix("Value error, ")
    return _body(f"{field or 'the body'} is not usable: {message}", _INVALID, param=field)
