"""A client's connection, within limits: what a request begins with is short and soon there, and answers are taken.

uvicorn reads the head of a request however long it is, and waits for it, or for an answer to be taken, for ever.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 64 * 1024  # bytes of a line and headers; likewise of what stands between two pieces of a body
PIPELINED = 32  # requests that wait for the answer to one before them
HEAD_SECONDS = 20.0  # until it is there
TAKEN_SECONDS = 60.0  # in which a client takes some of an answer


class Connection(HttpToolsProtocol):
    """Beyond a limit it is closed, and its request is that of a client that went away."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unread = 0  # bytes in which there was neither the end of a head nor any of a body
        self._waiting: asyncio.TimerHandle | None = None  # for a head
        self._held: asyncio.TimerHandle | None = None  # for an answer to be taken

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._waiting, self._held):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self.transport.is_closing() or not self._unread:
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._unread > HEAD and answering:
            self.transport.abort()
        elif self._unread > HEAD:
            self.send_400_response(f"The head of the request is larger than {HEAD:,} bytes.")
        elif self._waiting is None and not answering:
            self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        self._unread = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("more requests than are taken before the first is answered")  # uvicorn answers 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._held is None:
            self._held = self.loop.call_later(TAKEN_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held is not None:
            self._held.cancel()
            self._held = None
