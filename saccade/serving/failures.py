"""What is answered where something is wrong: with the request, with what it asks for, or with us."""

import logging

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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "the request"
        return JSONResponse({"error": f"{where}: {first['msg']}"}, 400)
    if (refused := as_refused(error)) is not None:
        return refusal(refused)
    log.error("request failed", exc_info=error)  # ours to mend, and no business of a client's
    return JSONResponse({"error": "something went wrong here, and is in the server's log"}, 500)
