"""The application: routers, errors, and what begins and ends with it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

import saccade
from saccade.errors import SaccadeError
from saccade.serving import libretranslate, page, reference, v1
from saccade.serving.direct import Direct
from saccade.serving.failures import answer_to
from saccade.serving.gate import Gate
from saccade.serving.problems import Refused
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

    app = FastAPI(title="Saccade", version=saccade.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = server
    for room in (v1, reference, libretranslate, page):
        app.router.routes.extend(room.router.routes)  # one router within another asks twice
    app.add_middleware(Direct, calls=v1.DIRECT)
    protect(app, server.settings)
    app.add_middleware(Gate, server=server)
    app.add_middleware(SecurityHeaders)
    for kind in (HTTPException, Refused, SaccadeError, RequestValidationError, Exception):
        app.add_exception_handler(kind, _problem)

    app.openapi = lambda: _described(app)  # type: ignore[method-assign]

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["server"])
    async def health() -> dict[str, str | bool]:
        """`status` is what LibreTranslate's clients read; `ready` is false when the server is about to stop."""
        return {"status": "ok", "live": True, "ready": not server.draining}

    @app.head("/metrics", include_in_schema=False)
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


async def _problem(request: Request, error: Exception) -> JSONResponse:
    return answer_to(error)
