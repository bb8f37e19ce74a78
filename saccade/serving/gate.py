"""What every request passes, whatever it asks for: size, disconnects, counting, the log.

A body that is too large is refused before it is read, or as soon as it is seen to be. A client that goes away takes its
work with it: whatever answers it is cancelled.
"""

import asyncio
import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saccade.serving.server import Server

log = logging.getLogger("saccade.serving")

FILES = ("/translate_file",)  # where larger bodies are taken
GONE = 499  # the client went away: what proxies write down for it


class Gate:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        passage = _Passage(self.app, scope, receive, send, self._limit(scope["path"]))
        try:
            await passage.run()
        finally:
            self._note(scope, passage.status or 500, time.perf_counter() - began)

    def _limit(self, path: str) -> int:
        return self.server.settings.max_file if path in FILES else self.server.settings.max_body

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")  # templates, not what a client made up
        metrics = self.server.metrics
        metrics.requests.labels(route, status).inc()
        metrics.seconds.labels(route).observe(seconds)
        if status >= 400:
            metrics.refused.labels(status).inc()
        if not self.server.settings.log_requests:
            return
        client = scope["client"][0] if scope.get("client") else ""
        fields = {"method": scope["method"], "path": route, "status": status, "seconds": round(seconds, 4)}
        log.info("request", extra={"fields": fields | {"client": client}})


class _Passage:
    """One request on its way. Who answers it reads its body; then it is listened whether the client is still there."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.app, self.scope, self.receive, self.send, self.limit = app, scope, receive, send, limit
        self.status = self.taken = 0
        self.complete = self.gone = self.large = False
        self.answering: asyncio.Task[Any] | None = None
        self.listening: asyncio.Task[None] | None = None

    async def run(self) -> None:
        if self._announced() > self.limit:
            await self._too_large()
            return
        self.answering = asyncio.current_task()
        try:
            await self.app(self.scope, self._received, self._sent)
        except asyncio.CancelledError:
            if self.large and not self.status:
                await self._too_large()
            elif self.large or self.gone:
                self.status = GONE
            else:
                raise
        finally:
            if self.listening is not None:
                self.listening.cancel()

    def _announced(self) -> int:
        for name, value in self.scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return 0

    async def _received(self) -> Message:
        """What comes next, unless the client is gone or has sent too much: then nobody goes on."""
        if self.listening is not None:  # nothing comes after the body but the end
            await asyncio.wait([self.listening])
            return {"type": "http.disconnect"}
        message = await self.receive()
        self.taken += len(message.get("body", b""))
        self.large = self.taken > self.limit
        self.gone = message["type"] == "http.disconnect"
        if self.large or self.gone:
            raise asyncio.CancelledError
        if not message.get("more_body"):
            self.listening = asyncio.create_task(self._listen())
        return message

    async def _listen(self) -> None:
        """Stop whoever answers a client that goes away."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self.complete and self.answering is not None:
            self.gone = True
            self.answering.cancel()

    async def _sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self.send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True

    async def _too_large(self) -> None:
        said = f"the request is larger than the {self.limit:,} bytes that are taken; send less at a time"
        body = json.dumps({"error": said}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self._sent({"type": "http.response.start", "status": 413, "headers": headers})
        await self._sent({"type": "http.response.body", "body": body})
