"""What two processes of a server say to each other: frames of JSON, `[number of the request, what, how]`."""

import asyncio
import json
import struct
from typing import Any, NamedTuple

from pydantic import BaseModel

from saccade.serving.problems import KINDS, Refused

_LENGTH = struct.Struct("!I")


class Frame(NamedTuple):
    """One thing that is said."""

    number: int
    what: str
    how: Any = None

    def packed(self) -> bytes:
        """As bytes, with their length before them."""
        how = self.how.model_dump_json() if isinstance(self.how, BaseModel) else json.dumps(self.how)
        body = f"[{self.number},{json.dumps(self.what)},{how}]".encode()
        return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next one; None: the other side has gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return Frame(*json.loads(await reader.readexactly(length)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


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
