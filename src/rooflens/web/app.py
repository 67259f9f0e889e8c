"""The page's server: routes in, one function called, one document out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope

from rooflens import __version__
from rooflens.report.rows import answer_rows, to_csv
from rooflens.report.words import Language
from rooflens.web import answers
from rooflens.web.bodies import (
    AdviceBody,
    Body,
    CaseBody,
    CompareBody,
    ErrorAnswer,
    InspectBody,
    PlanBody,
    RooflineBody,
    SweepBody,
    ViewBody,
)
from rooflens.web.errors import install_handlers, json_bytes
from rooflens.web.guard import Guard
from rooflens.web.operators import operators_answer
from rooflens.web.settings import WebSettings
from rooflens.web.view import advice_answer, view_answer
from rooflens.web.workers import Workers

STATIC = Path(__file__).parent / "static"

Document = dict[str, Any]
Form = Literal["json", "csv"]
ShortText = Annotated[str | None, Query(max_length=200)]

_ERROR: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "What is wrong, the value, what is allowed, what to do."}
}


def create_app(settings: WebSettings | None = None) -> FastAPI:
    """The application; ``settings`` are its limits and what it may fetch."""
    settings = settings or WebSettings()
    workers = Workers(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()

    app = FastAPI(
        title="Rooflens",
        version=__version__,
        description="The answers of the `rooflens` command line over HTTP: SI base units, null for unknown.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    install_handlers(app)
    _add_questions(app, settings, workers)
    _add_lists(app, settings, workers)
    app.mount("/", Page(app, directory=STATIC, html=True), name="page")
    app.add_middleware(Guard, settings=settings)
    return app


class Page(StaticFiles):
    """The page's files; an address of the API that comes here was asked for with the wrong method."""

    def __init__(self, app: FastAPI, *, directory: Path, html: bool) -> None:
        super().__init__(directory=directory, html=html)
        self._routes = [route for route in app.routes if isinstance(route, Route)]

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or 405 with the methods that there are."""
        methods = {
            method
            for route in self._routes
            if route.matches(scope)[0] is Match.PARTIAL
            for method in route.methods or ()
        }
        if methods:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(methods))})
        return await super().get_response(path, scope)


def _as_json(document: Any) -> Response:
    return Response(json_bytes(document), media_type="application/json")


def _as_csv(document: Document) -> Response:
    return Response(to_csv(answer_rows(document)), media_type="text/csv; charset=utf-8")


def _described(schema: str, *, csv: bool = False) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of an answer: the JSON document of that schema."""
    document = {"type": "object", "properties": {"schema": {"const": schema}}, "required": ["schema"]}
    content: dict[str, Any] = {"application/json": {"schema": document}}
    if csv:
        content["text/csv"] = {"schema": {"type": "string"}}
    return {200: {"description": f"The document {schema}.", "content": content}, **_ERROR}


def _add_questions(app: FastAPI, settings: WebSettings, workers: Workers) -> None:
    """The routes that take a case and work out an answer."""

    def question(name: str, body_type: type[Body], answer: Callable[[Any, WebSettings], Document]) -> None:
        async def route(body: Body, format: Form = "json") -> Response:
            def work() -> Response:
                document = answer(body, settings)
                return _as_csv(document) if format == "csv" else _as_json(document)

            return await workers.run(work)

        # FastAPI reads the body's type from here.
        route.__annotations__["body"] = body_type
        app.add_api_route(
            f"/api/{name}",
            route,
            methods=["POST"],
            operation_id=name,
            summary=(body_type.__doc__ or "").partition(": ")[2],
            description=answer.__doc__,
            responses=_described(f"rooflens.{name}/1", csv=True),
            response_class=Response,
        )

    question("plan", PlanBody, answers.plan_answer)
    question("inspect", InspectBody, answers.inspect_answer)
    question("sweep", SweepBody, answers.sweep_answer)
    question("compare", CompareBody, answers.compare_answer)
    question("roofline", RooflineBody, answers.roofline_answer)
    question("view", ViewBody, view_answer)
    question("advice", AdviceBody, advice_answer)
    question("operators", CaseBody, operators_answer)


def _add_lists(app: FastAPI, settings: WebSettings, workers: Workers) -> None:
    """The routes that tell what there is."""

    async def get(work: Callable[[], Document]) -> Response:
        return await workers.run(lambda: _as_json(work()))

    @app.get("/api/health", responses=_described("rooflens.health/1"), response_class=Response)
    async def health() -> Response:
        """That the server is alive; answered without waiting for any other work."""
        return _as_json(answers.health_answer())

    @app.get("/api/devices", responses=_described("rooflens.devices/1"), response_class=Response)
    async def devices(
        vendor: ShortText = None,
        kind: ShortText = None,
        dtype: ShortText = None,
        min_memory: ShortText = None,
        find: ShortText = None,
    ) -> Response:
        """``rooflens devices --json``, with its filters."""
        return await get(
            lambda: answers.devices_answer(
                vendor=vendor, kind=kind, dtype=dtype, min_memory=min_memory, find=find
            )
        )

    @app.get("/api/devices/{name}", responses=_described("rooflens.device/1"), response_class=Response)
    async def device(name: str) -> Response:
        """``rooflens devices NAME --json``."""
        return await get(lambda: answers.device_answer(name, settings))

    @app.get("/api/models", responses=_described("rooflens.models/1"), response_class=Response)
    async def models() -> Response:
        """The bundled models."""
        return await get(answers.models_answer)

    @app.get("/api/formats", responses=_described("rooflens.formats/1"), response_class=Response)
    async def formats() -> Response:
        """The names of weight formats, cache types and engines."""
        return await get(answers.formats_answer)

    @app.get("/api/catalogue", responses=_described("rooflens.catalogue/1"), response_class=Response)
    async def catalogue() -> Response:
        """All that the page offers to choose from, briefly."""
        return await get(lambda: answers.catalogue_answer(settings))

    @app.get("/api/words", responses=_described("rooflens.words/1"), response_class=Response)
    async def phrases(lang: Language = "en") -> Response:
        """The phrases of one language, by key: those of the command line's tables and charts."""
        return _as_json(answers.words_answer(lang))
