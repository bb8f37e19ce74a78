"""What is answered where something is wrong: with the request, with what it asks for, or with us."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from saccade.serving.problems import Refused, as_refused

log = logging.getLogger("saccade.serving")


def refusal(refused: Refused) -> JSONResponse:
    """Why there is no answer, and when to ask again."""
    headers = {} if refused.retry_after is None else {"Retry-After": str(refused.retry_after)}
    return JSONResponse({"error": str(refused)}, refused.status, headers)


def answer_to(error: Exception) -> JSONResponse:
    """The same words for every problem, whoever finds it."""
    if isinstance(error, HTTPException):  # a path that is none, or a way to ask that it does not know
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):  # what does not fit the shapes
        return JSONResponse({"error": _unfit(error.errors())}, 400)
    if (refused := as_refused(error)) is not None:
        return refusal(refused)
    log.error("request failed", exc_info=error)  # ours to mend, and no business of a client's
    return JSONResponse({"error": "something went wrong here, and is in the server's log"}, 500)


_NO_PLACES = ("body", "str", "list[str]")  # the second and third are what a field may be, and no part of its name


def _unfit(problems: Sequence[Any]) -> str:
    """What does not fit, by its name: of the ways to write a field, as that tells it which was followed furthest."""
    field = problems[0]["loc"][:2]
    problem = max((one for one in problems if one["loc"][:2] == field), key=lambda one: len(one["loc"]))
    where = ".".join(str(part) for part in problem["loc"] if part not in _NO_PLACES) or "the request"
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such field; leave it out"
    return f"{where}: {problem['msg']}"
