"""The application: routers, errors, and what begins and ends with it."""

import importlib
import importlib.util
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from saccade.errors import SaccadeError
from saccade.serving import v1
from saccade.serving.problems import Refused, as_refused
from saccade.serving.server import Server

log = logging.getLogger("saccade.serving")


def create_app(server: Server) -> FastAPI:
    """The HTTP application of a server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await server.close()

    app = FastAPI(title="Saccade", version=version("saccade"), lifespan=lifespan)
    app.state.server = server
    app.include_router(v1.router)
    for name in ("libretranslate", "page"):
        if importlib.util.find_spec(f"saccade.serving.{name}") is not None:
            app.include_router(importlib.import_module(f"saccade.serving.{name}").router)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(SaccadeError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)

    @app.get("/health", tags=["server"])
    async def health() -> dict[str, str | bool]:
        """`status` is what LibreTranslate's clients read; `ready` is false when the server is about to stop."""
        return {"status": "ok", "live": True, "ready": not server.draining}

    return app


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
