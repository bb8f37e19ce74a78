"""Calls that take one shape and nothing else, by a shorter way.

FastAPI looks for the route, for parameters and dependencies of every kind and for what is to be closed behind them in
each request, which takes three times as long as to read the shape. It still describes these calls, and answers whoever
asks them in another way.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from saccade.serving.failures import answer_to


class Call(NamedTuple):
    """One of them."""

    route: BaseRoute  # as FastAPI knows it
    shape: type[BaseModel]
    endpoint: Callable[[Any, Request], Awaitable[Response]]


class Direct:
    """The innermost part of an application before FastAPI's own."""

    def __init__(self, app: ASGIApp, calls: Mapping[str, Call]) -> None:
        """`calls`: by their paths; they are posted."""
        self.app, self.calls = app, calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self.calls.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if call is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = call.route
        request = Request(scope, receive)
        try:
            response = await call.endpoint(_read(call.shape, request, await _body(receive)), request)
        except Exception as error:
            response = answer_to(error)
        await response(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    """All of it; the gate ends whoever reads what does not come."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


def _read(shape: type[BaseModel], request: Request, body: bytes) -> BaseModel:
    """The body as a shape; what does not fit is told as FastAPI tells it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Pages of others may send text without being asked whether they may (CORS), but not JSON.
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise _unfit(f"Content-Type is {kind!r}; send application/json", kind)
    try:
        return shape.model_validate_json(body)
    except ValidationError:  # or half of a surrogate pair, which is JSON all the same: asked again more slowly
        return _read_slowly(shape, body)


def _read_slowly(shape: type[BaseModel], body: bytes) -> BaseModel:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:  # no JSON, no text at all, or lists within lists without end
        raise _unfit(f"is no JSON: {error}", None) from error
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        told = [one | {"loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(told, body=given) from error


def _unfit(why: str, given: object) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": why, "input": given}])
