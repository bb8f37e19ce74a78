"""What two processes of a server say to each other: frames, `LENGTH NUMBER WHAT JSON`; NUMBER is the request's."""

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from saccade.serving.problems import KINDS, Refused

_LENGTH = struct.Struct("!I")


class Frame(NamedTuple):
    """One thing that is said. `body` is JSON, for whoever knows its shape."""

    number: int
    what: str
    body: bytes = b"null"

    @classmethod
    def of(cls, number: int, what: str, how: Any = None) -> "Frame":
        if isinstance(how, BaseModel):
            return cls(number, what, how.model_dump_json().encode())
        try:
            return cls(number, what, to_json(how))
        except PydanticSerializationError:  # halves of surrogate pairs, which it cannot write
            return cls(number, what, json.dumps(how).encode())

    @property
    def how(self) -> Any:
        """What the body says."""
        return json.loads(self.body)

    def packed(self) -> bytes:
        """As bytes, with their length before them."""
        said = b"%d %s %s" % (self.number, self.what.encode(), self.body)
        return _LENGTH.pack(len(said)) + said

    @classmethod
    def unpacked(cls, said: bytes) -> "Frame":
        """What `packed` was made of, its length left out."""
        number, what, body = said.split(b" ", 2)
        return cls(int(number), what.decode(), body)


class Wire(asyncio.Protocol):
    """One end of the line between two processes."""

    def __init__(self, heard: Callable[[Frame], None]) -> None:
        """`heard` is called with each frame that comes."""
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._unsent: list[bytes] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()  # done when the other side has gone

    def say(self, frame: Frame) -> None:
        """All that is said in one turn of the event loop goes out at once: each time wakes the other process."""
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(frame.packed())

    def _send(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def close(self) -> None:
        """Send what is left to send, and hang up."""
        self._send()
        if self._transport is not None:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._unread += data
        start, end = 0, _LENGTH.size
        while end <= len(self._unread):
            end += _LENGTH.unpack_from(self._unread, start)[0]
            if end > len(self._unread):
                break
            said = bytes(self._unread[start + _LENGTH.size : end])
            start, end = end, end + _LENGTH.size
            self._heard(Frame.unpacked(said))
        del self._unread[:start]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def problem_of(error: Exception) -> dict[str, Any]:
    """An error, to be raised again on the other side."""
    kind = type(error).__name__
    retry_after = error.retry_after if isinstance(error, Refused) else None
    return {"kind": kind if kind in KINDS else "", "message": str(error), "retry_after": retry_after}


def error_of(problem: dict[str, Any]) -> Exception:
    """The error that `problem_of` was given; one that is ours is in the log of the other side."""
    kind = KINDS.get(problem["kind"], RuntimeError)
    if issubclass(kind, Refused):
        return kind(problem["message"], problem["retry_after"])
    return kind(problem["message"])
