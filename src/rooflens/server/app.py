"""The OpenAI-compatible server over one engine: routes in, the engine's requests out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from rooflens import __version__
from rooflens.errors import InputError
from rooflens.runtime.backend import NativeBackend
from rooflens.runtime.engine.async_engine import AsyncEngine
from rooflens.runtime.engine.engine import Engine, Prompt
from rooflens.runtime.engine.settings import EngineSettings
from rooflens.runtime.engine.speculative import Proposer
from rooflens.runtime.sampling import SamplingParams
from rooflens.runtime.tokenizer import Tokenizer
from rooflens.server.answers import Reply
from rooflens.server.errors import ModelNotFoundError, install_handlers
from rooflens.server.guard import Guard
from rooflens.server.metrics import ServerMetrics
from rooflens.server.protocol import ChatRequest, CompletionRequest
from rooflens.server.replies import EventResponse, Submitted, gone, whole_reply

#: How long accepted requests may take to end when the server stops.
DRAIN_S = 30.0


@dataclass(frozen=True)
class ServerSettings:
    """``name``: what the API calls the model; ``api_key``: asked of every caller of ``/v1``, if set.

    With ``loopback_only`` requests that name another host are refused (see `rooflens.web.loopback`).
    """

    name: str
    api_key: str | None = None
    loopback_only: bool = False


class _Service:
    """What the routes share."""

    def __init__(
        self,
        backend: NativeBackend,
        settings: ServerSettings,
        engine: EngineSettings,
        proposer: Proposer | None,
    ) -> None:
        if backend.tokenizer is None:
            raise InputError(
                f"{settings.name} has no tokenizer, so it cannot be served",
                next="save tokenizer.json beside its weights",
            )
        self.backend = backend
        self.tokenizer: Tokenizer = backend.tokenizer
        self.settings = settings
        self.created = int(time.time())
        made = Engine(backend, engine, proposer=proposer)
        self.longest = made.scheduler.longest
        self.engine = AsyncEngine(made)
        self.metrics = ServerMetrics(model=settings.name, status=lambda: made.status)
        made.observers.append(self.metrics)

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.settings.name:
            raise ModelNotFoundError("the model is not served here", value=name, allowed=self.settings.name)

    async def answer(
        self,
        request: Request,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        chat: bool,
        stream: bool,
        usage: bool,
    ) -> Response:
        reply = Reply(self.settings.name, chat, self.tokenizer, params)
        submitted = Submitted(self.engine, prompts, params)
        if stream:
            return EventResponse(submitted, reply, usage=usage)
        document = await whole_reply(request, submitted, reply)
        return gone() if document is None else JSONResponse(document)


def create_app(
    backend: NativeBackend,
    settings: ServerSettings,
    *,
    engine: EngineSettings | None = None,
    proposer: Proposer | None = None,
) -> FastAPI:
    """The application; its engine starts and stops with it. Raises InputError without a tokenizer."""
    service = _Service(backend, settings, engine or EngineSettings(), proposer)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        try:
            yield
        finally:
            await service.engine.shutdown(timeout_s=DRAIN_S)

    app = FastAPI(title="Rooflens", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    install_handlers(app)
    app.add_middleware(Guard, api_key=settings.api_key, loopback_only=settings.loopback_only)
    _routes(app, service)
    return app


def _routes(app: FastAPI, service: _Service) -> None:
    name = service.settings.name

    @app.get("/health")
    async def health() -> Response:
        """200 while requests are taken."""
        return Response(status_code=200 if service.engine.accepting else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model."""
        return {"object": "list", "data": [_model(service)]}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """The model, by its name."""
        service.check_model(model)
        return _model(service)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        service.check_model(body.model or name)
        body.refuse_unsupported()
        return await service.answer(
            request,
            body.prompts,
            body.params(),
            chat=False,
            stream=bool(body.stream),
            usage=body.wants_usage,
        )

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer messages."""
        service.check_model(body.model or name)
        body.refuse_unsupported()
        tokens = service.tokenizer.encode_chat([message.as_template() for message in body.messages])
        params = body.params(room=service.longest - len(tokens))
        return await service.answer(
            request, [tokens], params, chat=True, stream=bool(body.stream), usage=body.wants_usage
        )


def _model(service: _Service) -> dict[str, Any]:
    return {
        "id": service.settings.name,
        "object": "model",
        "created": service.created,
        "owned_by": "rooflens",
        "max_model_len": service.longest,
    }
