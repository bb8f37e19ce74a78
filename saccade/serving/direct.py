"""A call that takes one shape and nothing else, by a shorter way.

FastAPI looks for parameters and dependencies of every kind in each request, which takes longer than to read the shape.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError


class Direct(APIRoute):
    """Calls its endpoint with the shape and the request. It is described as any other call is."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        assert self.body_field is not None
        shape: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle(request: Request) -> Response:
            return await self.endpoint(await _read(shape, request), request)

        return handle


async def _read(shape: type[BaseModel], request: Request) -> BaseModel:
    """The body as a shape; what does not fit is told as FastAPI tells it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Pages of others may send text without being asked whether they may (CORS), but not JSON.
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise _unfit(f"Content-Type is {kind!r}; send application/json", kind)
    try:
        given = await request.json()
    except (ValueError, RecursionError) as error:  # no JSON, no text at all, or lists within lists without end
        raise _unfit(f"is no JSON: {error}", None) from error
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        told = [one | {"loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(told, body=given) from error


def _unfit(why: str, given: object) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": why, "input": given}])
