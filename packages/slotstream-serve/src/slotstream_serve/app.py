"""The ASGI application: routes of the dialects and of the server itself, behind the gate."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from slotstream_serve.dialects.base import AnswersInfo, CountsTokens, Dialect, InfoRoute
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.errors import Failure, Refused
from slotstream_serve.exchange import Exchange
from slotstream_serve.gate import NOTES, STATUS_PATH, Gate
from slotstream_serve.limits import ClientGone
from slotstream_serve.metrics import CONTENT_TYPE
from slotstream_serve.runner import Runner
from slotstream_serve.service import Service
from slotstream_serve.serving import ServableEngine
from slotstream_serve.settings import ServeConfig
from slotstream_serve.shapes import failure_headers, plain_error

JSON_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


def create_app(engine: ServableEngine, config: ServeConfig, *, dialects: Sequence[Dialect] | None = None) -> FastAPI:
    """Return an ASGI application that serves an engine, for a server of your own.

    A thread of the application's own calls the engine from now on; nothing else may.  The engine stays open when the
    application ends.  Limits on connections and slow heads belong to the HTTP server; `slotstream_serve.server` has
    them.

    Args:
        engine: The engine.
        config: How to serve it.
        dialects: What to speak; everything this package knows when not given.
    """
    runner = Runner(lambda: engine, closes_engine=False)
    return build_app(Service(runner, config, all_dialects() if dialects is None else dialects))


def build_app(service: Service) -> FastAPI:
    """Return the application of a service."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await anyio.sleep(0)  # anyio loads its backend at first use; the first client need not wait for that
        yield
        await service.close()

    app = FastAPI(
        title="Slotstream",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    exchange = Exchange(service)
    _add_own_routes(app, service, exchange)
    for dialect in service.dialects:
        _add_dialect(app, exchange, dialect)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_middleware(_gate_of(service))
    return app


def _gate_of(service: Service) -> Any:
    """Return a middleware class bound to a service."""

    class ServiceGate(Gate):
        def __init__(self, app: ASGIApp) -> None:
            super().__init__(
                app, config=service.config, activity=service.activity, metrics=service.metrics, shapes=service.shapes
            )

    return ServiceGate


def _add_own_routes(app: FastAPI, service: Service, exchange: Exchange) -> None:
    async def root(request: Request) -> Response:
        _mark(request)
        return JSONResponse({"status": "ok", "engine": "slotstream"})

    async def status(request: Request) -> Response:
        _mark(request)
        server = request.scope.get("server")
        return JSONResponse(service.status(server[1] if server else service.config.port))

    async def clients(request: Request) -> Response:
        _mark(request)
        try:
            body = await exchange.body(request)
            return JSONResponse({"clients": service.activity.register(body.get("pid"))})
        except Refused as refusal:
            failure = refusal.failure
        except ClientGone:
            failure = Failure(code="client_cancelled", message="the client closed the request")
        return JSONResponse(plain_error(failure), failure.http_status, failure_headers(failure))

    async def metrics(request: Request) -> Response:
        _mark(request)
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)

    app.add_api_route("/", root, methods=["GET"], response_model=None)
    app.add_api_route("/", root, methods=["HEAD"], response_model=None, include_in_schema=False)
    app.add_api_route(STATUS_PATH, status, methods=["GET"], response_model=None)
    app.add_api_route("/slotstream/clients", clients, methods=["POST"], response_model=None, openapi_extra=JSON_BODY)
    app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)


def _add_dialect(app: FastAPI, exchange: Exchange, dialect: Dialect) -> None:
    async def generate(request: Request) -> Response:
        _mark(request)
        return await exchange.generate(dialect, request)

    for path in dialect.paths:
        app.add_api_route(path, generate, methods=["POST"], response_model=None, openapi_extra=JSON_BODY)
    if isinstance(dialect, CountsTokens):
        _add_counter(app, exchange, dialect, dialect)
    if isinstance(dialect, AnswersInfo):
        for route in dialect.info_routes:
            _add_info(app, exchange, dialect, route)


def _add_counter(app: FastAPI, exchange: Exchange, dialect: Dialect, counter: CountsTokens) -> None:
    async def count(request: Request) -> Response:
        _mark(request)
        return await exchange.count(dialect, counter, request)

    for path in counter.count_paths:
        app.add_api_route(path, count, methods=["POST"], response_model=None, openapi_extra=JSON_BODY)


def _add_info(app: FastAPI, exchange: Exchange, dialect: Dialect, route: InfoRoute) -> None:
    async def info(request: Request) -> Response:
        _mark(request)
        return await exchange.info(dialect, route, request)

    extra = JSON_BODY if route.method == "POST" else None
    app.add_api_route(route.path, info, methods=[route.method], response_model=None, openapi_extra=extra)
    if route.method == "GET":
        app.add_api_route(route.path, info, methods=["HEAD"], response_model=None, include_in_schema=False)


def _mark(request: Request) -> None:
    """Tell the metrics which route answers."""
    request.scope[NOTES].route = getattr(request.scope.get("route"), "path", "")


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Answer an unknown path, and a known one with another method, alike."""
    if isinstance(error, HTTPException) and error.status_code not in (404, 405):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": f"not found: {request.method} {request.scope['path']}"}, 404)
