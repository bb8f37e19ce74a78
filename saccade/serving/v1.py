"""The server's own interface, `/v1`: the shapes are in `schemas`."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from saccade.serving.clients import client_of
from saccade.serving.direct import Call
from saccade.serving.problems import NotFound, Wrong, as_refused
from saccade.serving.schemas import (
    Alternatives,
    AlternativesRequest,
    Done,
    LookRequest,
    Models,
    Part,
    Problem,
    Result,
    StreamProblem,
    TranslateAnswer,
    TranslateRequest,
)
from saccade.serving.server import Server, mended
from saccade.serving.told import Told
from saccade.serving.watch import Watch

router = APIRouter(prefix="/v1", tags=["v1"])


async def server_of(request: Request) -> Server:
    """The server that the application was made for."""
    server: Server = request.app.state.server
    return server


TheServer = Annotated[Server, Depends(server_of)]
Client = Annotated[str, Depends(client_of)]
NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy is to hand on each event as it comes
PROBLEMS: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in (400, 404, 413, 429, 503, 504)}


def told_by(request: TranslateRequest) -> Told:
    """What a request asks for."""
    return Told(
        request.search,
        request.glossary,
        request.prefix,
        tuple(request.must),
        tuple(request.banned),
        request.n_best,
        request.alignments,
        request.tokens,
    )


EVENTS: dict[type[BaseModel], str] = {Part: "part", Result: "result", Done: "done"}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


async def translate(request: TranslateRequest, http: Request) -> Response:
    """Translate texts. With `stream`, the answer is server-sent events: `part`, `result`, `done`, `error`."""
    server, client = await server_of(http), await client_of(http)
    texts = [request.text] if isinstance(request.text, str) else request.text
    entry = server.choose(request.model, request.source, request.target)
    told = told_by(request)
    if request.stream:
        events = _events(server, texts, entry.name, told, client)
        return StreamingResponse(events, media_type="text/event-stream", headers=NOT_KEPT)
    answer = await server.translate(texts, entry.name, told, client)
    whole = TranslateAnswer(model=answer.model, results=answer.results, seconds=answer.seconds)
    return Response(whole.model_dump_json(), media_type="application/json")  # what is sound need not be checked again


router.add_api_route(
    "/translate",
    translate,
    methods=["POST"],
    response_model=TranslateAnswer,
    responses=PROBLEMS | STREAMED,
)
DIRECT = {"/v1/translate": Call(router.routes[-1], TranslateRequest, translate)}


async def _events(server: Server, texts: list[str], model: str, told: Told, client: str) -> AsyncIterator[str]:
    try:
        async with aclosing(server.stream(texts, model, told, client)) as events:
            async for event in events:
                yield sse(EVENTS[type(event)], event)
    except Exception as error:
        refused = as_refused(error)
        if refused is None:
            raise
        yield sse("error", StreamProblem(error=str(refused), status=refused.status, retry_after=refused.retry_after))


def sse(event: str, data: BaseModel) -> str:
    """One server-sent event."""
    return f"event: {event}\ndata: {json.dumps(data.model_dump(mode='json'), ensure_ascii=False)}\n\n"


@router.post("/alternatives", responses=PROBLEMS)
async def alternatives(request: AlternativesRequest, server: TheServer, client: Client) -> Alternatives:
    """Words that could come next in a translation, each with the whole translation that would follow."""
    entry = server.pool.named(request.model)
    text, prefix = mended(request.text), mended(request.prefix)
    server.check([text, prefix])
    if not text.strip():
        raise Wrong("text is blank, so nothing can stand in its translation; give a sentence")
    deadline = server.deadline()
    with server.counted():
        async with server.pool.use(entry, deadline) as loaded:
            return await deadline.hold(loaded.model.alternatives(text, prefix, request.count, client))


@router.post("/look", responses=PROBLEMS, response_model=dict[str, Any])
async def look(request: LookRequest, server: TheServer) -> Response:
    """Where every head looked and how sure the model was, piece by piece; see `saccade.looking.json` for the shape."""
    text, target = mended(request.text), None if request.target is None else mended(request.target)
    server.check([text, target or ""])
    entry = server.pool.named(request.model)
    asked = request.model_copy(update={"text": text, "target": target})
    deadline = server.deadline()
    with server.counted():
        async with server.pool.use(entry, deadline) as loaded:
            shown = await deadline.hold(loaded.model.look(entry.name, asked))
    return Response(shown, media_type="application/json")


@router.get("/watch", responses=PROBLEMS)
async def watch(server: TheServer) -> StreamingResponse:
    """The run of `saccade serve --watch`, as server-sent events: all that was logged, then what is new."""
    if server.watch is None:
        raise NotFound("no run is watched here; start the server with --watch FOLDER")
    return StreamingResponse(_moments(server, server.watch), media_type="text/event-stream", headers=NOT_KEPT)


async def _moments(server: Server, watched: Watch) -> AsyncIterator[str]:
    async with aclosing(watched.follow()) as events:
        async for event in events:
            yield sse(event.kind, event)
            if server.draining:
                return


@router.get("/models")
async def models(server: TheServer) -> Models:
    """The models that can be asked for, the first is the default."""
    return Models(models=server.pool.cards())
