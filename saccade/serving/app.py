"""The application: routers, errors, and what begins and ends with it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from saccade.errors import SaccadeError
from saccade.serving import libretranslate, page, reference, v1
from saccade.serving.gate import Gate
from saccade.serving.problems import Refused, as_refused
from saccade.serving.security import SecurityHeaders, protect
from saccade.serving.server import Server

log = logging.getLogger("saccade.serving")


def create_app(server: Server) -> FastAPI:
    """The HTTP application of a server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        background = []
        if server.settings.processes != 0 and server.pool.entries:
            background.append(asyncio.create_task(server.pool.warm_up()))
        if server.settings.reload_every:
            background.append(asyncio.create_task(server.pool.reload_changed()))
        if server.watch is not None:
            background.append(asyncio.create_task(server.watch.run()))
        yield
        for task in background:
            task.cancel()
        await server.close()

    app = FastAPI(title="Saccade", version=version("saccade"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = server
    for room in (v1, reference, libretranslate, page):
        app.router.routes.extend(room.router.routes)  # one router within another asks twice
    protect(app, server.settings)
    app.add_middleware(Gate, server=server)
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(SaccadeError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)

    app.openapi = lambda: _described(app)  # type: ignore[method-assign]

    @app.get("/health", tags=["server"])
    async def health() -> dict[str, str | bool]:
        """`status` is what LibreTranslate's clients read; `ready` is false when the server is about to stop."""
        return {"status": "ok", "live": True, "ready": not server.draining}

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters and gauges, for Prometheus."""
        await server.observe()
        return Response(server.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: what does not fit a shape is a `Problem` of status 400 here, not FastAPI's own 422."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for methods in app.openapi_schema["paths"].values():
            for call in methods.values():
                call["responses"].pop("422", None)
    return app.openapi_schema


async def _refused(request: Request, error: Exception) -> JSONResponse:
    refused = as_refused(error)
    assert refused is not None
    headers = {} if refused.retry_after is None else {"Retry-After": str(refused.retry_after)}
    return JSONResponse({"error": str(refused)}, refused.status, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """What does not fit the shapes, in the same words as any other problem."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the request"
    return JSONResponse({"error": f"{where}: {first['msg']}"}, 400)


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    """A path that is none, or a way to ask that it does not know."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    """What is ours to mend is in the log, and no business of a client's."""
    log.error("request failed", exc_info=error)
    return JSONResponse({"error": "something went wrong here, and is in the server's log"}, 500)
