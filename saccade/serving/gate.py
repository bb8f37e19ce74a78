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
        passage = _Passage(self.app, scope, receive, send, *self._limits(scope))
        try:
            await passage.run()
        finally:
            self._note(scope, passage.status or 500, time.perf_counter() - began)

    def _limits(self, scope: Scope) -> tuple[int, float]:
        """Bytes, and seconds in which they are there."""
        settings = self.server.settings
        if scope["path"] in FILES and any(
            name == b"content-type" and value.lower().startswith(b"multipart/") for name, value in scope["headers"]
        ):
            return settings.max_file, settings.file_time_limit
        return settings.max_body, settings.time_limit

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

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, limit: int, seconds: float) -> None:
        self.app, self.scope, self.receive, self.send = app, scope, receive, send
        self.limit, self.seconds = limit, seconds
        self.status = self.taken = 0
        self.complete = self.gone = self.large = self.late = False
        self.reading = self.overdue = False
        self.answering: asyncio.Task[Any] | None = None
        self.listening: asyncio.Task[None] | None = None

    async def run(self) -> None:
        if self._announced() > self.limit:
            await self._too_large()
            return
        self.answering = asyncio.current_task()
        alarm = asyncio.get_running_loop().call_later(self.seconds, self._too_late)
        try:
            await self.app(self.scope, self._received, self._sent)
        except asyncio.CancelledError:
            if self.large and not self.status:
                await self._too_large()
            elif self.late and not self.status:
                await self._refuse(408, f"the request was not there within {self.seconds:g} seconds; send it faster")
            elif self.large or self.gone or self.late:
                self.status = GONE
            else:
                raise
        finally:
            alarm.cancel()
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
        self.reading = True
        message = await self.receive()
        self.reading = False
        self.taken += len(message.get("body", b""))
        self.large = self.taken > self.limit
        self.gone = message["type"] == "http.disconnect"
        more = bool(message.get("more_body"))
        self.late = self.overdue and more
        if self.large or self.gone or self.late:
            raise asyncio.CancelledError
        if not more:
            self.listening = asyncio.create_task(self._listen())
        return message

    def _too_late(self) -> None:
        """Whoever sends a byte now and then does not keep a place for ever."""
        self.overdue = True
        if self.reading and self.answering is not None:
            self.late = True
            self.answering.cancel()

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
        await self._refuse(
            413, f"the request is larger than the {self.limit:,} bytes that are taken; send less at a time"
        )

    async def _refuse(self, status: int, said: str) -> None:
        body = json.dumps({"error": said}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})
        await self._sent({"type": "http.response.body", "body": body})
